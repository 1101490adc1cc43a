"""Log lines of the application inside a run: they carry the fields of its job, and can go to the job's log."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.core.limits import MAX_LINE_BYTES
from jobmill.worker.running import Run
from jobmill.worker.worker import Worker
from tests.worker import isolated_handlers

FIELDS = ("job_id", "job_name", "queue", "attempt", "fence", "worker")

log = logging.getLogger("shop.mail")


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


class Collected(logging.Handler):
    """Keeps the records with what they hold when they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, dict[str, Any]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[record.getMessage()] = {field: vars(record)[field] for field in FIELDS if field in vars(record)}


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    collected.addFilter(jobmill.JobLogFilter())
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(collected)
    root.setLevel(logging.INFO)
    yield collected
    root.removeHandler(collected)
    root.setLevel(before)


@pytest.fixture
def copied() -> Iterator[jobmill.JobLogHandler]:
    handler = jobmill.JobLogHandler(logging.INFO)
    yield handler
    for logger in (log, logging.getLogger("jobmill"), logging.getLogger()):
        logger.removeHandler(handler)


async def lines_of(jobs: Client, id: str) -> list[str]:
    return [line.text for line in await jobs.logs(id)]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_lines_carry_the_job_that_runs(jobs: Client, collected: Collected, kind: str) -> None:
    barrier, both = asyncio.Barrier(2), threading.Barrier(2)

    if kind == "async":

        @jobs.handler(name="mail", queue="post")
        async def mail(to: str) -> None:
            await barrier.wait()
            log.info("to %s", to)
            await asyncio.create_task(inner(to))

    else:

        @jobs.handler(name="mail", queue="post")
        def mail(to: str) -> None:
            both.wait(10)
            log.info("to %s", to)
            log.info("inner %s", to)

    async def inner(to: str) -> None:
        log.info("inner %s", to)

    async with Worker(jobs, name="press-1"):
        ada, lin = [await jobs.enqueue("mail", {"to": to}) for to in ("ada", "lin")]
        await ada.result(timeout=10)
        await lin.result(timeout=10)
        log.info("outside")
    for name, job in (("ada", ada), ("lin", lin)):
        expected = dict(zip(FIELDS, (job.id, "mail", "post", 1, 1, "press-1"), strict=True))
        assert collected.lines[f"to {name}"] == expected
        assert collected.lines[f"inner {name}"] == expected
    assert collected.lines["outside"] == {}


async def test_an_attempt_and_its_fence(jobs: Client, collected: Collected) -> None:
    @jobs.handler(max_attempts=2, backoff="1ms")
    async def flaky(context: jobmill.Context) -> None:
        log.info("attempt %d", context.attempt)
        if context.attempt == 1:
            raise ValueError

    async with Worker(jobs):
        await (await flaky.enqueue()).result(timeout=10)
    assert [
        (line["attempt"], line["fence"]) for line in map(collected.lines.get, ("attempt 1", "attempt 2")) if line
    ] == [
        (1, 1),
        (2, 2),
    ]


async def test_fields_of_the_record_stay_and_lines_of_jobmill_get_none(jobs: Client, collected: Collected) -> None:
    @jobs.handler
    async def busy() -> None:
        log.info("own", extra={"queue": "mine"})
        logging.getLogger("jobmill.postgres").info("listening again")

    async with Worker(jobs):
        enqueued = await busy.enqueue()
        await enqueued.result(timeout=10)
    assert (collected.lines["own"]["queue"], collected.lines["own"]["job_id"]) == ("mine", enqueued.id)
    assert collected.lines["listening again"] == {}


async def test_a_worker_changes_nothing_of_the_logging_of_its_program(jobs: Client) -> None:
    @jobs.handler
    async def fine() -> None: ...

    def state() -> tuple[Any, ...]:
        loggers = [logging.getLogger(name) for name in (None, "jobmill", "shop.mail")]
        return (logging.getLogRecordFactory(), *((one.level, list(one.handlers), list(one.filters)) for one in loggers))

    before = state()
    async with Worker(jobs):
        await (await fine.enqueue()).result(timeout=10)
        assert state() == before
    assert state() == before


# ---------------------------------------------------------------------------------------------------- the job's log


async def test_lines_of_a_logger_go_to_the_log_of_the_job(jobs: Client, copied: jobmill.JobLogHandler) -> None:
    log.addHandler(copied)
    log.setLevel(logging.INFO)

    @jobs.handler
    async def mail(context: jobmill.Context) -> None:
        context.log("first")
        log.info("to %s", "ada")
        log.debug("not shown")
        logging.getLogger("shop").error("another logger")
        try:
            raise ValueError("no address")
        except ValueError:
            log.exception("cannot send")

    @jobs.handler
    def in_thread() -> None:
        log.warning("x" * MAX_LINE_BYTES * 2)

    async with Worker(jobs):
        mailed, threaded = await mail.enqueue(), await in_thread.enqueue()
        await mailed.result(timeout=10)
        await threaded.result(timeout=10)
        log.info("outside of a run")
    first, second, third = await lines_of(jobs, mailed.id)
    assert (first, second) == ("first", "to ada")
    assert third.startswith("cannot send\nTraceback")
    assert third.endswith("ValueError: no address")
    assert [line.level for line in await jobs.logs(mailed.id)] == ["info", "info", "error"]
    assert [line.level for line in await jobs.logs(threaded.id)] == ["warning"]
    (line,) = await lines_of(jobs, threaded.id)
    assert len(line.encode()) <= MAX_LINE_BYTES


async def test_lines_of_jobmill_are_not_copied(jobs: Client, copied: jobmill.JobLogHandler) -> None:
    logging.getLogger().addHandler(copied)
    logging.getLogger("jobmill").addHandler(copied)

    @jobs.handler(max_attempts=1, backoff=lambda attempt, error: 1 / 0)  # logged inside the run
    async def fails() -> None:
        logging.getLogger("jobmill").error("a line of Jobmill")
        log.error("mine")
        raise ValueError

    async with Worker(jobs):
        enqueued = await fails.enqueue()
        with pytest.raises(jobmill.JobFailed):
            await enqueued.result(timeout=10)
    assert await lines_of(jobs, enqueued.id) == ["mine"]


async def test_a_line_that_cannot_be_formatted_does_not_end_the_run(
    jobs: Client, copied: jobmill.JobLogHandler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.addHandler(copied)
    monkeypatch.setattr(log, "propagate", False)

    @jobs.handler
    async def wrong() -> int:
        log.error("%d", "no number")
        return 1

    async with Worker(jobs):
        assert await (await wrong.enqueue()).result(timeout=10) == 1
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize(
    "handler", [isolated_handlers.logs_lines, isolated_handlers.logs_lines_async], ids=["sync", "async"]
)
async def test_lines_of_an_isolated_process(handler: jobmill.Handler[[], None]) -> None:
    async with Worker(isolated_handlers.jobs, name="press-1"):
        enqueued = await handler.enqueue()
        await enqueued.result(timeout=20)
    assert await lines_of(isolated_handlers.jobs, enqueued.id) == [
        f"{enqueued.id} {handler.name} default 1 1 press-1: sent untraced"
    ]


async def test_a_run_leaves_no_reference_cycle(jobs: Client) -> None:
    @jobs.handler
    async def fine() -> None: ...

    def runs() -> int:
        return sum(type(one) is Run for one in gc.get_objects())  # isinstance would wake lazy objects

    jobmill.JobLogFilter()  # from now on the context of a task has its run
    gc.collect()
    gc.disable()
    try:
        before = runs()
        async with Worker(jobs):
            for enqueued in [await fine.enqueue() for _ in range(20)]:
                await enqueued.result(timeout=10)
        assert runs() == before
    finally:
        gc.enable()
