"""The verbs audit and audit_log."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter, AuditPage, entry_matches
from jobmill.core.cursors import MAX_NUMBER, read_position
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.statements import sql

_decode = msgspec.json.Decoder(AuditEntry).decode


def audit(context: SqliteContext, entries: Sequence[AuditEntry]) -> None:
    """Add entries that are not there yet."""
    now_ms = context.now_ms
    rows = [(entry.id, now_ms, as_json(structs.replace(entry, at_ms=now_ms))) for entry in entries]
    context.write_rows("add_entries", (), rows)


def audit_log(context: SqliteContext, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
    """A page of entries, newest first. The cursor is the number of the last one."""
    before = MAX_NUMBER if cursor is None else read_position(cursor, "cursor", cursor)
    rows = context.cursor.execute(sql("entries"), (before, context.now_ms - AUDIT_KEPT_MS))
    matching = ((number, entry) for number, text in rows if entry_matches(entry := _decode(text), filter))
    found = list(itertools.islice(matching, limit + 1))
    next = str(found[limit - 1][0]) if len(found) > limit else None
    return AuditPage([entry for _, entry in found[:limit]], next)
