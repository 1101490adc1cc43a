"""Filters of the port as queries."""

from __future__ import annotations

from typing import Any

from jobmill.core.values import Filter
from jobmill.stores.mongo.codec import FINAL, STATE, STATUS, Document, date
from jobmill.stores.mongo.context import MongoContext


def query_of(ctx: MongoContext, filter: Filter) -> Document:
    """A filter as a query; only for jobs in one of the known states."""
    statuses = [STATUS[state] for state in filter.states] if filter.states is not None else list(STATE)
    query: Document = {}
    if filter.queue is not None:
        query["jobmill.queue"] = ctx.queue_field(filter.queue)
    if filter.name is not None:
        query["name"] = filter.name
    if filter.tenant is not None:
        query["jobmill.tenant"] = filter.tenant
    if filter.unique_key is not None:
        home = {"uniqueKey": filter.unique_key, "jobmill.key": None}
        query["$or"] = [home, {"jobmill.key": filter.unique_key}]
    if filter.declared:
        query["jobmill.declared"] = True
    _bound(query, "createdAt", filter.created_after_ms, filter.created_before_ms)
    _bound(query, "nextRunAt", filter.due_after_ms, filter.due_before_ms)
    if _bound(query, "updatedAt", filter.finished_after_ms, filter.finished_before_ms):
        statuses = [status for status in statuses if status in FINAL]
    query["status"] = {"$in": statuses}
    return query


def _bound(query: Document, field: str, first_ms: int | None, end_ms: int | None) -> bool:
    bounds: dict[str, Any] = {}
    if first_ms is not None:
        bounds["$gte"] = date(first_ms)
    if end_ms is not None:
        bounds["$lt"] = date(end_ms)
    if bounds:
        query[field] = bounds
    return bool(bounds)
