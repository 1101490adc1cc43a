"""For stores that hold whole values in Python: announced workers, tallies and the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from jobmill.core.announcing import ANNOUNCED_MS, CARD_KEPT_MS, Orders, WorkerCard
from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter, AuditPage, entry_matches
from jobmill.core.cursors import read_position
from jobmill.core.tallies import TALLIES_KEPT_MS, Tally, added, first_kept_ms, in_all_steps, series, stored_step


class Operations(Struct):
    """All of it. It is a value that a store can write as one record."""

    cards: dict[str, WorkerCard] = {}
    #: The ids of workers that must stop.
    stops: list[str] = []
    tallies: dict[str, Tally] = {}
    audit_entries: list[AuditEntry] = []

    def announce(self, now_ms: int, card: WorkerCard, tallies: Sequence[Tally], leaves: bool) -> Orders:
        """Write a card, and add its tallies unless this announcement was received before."""
        known = self.cards.get(card.id)
        if known is None or known.announcement < card.announcement:
            for part in in_all_steps(tallies):
                key = f"{part.step_ms} {part.start_ms} {part.queue} {part.name}"
                self.tallies[key] = added(self.tallies[key], part) if key in self.tallies else part
        # One that leaves is remembered as well, because its last announcement may come twice.
        self.cards[card.id] = structs.replace(card, seen_ms=now_ms - ANNOUNCED_MS * leaves)
        return Orders(stop=card.id in self.stops)

    def workers(self, now_ms: int) -> list[WorkerCard]:
        """The workers whose announcement is valid."""
        live = (card for card in self.cards.values() if now_ms - card.seen_ms < ANNOUNCED_MS)
        return sorted(live, key=lambda card: (card.started_ms, card.id))

    def order_stop(self, now_ms: int, ids: Sequence[str]) -> list[str]:
        """Order workers to stop; returns the ids of those that are there."""
        there = {card.id for card in self.workers(now_ms)}
        found = [id for id in dict.fromkeys(ids) if id in there]
        self.stops = [*self.stops, *found]
        return found

    def series(
        self, now_ms: int, since_ms: int, until_ms: int, step_ms: int, queue: str | None, name: str | None
    ) -> list[Tally]:
        """Tallies of a time, in steps."""
        stored_ms = stored_step(step_ms)
        first_ms = first_kept_ms(stored_ms, since_ms, now_ms)
        found = (
            tally
            for tally in self.tallies.values()
            if tally.step_ms == stored_ms
            and first_ms <= tally.start_ms < until_ms
            and queue in (None, tally.queue)
            and name in (None, tally.name)
        )
        return series(found, step_ms)

    def audit(self, now_ms: int, entries: Sequence[AuditEntry]) -> None:
        """Add entries that are not there yet."""
        known = {entry.id for entry in self.audit_entries}
        self.audit_entries += [structs.replace(one, at_ms=now_ms) for one in entries if one.id not in known]

    def audit_log(self, now_ms: int, filter: AuditFilter, cursor: str | None, limit: int) -> AuditPage:
        """A page of entries, newest first. The cursor is the position of the last one."""
        end = len(self.audit_entries) if cursor is None else read_position(cursor, "cursor", cursor)
        found = [
            (position, entry)
            for position, entry in enumerate(self.audit_entries[:end])
            if entry_matches(entry, filter) and now_ms - entry.at_ms < AUDIT_KEPT_MS
        ][::-1]
        next = str(found[limit - 1][0]) if len(found) > limit else None
        return AuditPage([entry for _, entry in found[:limit]], next)

    def purge(self, now_ms: int) -> None:
        """Forget workers and tallies past their time. Audit entries keep their positions: they are few."""
        self.cards = {id: card for id, card in self.cards.items() if now_ms - card.seen_ms < CARD_KEPT_MS}
        self.stops = [id for id in self.stops if id in self.cards]
        kept = (one for one in self.tallies.items() if now_ms - one[1].start_ms < TALLIES_KEPT_MS[one[1].step_ms])
        self.tallies = dict(kept)
