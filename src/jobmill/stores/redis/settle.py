"""Settlements as the script takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobmill.core.events import settlement_events
from jobmill.core.job import KEEP_FAILED, KEEP_RUN, KEEP_SUCCEEDED, Keep
from jobmill.core.lanes import keeps_slot
from jobmill.core.values import Broken, Claimed, Lease
from jobmill.stores.common.error_message import message_of
from jobmill.stores.redis.codec import attempts_json
from jobmill.stores.redis.context import as_json
from jobmill.stores.redis.ids import LocalId, local_id

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def settle_requests(
    settlements: dict[int, Settlement], now_ms: int, feed_on: bool
) -> tuple[dict[int, Any], dict[int, dict[str, Any]]]:
    """Settlements that are written in a few steps for all, and the others, by position."""
    # Several settlements of one job are applied in order, and events go with their settlement: one by one.
    one_by_one = feed_on or len({one.lease.id for one in settlements.values()}) < len(settlements)
    plain: dict[int, Any] = {}
    others: dict[int, dict[str, Any]] = {}
    for position, settlement in settlements.items():
        request = None if one_by_one else _plain(settlement)
        if request is not None:
            plain[position] = request
        else:
            others[position] = settle_request(settlement, now_ms, feed_on)
    return plain, others


def undo_request(claimed: Claimed | Broken) -> dict[str, Any]:
    """The reverse of a claim that the caller will not hear of: the job waits as it did before."""
    job = claimed.job if isinstance(claimed, Claimed) else claimed.foreign
    return {
        "id": id_of(claimed.lease),
        "token": claimed.lease.token,
        "state": "waiting",
        "outcome": "released",
        "errors": job.errors if job else 0,
        "crashes": job.crashes if job else 0,
        "keeps": True,
    }


def id_of(lease: Lease) -> LocalId:
    """BullMQ's id of a leased job in its queue."""
    return local_id(lease.queue, lease.id) if lease.locator is None else lease.locator[0]


def keep_request(keep: Keep, default: Keep) -> dict[str, Any]:
    """A retention. The default leaves no note with the job: a purge finds such jobs by their age."""
    if keep == default:
        return {"default": True}
    return {name: value for name, value in (("last", keep.last), ("age", keep.age_ms)) if value is not None}


def _plain(settlement: Settlement) -> tuple[LocalId | str | int | None, ...] | None:
    """A settlement that no field of the job has an influence on. An age of 0 stands for the default retention."""
    lease, keep = settlement.lease, settlement.keep
    if lease.locator is None or not lease.locator[1] or settlement.state != "succeeded" or settlement.attempts:
        return None
    if settlement.errors or settlement.crashes or settlement.runs or keep is None or keep.at_once or keep.last:
        return None
    age_ms = 0 if keep == KEEP_SUCCEEDED else keep.age_ms
    plain = (lease.locator[0], lease.token, settlement.result_json.decode(), age_ms)
    return plain if lease.lane is None else (*plain, lease.lane, lease.locator[2])


def settle_request(settlement: Settlement, now_ms: int, feed_on: bool) -> dict[str, Any]:
    """A settlement as settle.lua takes it; what is None is left out."""
    request: dict[str, Any] = {
        "id": id_of(settlement.lease),
        "token": settlement.lease.token,
        "state": settlement.state,
        "outcome": settlement.outcome,
        "errors": settlement.errors,
        "crashes": settlement.crashes,
    }
    request |= _slot(settlement) if settlement.state == "waiting" else {}
    if settlement.outcome == "succeeded":
        request["result"] = settlement.result_json.decode()
    if settlement.error is not None:
        traceback = settlement.attempts[-1].traceback if settlement.attempts else None
        request["error"] = message_of(settlement.error, traceback)
        if request["error"] != settlement.error:
            request["typed_error"] = settlement.error
    if settlement.attempts is not None:
        request["attempts"], request["tracebacks"] = attempts_json(settlement.attempts)
    if settlement.waits_for is not None:
        request["waits_for"] = settlement.waits_for
    if settlement.due is not None:
        request["due"] = settlement.due.resolve(now_ms)
    if settlement.keep is not None:
        default = KEEP_SUCCEEDED if settlement.state == "succeeded" else KEEP_FAILED
        request["keep"] = keep_request(settlement.keep, default)
    if settlement.runs is not None:
        request["runs"] = settlement.runs
        request["keep_run"] = keep_request(KEEP_RUN, KEEP_FAILED)
        request["slot"] = None if settlement.rearm is None else settlement.rearm.occurrence_ms
    if feed_on:
        request["events"] = [(e.type, e.attempt, as_json(e.data)) for e in settlement_events(settlement, now_ms)]
    return request


def _slot(settlement: Settlement) -> dict[str, bool]:
    """Whether a job that waits again keeps its slot: in a lane that is not strict, and in one that is."""
    return {"keeps": keeps_slot(settlement, strict=False), "keeps_strict": keeps_slot(settlement, strict=True)}
