"""The verbs audit and audit_log. The log is a stream; the number of an entry there is its cursor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry, AuditFilter, AuditPage, entry_matches
from jobmill.stores.redis.context import RedisContext, as_json
from jobmill.stores.redis.feed import check_stream_id
from jobmill.stores.redis.scripts import AUDIT

_READ_AT_ONCE = 1_000


async def audit(c: RedisContext, entries: Sequence[AuditEntry]) -> None:
    """See the port. Entries past their time are removed, also where none is added."""
    at_ms = c.clock.now()
    request = [(one.id, as_json(structs.replace(one, at_ms=at_ms))) for one in entries]
    await c.run_operation(AUDIT, entries=request, kept=AUDIT_KEPT_MS)


async def audit_log(c: RedisContext, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
    """See the port."""
    key = f"{c.operations}:audit"
    end = "+" if cursor is None else f"({check_stream_id(cursor, 'cursor')}"
    first_ms = max(c.clock.now() - AUDIT_KEPT_MS + 1, filter.after_ms or 0)
    found: list[tuple[str, AuditEntry]] = []
    while len(found) <= limit:
        rows = await c.client.call(key, "XREVRANGE", key, end, first_ms, "COUNT", _READ_AT_ONCE)
        for number, (_, _, _, text) in rows:
            entry = msgspec.json.decode(text, type=AuditEntry)
            if entry.at_ms >= first_ms and entry_matches(entry, filter):
                found.append((number.decode(), entry))
        if len(rows) < _READ_AT_ONCE:
            break
        end = f"({rows[-1][0].decode()}"
    next = found[limit - 1][0] if len(found) > limit else None
    return AuditPage([entry for _, entry in found[:limit]], next)
