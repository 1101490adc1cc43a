"""`audit` and `audit_log`: who changed what."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter
from jobmill.errors import InvalidValue
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import second, turns

ALL = AuditFilter()


class AuditContract:
    """Entries and their pages."""

    async def test_an_entry_is_returned_with_the_time_of_the_store(self, harness: Harness) -> None:
        full = AuditEntry(
            id="e1",
            who="ada",
            what="cancel",
            queue="mail",
            ids=("job-1", "job-2"),
            filter={"states": ["waiting"], "tenant": "acme", "limit": 3},
            count=2,
            note="wrong letters: “ö”",
        )
        await harness.store.audit([full, AuditEntry(id="e2", who="code", what="mark")])
        now_ms = harness.store.now()
        expected = [
            AuditEntry(id="e2", who="code", what="mark", at_ms=now_ms),
            structs.replace(full, at_ms=now_ms),
        ]
        page = await harness.store.audit_log(ALL)
        assert sorted(page.entries, key=lambda one: one.id, reverse=True) == expected
        assert page.next is None
        async with second(harness) as other:
            assert (await other.audit_log(ALL)).entries == page.entries

    async def test_the_newest_entries_come_first(self, harness: Harness) -> None:
        for number in range(4):
            await harness.store.audit([AuditEntry(id=f"e{number}", who="ada", what="mark")])
            await harness.advance(1)
        assert [one.id for one in (await harness.store.audit_log(ALL)).entries] == ["e3", "e2", "e1", "e0"]

    async def test_pages_have_every_entry_once(self, harness: Harness) -> None:
        ids = [f"e{number:02}" for number in range(11)]
        await harness.store.audit([AuditEntry(id=id, who="ada", what="mark") for id in ids[:6]])
        await harness.advance(1)
        await harness.store.audit([AuditEntry(id=id, who="ada", what="mark") for id in ids[6:]])
        found, cursor = list[str](), None
        for _ in turns():
            page = await harness.store.audit_log(ALL, cursor, 3)
            assert len(page.entries) <= 3
            found += [one.id for one in page.entries]
            cursor = page.next
            if cursor is None:
                break
        assert sorted(found) == ids
        assert set(found[:5]) == set(ids[6:])

    async def test_an_entry_that_is_written_twice_stays_one(self, harness: Harness) -> None:
        entry = AuditEntry(id="e1", who="ada", what="mark")
        await harness.store.audit([entry])
        written_ms = harness.store.now()
        await harness.advance(1)
        await harness.store.audit([entry, AuditEntry(id="e2", who="ada", what="mark")])
        entries = (await harness.store.audit_log(ALL)).entries
        assert [(one.id, one.at_ms) for one in entries] == [("e2", written_ms + 1_000), ("e1", written_ms)]

    async def test_filters(self, harness: Harness) -> None:
        start_ms = harness.store.now()
        await harness.store.audit([AuditEntry(id="a", who="ada", what="pause", queue="mail")])
        await harness.advance(1)
        await harness.store.audit([AuditEntry(id="b", who="bob", what="pause", queue="other")])
        await harness.advance(1)
        await harness.store.audit([AuditEntry(id="c", who="ada", what="cancel", ids=("job-1", "job-2"))])
        filters = {
            AuditFilter(who="ada"): "ca",
            AuditFilter(what="pause"): "ba",
            AuditFilter(queue="mail"): "a",
            AuditFilter(job_id="job-2"): "c",
            AuditFilter(job_id="job"): "",
            AuditFilter(who="ada", what="pause"): "a",
            AuditFilter(after_ms=start_ms + 1_000): "cb",
            AuditFilter(before_ms=start_ms + 1_000): "a",
            AuditFilter(who="nobody"): "",
        }
        for filter, expected in filters.items():
            entries = (await harness.store.audit_log(filter)).entries
            assert "".join(one.id for one in entries) == expected, filter

    async def test_entries_are_kept_for_ninety_days(self, harness: Harness) -> None:
        await harness.store.audit([AuditEntry(id="old", who="ada", what="mark")])
        await harness.advance(AUDIT_KEPT_MS / 1000 - 1)
        await harness.store.purge()
        assert len((await harness.store.audit_log(ALL)).entries) == 1
        await harness.advance(1)
        await harness.store.audit([AuditEntry(id="new", who="ada", what="mark")])
        await harness.store.purge()
        assert [one.id for one in (await harness.store.audit_log(ALL)).entries] == ["new"]

    async def test_no_entries_and_bad_cursors(self, harness: Harness) -> None:
        await harness.store.audit([])
        assert (await harness.store.audit_log(ALL)).entries == []
        with pytest.raises(InvalidValue):
            await harness.store.audit_log(ALL, "garbage")
