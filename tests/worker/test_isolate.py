"""Isolated jobs: real processes that crash, and nothing is left of them."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import jobmill
from jobmill.core.job import Attempt, Job, JobOptions, Keep, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.errors import InvalidValue
from jobmill.handlers.handler import Handler
from jobmill.worker.isolate import parent
from jobmill.worker.isolate.parent import check_isolatable, run_isolated
from tests.worker import isolated_handlers as handlers

ROOT = Path(__file__).parents[2]


def job_of(handler: Handler[..., Any], payload: object = None, **fields: Any) -> Job:
    return Job(
        id="j1",
        name=handler.name,
        queue="default",
        payload_json=Raw(msgspec.json.encode({} if payload is None else payload)),
        state="running",
        priority=0,
        due_ms=0,
        created_ms=0,
        updated_ms=0,
        **fields,
    )


async def run(handler: Handler[..., Any], payload: object = None, **fields: Any) -> Outcome:
    return await run_isolated(handler, job_of(handler, payload, **fields), lambda said: None)


def result(outcome: Outcome) -> Any:
    assert isinstance(outcome, Succeeded), outcome
    return msgspec.json.decode(outcome.result_json)


def errored(outcome: Outcome) -> Errored:
    assert isinstance(outcome, Errored), outcome
    return outcome


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


async def held(fifo: str) -> Any:
    """The reading end of a named pipe, once a process has opened it for writing; it ends when all writers are dead."""
    return await asyncio.wait_for(asyncio.to_thread(open, fifo), 10)


async def all_dead(reader: Any) -> None:
    await asyncio.wait_for(asyncio.to_thread(reader.read), 10)
    reader.close()


# ---------------------------------------------------------------------------------------------------- outcomes


async def test_async_and_sync_handlers_return() -> None:
    assert result(await run(handlers.add, {"a": 1, "b": 2})) == 3
    child = result(await run(handlers.pid))
    assert child != os.getpid()
    assert result(await run(handlers.renamed)) == "found"
    assert result(await run(handlers.kept_elsewhere)) == "found by looking around"


async def test_the_context_has_the_whole_job() -> None:
    fields: dict[str, Any] = {
        "errors": 2,
        "claims": 7,
        "progress": Progress(12.5, "earlier"),
        "attempts": (Attempt(traceback="one"), Attempt(error="two")),
        "options": JobOptions(max_attempts=9, keep_failed=Keep(last=3), backoff=jobmill.fixed("2s")),
        "recurrence": Recurrence(key="k", cron="* * * * *", timezone="Europe/Berlin"),
    }
    about = result(await run(handlers.about, **fields))
    as_json = msgspec.json.decode(msgspec.json.encode(job_of(handlers.about, **fields).to_dict()))
    assert about["job"] == as_json
    assert (about["attempt"], about["fence"], about["cancelled"]) == (3, 7, False)
    assert about["leads_session"]
    assert about["argv"] == sys.argv


@pytest.mark.parametrize("handler", [handlers.raises, handlers.raises_async])
async def test_an_exception_comes_with_its_traceback(handler: Handler[..., Any]) -> None:
    outcome = errored(await run(handler, {"message": "it broke \N{SNOWMAN}"}))
    assert outcome.error == "ValueError: it broke \N{SNOWMAN}"
    assert outcome.traceback is not None
    assert "isolated_handlers.py" in outcome.traceback
    assert "isolated_child.py" not in outcome.traceback
    assert not outcome.final


async def test_fail_snooze_and_a_backoff_function() -> None:
    failed = errored(await run(handlers.gives_up))
    assert (failed.error, failed.final) == ("never again", True)
    assert await run(handlers.snoozes) == Snoozed(5_000)
    assert errored(await run(handlers.raises_with_own_backoff, errors=1)).delay_ms == 200_000
    assert errored(await run(handlers.system_exit)).error == "SystemExit: 3"


async def test_invalid_payloads_and_results_are_errors() -> None:
    misfit = errored(await run(handlers.add, {"a": "one", "b": 2}))
    assert misfit.final
    assert "Expected `int`, got `str`" in misfit.error
    unstorable = errored(await run(handlers.not_json))
    assert unstorable.final
    assert "the handler finished, but its result cannot be stored" in unstorable.error


async def test_a_result_that_is_dropped_on_purpose() -> None:
    assert await run(handlers.drops_its_result) == Succeeded()


async def test_errors_that_are_retried_or_not_by_their_type() -> None:
    assert not errored(await run(handlers.retries_by_type, {"kind": "ConnectionResetError"})).final
    assert errored(await run(handlers.retries_by_type, {"kind": "ValueError"})).final


# ---------------------------------------------------------------------------------------------------- deaths


async def test_a_segfault_is_an_error_of_the_job_with_its_traceback() -> None:
    outcome = errored(await run(handlers.segfault))
    assert outcome.error == "process ended by SIGSEGV"
    assert outcome.traceback is not None
    assert "in segfault" in outcome.traceback
    assert not outcome.final


@pytest.mark.parametrize(
    ("handler", "payload", "error"),
    [
        (handlers.exit_with, {"code": 3}, "process exited with code 3 without an outcome"),
        (handlers.exit_with, {"code": 0}, "process exited with code 0 without an outcome"),
        (handlers.die_by, {"signum": signal.SIGKILL}, "process killed by SIGKILL (out of memory?)"),
        (handlers.die_by, {"signum": signal.SIGTERM}, "process ended by SIGTERM"),
    ],
)
async def test_other_ways_a_process_can_die(handler: Handler[..., Any], payload: object, error: str) -> None:
    assert errored(await run(handler, payload)) == Errored(error=error)


async def test_a_forked_process_does_not_hide_the_death() -> None:
    assert errored(await run(handlers.fork_and_segfault)).error == "process ended by SIGSEGV"


async def test_an_invalid_answer_is_an_error() -> None:
    assert errored(await run(handlers.garbles)).error.startswith("process sent a response that cannot be read: ")


async def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert errored(await run(handlers.pid)).error.startswith("process could not be started: ")


async def test_processes_that_a_job_leaves_running_end_with_it(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running = asyncio.create_task(run(handlers.leaves_a_process, {"fifo": fifo}))
    reader = await held(fifo)
    assert result(await running) == "done"
    await all_dead(reader)
    monkeypatch.setattr(parent, "GRACE_S", 0.1)
    assert result(await run(handlers.leaves_a_thread)) == "done"


# ---------------------------------------------------------------------------------------------------- pipes


async def test_progress_and_log_lines_arrive_while_the_job_runs(fifo: str) -> None:
    told: asyncio.Queue[Progress | str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(said: Progress | str) -> None:
        loop.call_soon_threadsafe(told.put_nowait, said)

    running = asyncio.create_task(run_isolated(handlers.tells, job_of(handlers.tells, {"fifo": fifo}), tell))
    assert await asyncio.wait_for(told.get(), 10) == Progress(50, "half ?")
    assert await asyncio.wait_for(told.get(), 10) == "a line"
    assert not running.done()
    await asyncio.to_thread(Path(fifo).write_text, "heard")
    assert result(await running) == "heard"


async def test_payload_and_result_of_five_megabytes() -> None:
    text = "abcdé" * 1_000_000
    assert result(await run(handlers.mirror, {"text": text})) == text[::-1]


# ---------------------------------------------------------------------------------------------------- stopping


async def test_cancelling_ends_the_process_and_its_children(fifo: str) -> None:
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo}))
    reader = await held(fifo)
    assert await asyncio.to_thread(reader.readline) == "ready\n"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_dead(reader)


async def test_a_process_that_ignores_sigterm_is_killed(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "GRACE_S", 0.1)
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo, "stubborn": True}))
    reader = await held(fifo)
    assert await asyncio.to_thread(reader.readline) == "ready\n"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_dead(reader)


async def test_cancelling_a_second_time_kills_at_once(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "GRACE_S", 600)
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo, "stubborn": True}))
    reader = await held(fifo)
    assert await asyncio.to_thread(reader.readline) == "ready\n"
    running.cancel()
    await asyncio.wait([running], timeout=0.05)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    await all_dead(reader)


async def test_an_outcome_counts_even_if_the_wait_for_the_process_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()
    waited = parent._wait

    async def watched(future: asyncio.Future[None], timeout: float | None = None) -> bool:
        answered.set()
        return await waited(future, timeout)

    monkeypatch.setattr(parent, "GRACE_S", 600)
    monkeypatch.setattr(parent, "_wait", watched)
    running = asyncio.create_task(run(handlers.leaves_a_thread))
    await asyncio.wait_for(answered.wait(), 10)
    running.cancel()
    assert result(await asyncio.wait_for(running, 10)) == "done"


async def test_cancelling_while_the_process_starts() -> None:
    for _ in range(3):
        running = asyncio.create_task(run(handlers.pid))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.slow
async def test_nothing_is_left_after_many_runs() -> None:
    async def many() -> list[Outcome]:
        kinds = [handlers.pid] * 8 + [handlers.segfault] * 2
        return await asyncio.gather(*(run(handler) for handler in kinds))

    await many()
    before = len(os.listdir("/dev/fd"))
    pids = [result(one) for one in await many() + await many() if isinstance(one, Succeeded)]
    assert len(set(pids)) == 16
    assert not any(is_our_child(pid) for pid in pids)
    assert len(os.listdir("/dev/fd")) == before


def is_our_child(pid: int) -> bool:
    """A zombie counts as alive."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


WORKER = """
import asyncio, sys
from tests.worker.test_isolate import handlers, run
asyncio.run(run(handlers.waits, {"fifo": sys.argv[1], "stubborn": True}))
"""


def other_worker(fifo: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, fifo], cwd=ROOT, env=environment())


async def test_the_process_and_its_children_die_with_the_worker(fifo: str) -> None:
    with other_worker(fifo) as worker:
        reader = await held(fifo)
        assert await asyncio.to_thread(reader.readline) == "ready\n"
        worker.kill()
        await all_dead(reader)


# ---------------------------------------------------------------------------------------------------- finding


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


APP = """
import asyncio, sys
import jobmill
from jobmill.worker.isolate.parent import check_isolatable, run_isolated
from msgspec import Raw

jobs = jobmill.connect("memory://")

class Point:
    x = 20

@jobs.handler(isolate=True)
def main_job() -> list[str]:
    return [__name__, Point.__module__, str(Point.x)]

async def main() -> None:
    job = jobmill.Job(id="j", name="main_job", queue="q", payload_json=Raw(b"{}"), state="running", priority=0,
                      due_ms=0, created_ms=0, updated_ms=0)
    check_isolatable(main_job)
    print(await run_isolated(main_job, job, print))
"""
GUARDED = APP + 'if __name__ == "__main__":\n    asyncio.run(main())\n'
UNGUARDED = APP + "asyncio.run(main())\n"


def python(*argv: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("argv", [("app.py",), ("-m", "app"), ("-m", "package")])
def test_a_handler_in_the_main_module(tmp_path: Path, argv: tuple[str, ...]) -> None:
    (tmp_path / "package").mkdir()
    for file in ("app.py", "package/__main__.py"):
        (tmp_path / file).write_text(GUARDED)
    output = python(*argv, cwd=tmp_path)
    assert output == """Succeeded(result_json=b'["__mp_main__","__mp_main__","20"]')\n"""


def test_a_main_module_that_would_start_another_worker_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(UNGUARDED)
    output = python("app.py", cwd=tmp_path)
    error = "the handler was not found in the isolated process: InvalidValue: isolate: expected a main file that starts"
    assert error in output


def test_a_handler_without_a_file_is_refused(tmp_path: Path) -> None:
    output = python("-c", GUARDED, cwd=tmp_path)
    assert "isolate: expected a handler in a file, which another process can import" in output


def test_a_handler_that_cannot_be_imported_is_refused() -> None:
    jobs = jobmill.connect("memory://")

    @jobs.handler(isolate=True)
    def local() -> None: ...

    anonymous = jobs.handler(isolate=True, name="anonymous")(lambda: None)
    for handler in (local, anonymous):
        with pytest.raises(InvalidValue, match="isolate: expected a handler that another process can import"):
            check_isolatable(handler)
    for found in (handlers.add, handlers.renamed, handlers.kept_elsewhere):
        check_isolatable(found)


async def test_a_job_of_a_refused_handler_is_an_error() -> None:
    jobs = jobmill.connect("memory://")

    @jobs.handler(isolate=True)
    def local() -> None: ...

    assert "a handler that another process can import" in errored(await run(local)).error


GONE = """
import jobmill

jobs = jobmill.connect("memory://")

@jobs.handler(isolate=True)
def lost() -> None: ...
"""


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handler[..., Any]:
    """A handler of a module that was deleted after this process had imported it."""
    module = tmp_path / "soon_gone.py"
    module.write_text(GONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    handler: Handler[..., Any] = importlib.import_module("soon_gone").lost
    module.unlink()
    return handler


async def test_a_handler_of_a_deleted_module_is_an_error(lost: Handler[..., Any]) -> None:
    outcome = errored(await run(lost))
    assert outcome.error.startswith("the handler was not found in the isolated process: ModuleNotFoundError")
