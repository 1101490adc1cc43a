"""The verbs audit and audit_log."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.audit import AuditEntry, AuditFilter, AuditPage
from jobmill.stores.memory.context import MemoryContext


def audit(context: MemoryContext, entries: Sequence[AuditEntry]) -> None:
    """Add entries."""
    context.operations.audit(context.now_ms, entries)


def audit_log(context: MemoryContext, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
    """A page of entries."""
    return context.operations.audit_log(context.now_ms, filter, cursor, limit)
