"""Isolated jobs: real processes that crash, and nothing is left of them.

All tests run in every mode: forked for each attempt (`isolate=True`), reused ("pool"), a new interpreter ("spawn").
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import jobmill
from jobmill.core.job import Attempt, Job, JobOptions, Keep, LogEntry, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.errors import InvalidValue
from jobmill.handlers.context import ReportFunction
from jobmill.handlers.handler import Handler
from jobmill.handlers.options import Isolate
from jobmill.worker.isolate import attempt, server_link
from jobmill.worker.isolate import pool as pooling
from jobmill.worker.isolate.find import check_isolatable
from jobmill.worker.isolate.isolation import Isolation
from tests.helpers import until
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


class Runs:
    """Runs handlers in one mode."""

    def __init__(self, mode: Isolate) -> None:
        self.mode = mode
        self.isolation = Isolation(handlers.jobs.handlers)

    async def __call__(self, handler: Handler[..., Any], payload: object = None, **fields: Any) -> Outcome:
        return await self.reporting(lambda said: None, handler, payload, **fields)

    async def reporting(
        self, report: ReportFunction, handler: Handler[..., Any], payload: object = None, **fields: Any
    ) -> Outcome:
        handler.isolate = self.mode
        return await self.isolation.run(handler, job_of(handler, payload, **fields), report)


MODES: dict[str, Isolate] = {"fork": True, "pool": "pool", "spawn": "spawn"}


@pytest.fixture(scope="module", params=MODES)
async def run(request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    runs = Runs(MODES[request.param])
    yield runs
    await runs.isolation.close()


@pytest.fixture(params=MODES)
async def fresh(request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    """With a fork server of its own."""
    runs = Runs(MODES[request.param])
    yield runs
    await runs.isolation.close()


@pytest.fixture(params=["fork", "pool"])
async def forking(request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    """The modes that have a fork server, which is not shared with other tests."""
    runs = Runs(MODES[request.param])
    yield runs
    await runs.isolation.close()


@pytest.fixture
async def pool() -> AsyncIterator[Runs]:
    """A pool of its own."""
    runs = Runs("pool")
    yield runs
    await runs.isolation.close()


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


async def test_async_and_sync_handlers_return(run: Runs) -> None:
    assert result(await run(handlers.add, {"a": 1, "b": 2})) == 3
    child = result(await run(handlers.pid))
    assert child != os.getpid()
    assert result(await run(handlers.renamed)) == "found"
    assert result(await run(handlers.kept_elsewhere)) == "found by looking around"


async def test_the_context_has_the_whole_job(run: Runs) -> None:
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
async def test_an_exception_comes_with_its_traceback(run: Runs, handler: Handler[..., Any]) -> None:
    outcome = errored(await run(handler, {"message": "it broke \N{SNOWMAN}"}))
    assert outcome.error == "ValueError: it broke \N{SNOWMAN}"
    assert outcome.traceback is not None
    assert "isolated_handlers.py" in outcome.traceback
    assert "isolated_child.py" not in outcome.traceback
    assert not outcome.final


async def test_fail_snooze_and_a_backoff_function(run: Runs) -> None:
    failed = errored(await run(handlers.gives_up))
    assert (failed.error, failed.final) == ("never again", True)
    assert await run(handlers.snoozes) == Snoozed(5_000)
    assert errored(await run(handlers.raises_with_own_backoff, errors=1)).delay_ms == 200_000
    assert errored(await run(handlers.system_exit)).error == "SystemExit: 3"


async def test_invalid_payloads_and_results_are_errors(run: Runs) -> None:
    misfit = errored(await run(handlers.add, {"a": "one", "b": 2}))
    assert misfit.final
    assert misfit.error_type == "jobmill.errors.InvalidValue"
    assert "Expected `int`, got `str`" in misfit.error
    unstorable = errored(await run(handlers.not_json))
    assert unstorable.final
    assert "the handler finished, but its result cannot be stored" in unstorable.error


async def test_a_result_that_is_dropped_on_purpose(run: Runs) -> None:
    assert await run(handlers.drops_its_result) == Succeeded()


async def test_errors_that_are_retried_or_not_by_their_type(run: Runs) -> None:
    assert not errored(await run(handlers.retries_by_type, {"kind": "ConnectionResetError"})).final
    assert errored(await run(handlers.retries_by_type, {"kind": "ValueError"})).final


# ---------------------------------------------------------------------------------------------------- deaths


async def test_a_segfault_is_an_error_of_the_job_with_its_traceback(run: Runs) -> None:
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
        (handlers.die_by, {"signum": signal.SIGTERM}, "process ended by SIGTERM"),
    ],
)
async def test_other_ways_a_process_can_die(run: Runs, handler: Handler[..., Any], payload: object, error: str) -> None:
    assert errored(await run(handler, payload)) == Errored(error=error)


async def test_a_kill_by_somebody_else(run: Runs) -> None:
    error = errored(await run(handlers.die_by, {"signum": signal.SIGKILL})).error
    # Until a new interpreter runs, it has the memory of the tests, so its own is not known.
    used = "" if run.mode == "spawn" else r" it used up to [\d,]+ MB"
    assert re.fullmatch(rf"process killed by SIGKILL \(out of memory\?{used}\)", error)


async def test_what_a_killed_process_used(run: Runs) -> None:
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_000 + 100
    error = errored(await run(handlers.die_by, {"signum": signal.SIGKILL, "mb": mb})).error
    shown = re.search(r"it used up to ([\d,]+) MB", error)
    assert shown is not None, error
    assert mb <= int(shown[1].replace(",", "")) < mb * 2


async def test_a_forked_process_does_not_hide_the_death(run: Runs) -> None:
    assert errored(await run(handlers.fork_and_segfault)).error == "process ended by SIGSEGV"


async def test_an_invalid_answer_is_an_error(run: Runs) -> None:
    assert errored(await run(handlers.garbles)).error.startswith("process sent a response that cannot be read: ")


async def test_a_process_that_cannot_be_started_is_an_error(fresh: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/nowhere/python")
        assert errored(await fresh(handlers.pid)).error.startswith("process could not be started: ")
    assert result(await fresh(handlers.pid))


async def test_no_files_left_is_an_error(fresh: Runs) -> None:
    assert result(await fresh(handlers.pid))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        # The pool has an idle process; a second one cannot be started.
        ends = await asyncio.gather(*(fresh(handlers.pid) for _ in range(2)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "process could not be started: [Errno 24] Too many open files" in errored(ends[1]).error
    assert result(await fresh(handlers.pid))


async def test_processes_that_a_job_leaves_running_end_with_it(
    run: Runs, fifo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.create_task(run(handlers.leaves_a_process, {"fifo": fifo}))
    reader = await held(fifo)
    assert result(await running) == "done"
    await all_dead(reader)
    monkeypatch.setattr(attempt, "GRACE_S", 0.1)
    assert result(await run(handlers.leaves_a_thread)) == "done"


# ---------------------------------------------------------------------------------------------------- pipes


async def test_progress_and_log_lines_arrive_while_the_job_runs(run: Runs, fifo: str) -> None:
    told: asyncio.Queue[Progress | LogEntry] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(said: Progress | LogEntry) -> None:
        loop.call_soon_threadsafe(told.put_nowait, said)

    running = asyncio.create_task(run.reporting(tell, handlers.tells, {"fifo": fifo}))
    assert await asyncio.wait_for(told.get(), 10) == Progress(50, "half ?")
    assert await asyncio.wait_for(told.get(), 10) == LogEntry("a line", "warning")
    assert not running.done()
    await asyncio.to_thread(Path(fifo).write_text, "heard")
    assert result(await running) == "heard"


async def test_payload_and_result_of_five_megabytes(run: Runs) -> None:
    text = "abcdé" * 1_000_000
    assert result(await run(handlers.mirror, {"text": text})) == text[::-1]


# ---------------------------------------------------------------------------------------------------- stopping


async def test_cancelling_ends_the_process_and_its_children(run: Runs, fifo: str) -> None:
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo}))
    reader = await held(fifo)
    await asyncio.to_thread(reader.readline)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_dead(reader)


async def test_a_process_that_ignores_sigterm_is_killed(run: Runs, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "GRACE_S", 0.1)
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo, "stubborn": True}))
    reader = await held(fifo)
    await asyncio.to_thread(reader.readline)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_dead(reader)


async def test_cancelling_a_second_time_kills_at_once(run: Runs, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "GRACE_S", 600)
    running = asyncio.create_task(run(handlers.waits, {"fifo": fifo, "stubborn": True}))
    reader = await held(fifo)
    await asyncio.to_thread(reader.readline)
    running.cancel()
    await asyncio.wait([running], timeout=0.05)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    await all_dead(reader)


async def test_an_outcome_counts_even_if_the_wait_for_the_process_is_cancelled(
    run: Runs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()
    waited = attempt.wait_over

    async def watched(future: asyncio.Future[None], timeout: float | None = None) -> bool:
        answered.set()
        return await waited(future, timeout)

    monkeypatch.setattr(attempt, "GRACE_S", 600)
    monkeypatch.setattr(attempt, "wait_over", watched)
    running = asyncio.create_task(run(handlers.leaves_a_thread))
    await asyncio.wait_for(answered.wait(), 10)
    running.cancel()
    assert result(await asyncio.wait_for(running, 10)) == "done"


async def test_cancelling_while_the_process_starts(run: Runs) -> None:
    for _ in range(3):
        running = asyncio.create_task(run(handlers.pid))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.slow
async def test_nothing_is_left_after_many_runs(fresh: Runs) -> None:
    async def many() -> list[Outcome]:
        kinds = [handlers.pid] * 8 + [handlers.segfault] * 2
        return await asyncio.gather(*(fresh(handler) for handler in kinds))

    gc.collect()  # what earlier tests have left
    before = len(os.listdir("/dev/fd"))
    pids = [result(one) for _ in range(3) for one in await many() if isinstance(one, Succeeded)]
    assert len(pids) == 24
    if fresh.mode == "pool":
        assert len(set(pids)) < 24
    else:
        assert len(set(pids)) == 24
        assert not any(map(is_alive, pids))
    await fresh.isolation.close()
    await until(lambda: not any(map(is_alive, pids)))
    assert len(os.listdir("/dev/fd")) <= before


def is_alive(pid: int) -> bool:
    """A zombie that this process has not reaped counts as alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


WORKER = """
import asyncio, sys
from tests.worker.test_isolate import MODES, Runs, handlers
asyncio.run(Runs(MODES[sys.argv[1]])(handlers.waits, {"fifo": sys.argv[2], "stubborn": True}))
"""


def other_worker(mode: str, fifo: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, mode, fifo], cwd=ROOT, env=environment())


@pytest.mark.parametrize("mode", MODES)
async def test_all_processes_die_with_the_worker(mode: str, fifo: str) -> None:
    with other_worker(mode, fifo) as worker:
        reader = await held(fifo)
        parent = int(await asyncio.to_thread(reader.readline))
        assert (parent == worker.pid) == (mode == "spawn")
        worker.kill()
        await all_dead(reader)
        await asyncio.to_thread(worker.wait)
        await until(lambda: not is_alive(parent))


# ---------------------------------------------------------------------------------------------------- memory


async def test_memory_is_fresh_except_in_a_pool(fresh: Runs) -> None:
    seen = [result(await fresh(handlers.counts)) for _ in range(3)]
    assert [calls for calls, _ in seen] == ([1, 2, 3] if fresh.mode == "pool" else [1, 1, 1])
    assert len({pid for _, pid in seen}) == (1 if fresh.mode == "pool" else 3)


async def test_random_numbers_differ(run: Runs) -> None:
    seen = [number for _ in range(3) for number in result(await run(handlers.numbers))]
    assert len(set(seen)) == 6


async def test_no_files_of_the_worker_are_open(fresh: Runs, tmp_path: Path) -> None:
    """Not even files that the worker opened before it started the fork server, or before the attempt."""

    async def leaked() -> list[str]:
        outcomes = await asyncio.gather(*(fresh(handlers.open_files) for _ in range(3)))
        return [path for one in outcomes for path in result(one) if path in ours or ".txt" in path]

    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "open.txt").open("w"):
        os.set_inheritable(server.fileno(), True)
        ours = {os.readlink(f"/proc/self/fd/{server.fileno()}")}
        assert await leaked() == []
        with socket.create_server(("127.0.0.1", 0)) as later:
            ours.add(os.readlink(f"/proc/self/fd/{later.fileno()}"))
            assert await leaked() == []


async def test_a_process_has_only_its_own_files(forking: Runs) -> None:
    """Its connection, the pipe that ends it, and the file of its crash; none of other processes."""
    seen = await asyncio.gather(*(forking(handlers.open_files) for _ in range(5)))
    for one in seen:
        assert sorted(path.lstrip("/").split(":")[0] for path in result(one)[3:]) == ["memfd", "pipe", "socket"]


# ---------------------------------------------------------------------------------------------------- the fork server


async def test_a_killed_fork_server_is_an_error_and_is_started_again(forking: Runs, fifo: str) -> None:
    first = result(await forking(handlers.server_pid))
    running = asyncio.create_task(forking(handlers.waits, {"fifo": fifo, "stubborn": True}))
    reader = await held(fifo)
    assert int(await asyncio.to_thread(reader.readline)) == first
    os.kill(first, signal.SIGKILL)
    error = errored(await asyncio.wait_for(running, 10)).error
    assert error == "process killed, because the fork server ended (killed by SIGKILL: out of memory?)"
    await all_dead(reader)
    second = result(await forking(handlers.server_pid))
    assert second != first
    assert not is_alive(first)


async def test_a_fork_server_that_hangs_is_killed(
    forking: Runs, fifo: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempt, "GRACE_S", 0.05)
    monkeypatch.setattr(server_link, "STUCK_S", 0.05)
    running = asyncio.create_task(forking(handlers.waits, {"fifo": fifo}))
    reader = await held(fifo)
    os.kill(int(await asyncio.to_thread(reader.readline)), signal.SIGSTOP)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    await all_dead(reader)
    assert "did not end a process within 0.05 s; killing the server" in caplog.text
    assert result(await forking(handlers.pid))


def module_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Any:
    """Import a module of a file that is written now."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)


ONLY_IN_SERVER = """
import os, jobmill
from pathlib import Path
from {library} import value
jobs = jobmill.connect("memory://")
in_server = "jobmill-fork-server" in Path("/proc/self/cmdline").read_text()

@jobs.handler(isolate={mode!r})
def server_pid() -> int:
    return os.getppid()
"""


@pytest.fixture(params=[True, "pool"], ids=["fork", "pool"])
def forking_mode(request: pytest.FixtureRequest) -> Isolate:
    mode: Isolate = request.param
    return mode


async def test_an_import_that_starts_threads(
    forking_mode: Isolate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = f"starts_threads_{forking_mode}"
    (tmp_path / f"{library}.py").write_text(
        "import threading\nvalue = threading.Event()\n"
        "threading.Thread(target=value.wait, args=(600,), daemon=True).start()\n"
    )
    text = ONLY_IN_SERVER.format(library=library, mode=forking_mode)
    module = module_of(tmp_path, monkeypatch, f"uses_{library}", text)
    isolation = Isolation(module.jobs.handlers)
    for _ in range(2):
        outcome = await isolation.run(module.server_pid, job_of(module.server_pid), lambda said: None)
        assert result(outcome) == os.getpid()  # spawned
    module.value.set()
    assert [record.getMessage() for record in caplog.records] == [
        f"isolated handlers: the import of {library} starts threads, and a process with threads cannot be forked "
        'safely; each attempt starts a new interpreter instead, as with isolate="spawn"'
    ]
    await isolation.close()


async def test_an_import_that_ends_the_fork_server(
    forking_mode: Isolate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = f"harmless_{forking_mode}"
    (tmp_path / f"{library}.py").write_text("value = 1\n")
    text = ONLY_IN_SERVER.format(library=library, mode=forking_mode) + "if in_server: os.abort()\n"
    module = module_of(tmp_path, monkeypatch, f"aborts_{forking_mode}", text)
    isolation = Isolation(module.jobs.handlers)
    outcome = await isolation.run(module.server_pid, job_of(module.server_pid), lambda said: None)
    assert result(outcome) == os.getpid()
    (record,) = caplog.records
    assert "the fork server ended while it imported the handlers (ended by SIGABRT)" in record.getMessage()
    await isolation.close()


async def test_a_fork_that_is_refused(forking_mode: Isolate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = f"plain_{forking_mode}"
    (tmp_path / f"{library}.py").write_text("value = 1\n")
    text = ONLY_IN_SERVER.format(library=library, mode=forking_mode) + (
        "if in_server:\n    def refuse(): raise BlockingIOError(11, 'no more processes')\n    os.fork = refuse\n"
    )
    module = module_of(tmp_path, monkeypatch, f"refuses_{forking_mode}", text)
    isolation = Isolation(module.jobs.handlers)
    for _ in range(2):
        outcome = await isolation.run(module.server_pid, job_of(module.server_pid), lambda said: None)
        assert errored(outcome).error.startswith("process could not be started: [Errno 11] ")
    await isolation.close()


async def test_numpy_does_not_repeat_its_numbers(
    forking_mode: Isolate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with NumPy's names: its global generator is not seeded again by a fork."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("value = 1\n")
    (tmp_path / "numpy" / "random.py").write_text("import os\nseeds = [0]\ndef seed(): seeds.append(os.getpid())\n")
    text = ONLY_IN_SERVER.format(library="numpy", mode=forking_mode) + (
        f"from numpy import random\n@jobs.handler(isolate={forking_mode!r})\ndef seeds(): return random.seeds\n"
    )
    module = module_of(tmp_path, monkeypatch, f"uses_numpy_{forking_mode}", text)
    isolation = Isolation(module.jobs.handlers)
    seen = result(await isolation.run(module.seeds, job_of(module.seeds), lambda said: None))
    await isolation.close()
    assert len(seen) == 2
    for name in ("numpy", "numpy.random"):
        del sys.modules[name]


# ---------------------------------------------------------------------------------------------------- the pool


async def test_a_pool_has_as_many_processes_as_run_at_once(pool: Runs) -> None:
    for number in (3, 2, 3):
        pids = [result(one) for one in await asyncio.gather(*(pool(handlers.pid) for _ in range(number)))]
        assert len(set(pids)) <= number
    both = await asyncio.gather(pool(handlers.pid), pool(handlers.pid))
    assert result(both[0]) != result(both[1])


async def test_a_pool_replaces_a_process_after_a_number_of_attempts(
    pool: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "MAX_ATTEMPTS", 2)
    pids = [result(await pool(handlers.pid)) for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    await until(lambda: not is_alive(pids[0]))


async def test_a_pool_replaces_a_process_that_has_grown(pool: Runs) -> None:
    pids = [result(await pool(handlers.pid)), result(await pool(handlers.grows)), result(await pool(handlers.pid))]
    assert pids[0] == pids[1] != pids[2]
    await until(lambda: not is_alive(pids[0]))


@pytest.mark.parametrize(
    ("handler", "payload"),
    [
        (handlers.segfault, {}),
        (handlers.exit_with, {"code": 0}),
        (handlers.leaves_a_daemon_thread, {}),
        (handlers.leaves_a_daemon, {"fifo": "/dev/null"}),
    ],
    ids=lambda value: value.name if isinstance(value, Handler) else None,
)
async def test_a_pool_replaces_a_process_that_cannot_be_used_again(
    pool: Runs, handler: Handler[..., Any], payload: object
) -> None:
    first = result(await pool(handlers.pid))
    await pool(handler, payload)
    assert not is_alive(first)
    assert result(await pool(handlers.pid)) != first


async def test_a_pool_replaces_a_process_after_a_cancellation(pool: Runs, fifo: str) -> None:
    first = result(await pool(handlers.pid))
    running = asyncio.create_task(pool(handlers.waits, {"fifo": fifo}))
    reader = await held(fifo)
    await asyncio.to_thread(reader.readline)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_dead(reader)
    assert result(await pool(handlers.pid)) != first


async def test_processes_without_a_parent_end_with_their_job(run: Runs, fifo: str) -> None:
    running = asyncio.create_task(run(handlers.leaves_a_daemon, {"fifo": fifo}))
    reader = await held(fifo)
    result(await running)
    await all_dead(reader)


async def test_idle_processes_of_a_pool_end(pool: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "IDLE_S", 0.05)
    both = await asyncio.gather(pool(handlers.pid), pool(handlers.pid))
    await until(lambda: not any(is_alive(result(one)) for one in both))
    assert result(await pool(handlers.pid))


async def test_a_process_of_a_pool_that_dies_while_idle_is_no_error(pool: Runs) -> None:
    first = result(await pool(handlers.pid))
    os.kill(first, signal.SIGKILL)
    await until(lambda: not is_alive(first))
    assert result(await pool(handlers.pid)) != first


async def test_an_attempt_does_not_see_what_an_earlier_one_has_changed(run: Runs) -> None:
    before = result(await run(handlers.state))
    changed = result(await run(handlers.changes_state))
    after = result(await run(handlers.state))
    assert after[:-1] == before[:-1]
    if run.mode == "pool":
        assert changed in (before[-1], after[-1])


# ---------------------------------------------------------------------------------------------------- finding


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


APP = """
import asyncio, sys
import jobmill
from jobmill.worker.isolate.find import check_isolatable
from jobmill.worker.isolate.isolation import Isolation
from msgspec import Raw

jobs = jobmill.connect("memory://")

class Point:
    x = 20

@jobs.handler(isolate=MODE)
def main_job() -> list[str]:
    return [__name__, Point.__module__, str(Point.x)]

async def main() -> None:
    job = jobmill.Job(id="j", name="main_job", queue="q", payload_json=Raw(b"{}"), state="running", priority=0,
                      due_ms=0, created_ms=0, updated_ms=0)
    check_isolatable(main_job)
    isolation = Isolation(jobs.handlers)
    print(await isolation.run(main_job, job, print))
    await isolation.close()
"""
GUARDED = APP + 'if __name__ == "__main__":\n    asyncio.run(main())\n'
UNGUARDED = APP + "asyncio.run(main())\n"


def python(*argv: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("argv", [("app.py",), ("-m", "app"), ("-m", "package")])
def test_a_handler_in_the_main_module(tmp_path: Path, argv: tuple[str, ...], mode: str) -> None:
    (tmp_path / "package").mkdir()
    for file in ("app.py", "package/__main__.py"):
        (tmp_path / file).write_text(GUARDED.replace("MODE", repr(MODES[mode])))
    output = python(*argv, cwd=tmp_path)
    assert output == """Succeeded(result_json=b'["__mp_main__","__mp_main__","20"]')\n"""


@pytest.mark.parametrize("mode", MODES)
def test_a_main_module_that_would_start_another_worker_is_an_error(tmp_path: Path, mode: str) -> None:
    (tmp_path / "app.py").write_text(UNGUARDED.replace("MODE", repr(MODES[mode])))
    output = python("app.py", cwd=tmp_path)
    error = "the handler was not found in the isolated process: InvalidValue: isolate: expected a main file that starts"
    assert error in output


def test_a_handler_without_a_file_is_refused(tmp_path: Path) -> None:
    output = python("-c", GUARDED.replace("MODE", "True"), cwd=tmp_path)
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


async def test_a_job_of_a_refused_handler_is_an_error(run: Runs) -> None:
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


async def test_a_handler_of_a_deleted_module_is_an_error(run: Runs, lost: Handler[..., Any]) -> None:
    outcome = errored(await run(lost))
    assert outcome.error.startswith("the handler was not found in the isolated process: ModuleNotFoundError")
