"""The verbs audit and audit_log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter, AuditPage
from jobmill.core.cursors import MAX_NUMBER, read_position
from jobmill.stores.postgres.context import PostgresContext

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEntry).decode


async def audit(context: PostgresContext, entries: Sequence[AuditEntry]) -> None:
    if not entries:
        return
    rows = [(one.id, one.who, one.what, one.queue, _encode(one.ids).decode(), _encode(one).decode()) for one in entries]
    columns = [list(column) for column in zip(*rows, strict=True)]
    text, at_ms = context.statements("audit"), context.clock.given_ms()
    await context.use(lambda connection: connection.execute(text, at_ms, *columns))


async def audit_log(
    context: PostgresContext, filter: AuditFilter, cursor: str | None = None, limit: int = 100
) -> AuditPage:
    """A page. A cursor is the position of the last entry of the page before."""
    before = MAX_NUMBER if cursor is None else read_position(cursor, "cursor", cursor)
    text, after_ms = context.statements("audit_log"), context.clock.now() - AUDIT_KEPT_MS
    wanted = structs.astuple(filter)
    rows = await context.use(lambda connection: connection.fetch(text, limit + 1, before, after_ms, *wanted))
    entries = [structs.replace(_decode(entry), at_ms=at_ms) for _, at_ms, entry in rows[:limit]]
    return AuditPage(entries, str(rows[limit - 1][0]) if len(rows) > limit else None)
