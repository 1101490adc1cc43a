"""`diagnose` and `fsck`: a healthy store has nothing to complain about."""

from __future__ import annotations

import pytest

from jobmill.core.changes import Hold, Pin
from jobmill.core.findings import facts_of
from jobmill.core.job import STATES
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, Report, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import claim_one, find_all, in_state, look, new, put_one, retry, settle, started

RULE = Recurrence(key="k", every_ms=60_000)


class FindingsContract:
    """Checks of the database and of its data."""

    async def test_every_finding_has_a_check_and_a_sentence(self, harness: Harness) -> None:
        await put_one(harness.store)
        findings = [*await harness.store.diagnose(), *await harness.store.fsck()]
        assert all(one.check and one.text for one in findings)
        assert all(one.remedy for one in findings if one.level != "ok")
        assert len({one.check for one in findings}) == len(findings)

    async def test_a_store_says_what_it_is(self, harness: Harness) -> None:
        await put_one(harness.store, new(payload={"a": "x" * 100_000}))
        facts = facts_of(await harness.store.diagnose())
        assert facts is not None
        assert facts.product
        assert facts.version is None or facts.version[0].isdigit()
        assert 0 <= facts.response_ms < 10_000
        assert facts.size_bytes is None or 0 < facts.size_bytes < 2**40
        assert facts.schema is None or facts.schema >= 1

    @pytest.mark.parametrize("repair", [False, True])
    async def test_healthy_data_is_left_alone(self, harness: Harness, repair: bool) -> None:
        for state in STATES:
            await in_state(harness.store, state, new(f"job-{state}", name=state, key=state, payload={"a": "x" * 5_000}))
        await put_one(harness.store, new("later", due=after(60_000), priority=3))
        await put_one(harness.store, new("recurring", key="k", recurrence=RULE, due=after(5_000)))
        await put_one(harness.store, new("held"))
        await harness.store.change(["held"], Hold(who="ada"))
        recurring = await find_all(harness.store, EVERYTHING)
        pinned = [id for id in recurring if (await look(harness.store, id)).recurrence is not None]
        await harness.store.change(pinned, Pin(Recurrence(key="k", every_ms=120_000)))
        claimed = await started(harness.store, new("retried", queue="other"))
        await harness.store.report([Report(lease=claimed.lease, lines=("a", "b"))])
        await settle(harness.store, retry(claimed, 60_000))
        await started(harness.store, new("ended lease", queue="third"))
        await harness.advance(3_600)
        ids = await find_all(harness.store, EVERYTHING)
        before = {job.id: job for job in await harness.store.get(ids) if job is not None}
        findings = await harness.store.fsck(repair=repair)
        assert [one for one in findings if one.level != "ok" or one.count or one.repaired] == []
        after_it = {job.id: job for job in await harness.store.get(ids) if job is not None}
        assert after_it == before
        assert (await claim_one(harness.store, queues=("third",))).job.id == "ended lease"
