"""`report` and `logs`: progress and log lines of a running job, written under the fence of its lease."""

from __future__ import annotations

from msgspec import structs

from jobmill.core.changes import Cancel, Remove
from jobmill.core.job import Progress
from jobmill.core.values import LogLine, Report
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim,
    claim_one,
    look,
    new,
    put,
    put_one,
    retry,
    second,
    settle,
    started,
    succeed,
)


class ReportContract:
    """Progress and log lines."""

    async def test_progress_is_stored(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        progress = Progress(12.5, "half of a 'quarter' 🦫")
        assert await harness.store.report([Report(lease=claimed.lease, progress=progress)]) == []
        assert (await look(harness.store, claimed.job.id)).progress == progress

    async def test_progress_needs_no_message(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(0))])
        assert (await look(harness.store, claimed.job.id)).progress == Progress(0, None)

    async def test_later_progress_replaces_earlier(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        for value in (10, 100, 55):
            await harness.store.report([Report(lease=claimed.lease, progress=Progress(value))])
        assert (await look(harness.store, claimed.job.id)).progress == Progress(55)

    async def test_the_later_of_two_reports_in_one_call_counts(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        reports = [Report(lease=claimed.lease, progress=Progress(value), lines=(f"at {value}",)) for value in (1, 2)]
        assert await harness.store.report(reports) == []
        assert (await look(harness.store, claimed.job.id)).progress == Progress(2)
        assert [line.text for line in await harness.store.logs(claimed.job.id)] == ["at 1", "at 2"]

    async def test_log_lines_do_not_change_progress(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(5))])
        await harness.store.report([Report(lease=claimed.lease, lines=("a line",))])
        assert (await look(harness.store, claimed.job.id)).progress == Progress(5)

    async def test_log_lines_are_kept_in_order_with_their_time(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        first = harness.store.now()
        await harness.store.report([Report(lease=claimed.lease, lines=("one", "two 'q' \u0001 🦫", ""))])
        await harness.advance(1)
        await harness.store.report([Report(lease=claimed.lease, lines=("three\nlines",))])
        assert await harness.store.logs(claimed.job.id) == [
            LogLine(first, "one"),
            LogLine(first, "two 'q' \u0001 🦫"),
            LogLine(first, ""),
            LogLine(first + 1_000, "three\nlines"),
        ]

    async def test_log_lines_keep_their_attempt_and_level(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        now, lease = harness.store.now(), claimed.lease
        of_first = [
            Report(lease=lease, progress=Progress(1), lines=("reading",), attempt=1),
            Report(lease=lease, lines=("slow", "still slow"), attempt=1, level="warning"),
            Report(lease=lease, lines=("skipped",), attempt=1, level="debug"),
            Report(lease=lease, lines=("no answer",), attempt=1, level="error"),
        ]
        assert await harness.store.report(of_first) == []
        await settle(harness.store, retry(claimed, 0))
        again = await claim_one(harness.store)
        await harness.store.report([Report(lease=again.lease, lines=("12th",), attempt=12, level="warning")])
        await harness.store.report([Report(lease=again.lease, lines=("of an older version",))])
        expected = [
            LogLine(now, "reading", 1),
            LogLine(now, "slow", 1, "warning"),
            LogLine(now, "still slow", 1, "warning"),
            LogLine(now, "skipped", 1, "debug"),
            LogLine(now, "no answer", 1, "error"),
            LogLine(now, "12th", 12, "warning"),
            LogLine(now, "of an older version", None, "info"),
        ]
        assert [structs.replace(line, at_ms=now) for line in await harness.store.logs(claimed.job.id)] == expected
        # A part of the lines of one report.
        assert [line.level for line in await harness.store.logs(claimed.job.id, 5)] == [
            line.level for line in expected[-5:]
        ]

    async def test_a_thousand_short_reports_keep_their_attempts(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        reports = [Report(lease=claimed.lease, lines=(str(n),), attempt=100 + n % 3) for n in range(1_300)]
        assert await harness.store.report(reports) == []
        lines = await harness.store.logs(claimed.job.id)
        assert [(line.text, line.attempt) for line in lines] == [(str(n), 100 + n % 3) for n in range(300, 1_300)]

    async def test_the_last_thousand_lines_are_kept(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, lines=tuple(map(str, range(700))))])
        await harness.store.report([Report(lease=claimed.lease, lines=tuple(map(str, range(700, 1_500))))])
        lines = await harness.store.logs(claimed.job.id, 5_000)
        assert [line.text for line in lines] == [str(number) for number in range(500, 1_500)]

    async def test_each_job_keeps_its_own_thousand_lines(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        loud, quiet = await claim(harness.store)
        await harness.store.report([Report(lease=quiet.lease, lines=("mine",))])
        await harness.store.report([Report(lease=loud.lease, lines=("x",) * 1_200)])
        assert [line.text for line in await harness.store.logs(quiet.job.id)] == ["mine"]
        assert len(await harness.store.logs(loud.job.id)) == 1_000

    async def test_logs_returns_the_last_lines_oldest_first(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, lines=("one", "two", "three"))])
        assert [line.text for line in await harness.store.logs(claimed.job.id, 2)] == ["two", "three"]

    async def test_logs_outlive_their_run(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, lines=("one",))])
        await settle(harness.store, succeed(claimed))
        assert [line.text for line in await harness.store.logs(claimed.job.id)] == ["one"]

    async def test_a_job_that_logged_nothing_has_no_lines(self, harness: Harness) -> None:
        assert await harness.store.logs(await put_one(harness.store)) == []
        assert await harness.store.logs("never-was") == []

    async def test_the_lines_of_a_removed_job_are_removed(self, harness: Harness) -> None:
        claimed = await started(harness.store, new("again"))
        await harness.store.report([Report(lease=claimed.lease, lines=("old",))])
        await settle(harness.store, succeed(claimed))
        await harness.store.change([claimed.job.id], Remove())
        assert await harness.store.logs(claimed.job.id) == []
        await put_one(harness.store, new("again"))
        assert await harness.store.logs(claimed.job.id) == []

    async def test_reporting_nothing_returns_no_ids(self, harness: Harness) -> None:
        assert await harness.store.report([]) == []

    async def test_reporting_returns_the_lost_leases_and_writes_nothing_for_them(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(4)])
        held, wrong, cancelled, settled = await claim(harness.store)
        await harness.store.change([cancelled.job.id], Cancel())
        await settle(harness.store, succeed(settled))
        leases = [held.lease, structs.replace(wrong.lease, token="guessed"), cancelled.lease, settled.lease]
        reports = [Report(lease=lease, progress=Progress(50), lines=("line",)) for lease in leases]
        lost = [wrong.job.id, cancelled.job.id, settled.job.id]
        assert sorted(await harness.store.report(reports)) == sorted(lost)
        for id in lost:
            assert (await look(harness.store, id)).progress is None
            assert await harness.store.logs(id) == []
        assert (await look(harness.store, held.job.id)).progress == Progress(50)

    async def test_a_report_exactly_at_the_end_of_the_lease_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        report = Report(lease=claimed.lease, progress=Progress(50), lines=("late",))
        assert await harness.store.report([report]) == [claimed.job.id]
        assert (await look(harness.store, claimed.job.id)).progress is None

    async def test_a_report_after_another_claim_is_lost(self, harness: Harness) -> None:
        late = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        await claim_one(harness.store)
        assert await harness.store.report([Report(lease=late.lease, lines=("late",))]) == [late.job.id]
        assert await harness.store.logs(late.job.id) == []

    async def test_a_report_does_not_extend_its_lease(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(10)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(1), lines=("x",))])
        await harness.advance(5)
        assert (await claim_one(harness.store)).job.crashes == 1

    async def test_another_connection_sees_reports(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(7), lines=("x",))])
        async with second(harness) as other:
            assert (await look(other, claimed.job.id)).progress == Progress(7)
            assert len(await other.logs(claimed.job.id)) == 1
