"""Filters of the port as queries."""

from __future__ import annotations

from typing import Any

from jobmill.core.due import NEVER_MS
from jobmill.core.values import Filter
from jobmill.stores.mongo.codec import FINAL, STATE, STATUS, Document, date
from jobmill.stores.mongo.context import MongoContext


def query_of(ctx: MongoContext, filter: Filter) -> Document:
    """A filter as a query; only for jobs in one of the known states."""
    statuses = [STATUS[state] for state in filter.states] if filter.states is not None else list(STATE)
    query: Document = {}
    more = _content(filter)
    if filter.queue is not None:
        query["jobmill.queue"] = ctx.queue_field(filter.queue)
    if filter.name is not None:
        query["name"] = filter.name
    if filter.tenant is not None:
        query["jobmill.tenant"] = filter.tenant
    if filter.unique_key is not None:
        home = {"uniqueKey": filter.unique_key, "jobmill.key": None}
        more.append({"$or": [home, {"jobmill.key": filter.unique_key}]})
    if filter.declared:
        query["jobmill.declared"] = True
    if filter.lane is not None:
        query["jobmill.lane"] = filter.lane
    if filter.flow is not None:
        query["jobmill.flow"] = filter.flow
    bound(query, "createdAt", filter.created_after_ms, filter.created_before_ms)
    due: Document = {}
    if bound(due, "nextRunAt", filter.due_after_ms, filter.due_before_ms):
        more.append({"$or": [{**due, "jobmill.due": None}, {"jobmill.due": due["nextRunAt"]}]})
    if bound(query, "updatedAt", filter.finished_after_ms, filter.finished_before_ms):
        statuses = [status for status in statuses if status in FINAL]
    query["status"] = {"$in": statuses}
    return query | ({"$and": more} if more else {})


def _content(filter: Filter) -> list[Document]:
    """Conditions about what jobs contain."""
    conditions: list[Document] = []
    if filter.held is not None:
        held = {"jobmill.held": {"$exists": True}, "jobmill.due": date(NEVER_MS), "status": "pending"}
        conditions.append(held if filter.held else {"$nor": [held]})
    if filter.recurring is not None:
        rule = [{"jobmill.rule": {"$exists": True}}, {"repeatInterval": {"$type": "string", "$ne": ""}}]
        conditions.append({"$or" if filter.recurring else "$nor": rule})
    if filter.errored is not None:
        conditions.append({"failCount": {"$gt": 0} if filter.errored else {"$not": {"$gt": 0}}})
    if filter.name_prefix is not None:
        conditions.append({"name": {"$gte": filter.name_prefix, "$lt": f"{filter.name_prefix}\U0010ffff"}})
    if filter.error_type is not None:
        attempts = {"$cond": [{"$isArray": "$jobmill.attempts"}, {"$last": "$jobmill.attempts"}, None]}
        conditions.append({"$expr": {"$eq": [_field("error_type", attempts), {"$literal": filter.error_type}]}})
    if filter.payload is not None:
        conditions.append({"data": {"$type": "object"}})
    for field, value in (filter.payload or {}).items():
        conditions.append({"$expr": {"$eq": [_field(field, "$data"), {"$literal": value}]}})
    return conditions


def _field(name: str, document: Any) -> Document:
    """A field of a document, whatever its name contains."""
    return {"$getField": {"field": {"$literal": name}, "input": document}}


def bound(query: Document, field: str, first_ms: int | None, end_ms: int | None) -> bool:
    """Add bounds of an instant to a query; whether there are any."""
    bounds: dict[str, Any] = {}
    if first_ms is not None:
        bounds["$gte"] = date(first_ms)
    if end_ms is not None:
        bounds["$lt"] = date(end_ms)
    if bounds:
        query[field] = bounds
    return bool(bounds)
