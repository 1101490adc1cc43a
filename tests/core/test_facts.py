"""Which facts each verb makes, and what they say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from jobmill.core.events import EVENT_TYPES, Event, claim_events, job_event, progress_event, settlement_events
from jobmill.core.job import Progress
from jobmill.core.lifecycle import Errored, Outcome, Policy, Released, Snoozed, Succeeded, begin, fails_instead, settle
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import fixed
from jobmill.core.values import Broken, Claimed, Refused, Settlement
from tests.values import NOW, TOKEN, claimed

RULES = Policy(max_attempts=2, backoff=fixed("5s"))
HOURLY = Recurrence(key="k", every_ms=3_600_000)
OOPS = Errored(error="oops", traceback="Traceback of oops")


def told(one: Claimed, outcome: Outcome) -> list[tuple[str, dict[str, Any]]]:
    events = settlement_events(settle(one, outcome, RULES, NOW), NOW)
    for event in events:
        assert (event.job_id, event.name, event.queue, event.at_ms) == ("job-1", "send", "mail", NOW)
        assert event.attempt == one.job.attempt
    return [(event.type, event.data) for event in events]


def test_the_facts_of_the_issue() -> None:
    assert (
        *("enqueued", "claimed", "progress", "succeeded", "errored", "retrying", "failed"),
        *("lease_lost", "cancelled", "removed", "released"),
    ) == EVENT_TYPES


ERRED = ("errored", {"error": "oops", "traceback": "Traceback of oops"})
FAILED = ("failed", {"error": "oops"})

SETTLED: list[tuple[str, Claimed, Outcome, list[tuple[str, dict[str, Any]]]]] = [
    ("success", claimed(), Succeeded(b'{"a":[1]}'), [("succeeded", {"result": {"a": [1]}})]),
    ("error", claimed(), OOPS, [ERRED, ("retrying", {"delay_ms": 5_000})]),
    ("no delay", claimed(), structs.replace(OOPS, delay_ms=0), [ERRED, ("retrying", {"delay_ms": 0})]),
    ("last error", claimed(errors=1), OOPS, [ERRED, FAILED]),
    ("final", claimed(), structs.replace(OOPS, final=True), [ERRED, FAILED]),
    ("timeout", claimed(errors=1), Errored(error="oops"), [("errored", {"error": "oops", "traceback": None}), FAILED]),
    ("snoozed", claimed(), Snoozed(5), []),
    ("released", claimed(), Released(), []),
    ("a run", claimed(recurrence=HOURLY), Succeeded(b"1"), [("succeeded", {"result": 1})]),
    ("a run that is retried", claimed(recurrence=HOURLY), OOPS, [ERRED, ("retrying", {"delay_ms": 5_000})]),
    ("a run that failed", claimed(recurrence=HOURLY, errors=1), OOPS, [ERRED, FAILED]),
]


@pytest.mark.parametrize(("one", "outcome", "expected"), [row[1:] for row in SETTLED], ids=[row[0] for row in SETTLED])
def test_what_a_settlement_tells(one: Claimed, outcome: Outcome, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert told(one, outcome) == expected


@pytest.mark.parametrize("recurrence", [None, HOURLY])
def test_too_many_crashes_tell_that_the_job_failed_but_no_error_of_an_attempt(recurrence: Recurrence | None) -> None:
    decided = begin(claimed(crashes=3, recurrence=recurrence), RULES, NOW)
    assert decided is not None
    assert [event.type for event in settlement_events(decided, NOW)] == ["failed"]


def test_a_broken_job_tells_why_it_failed() -> None:
    decided = begin(Broken(claimed().lease, "garbage"), RULES, NOW)
    assert decided is not None
    events = settlement_events(decided, NOW)
    assert [event.type for event in events] == ["errored", "failed"]
    assert events[-1].data == {"error": "the stored job cannot be read: garbage"}


def test_a_refused_result_tells_an_error_and_a_failure() -> None:
    decided = fails_instead(settle(claimed(), Succeeded(b"1"), RULES, NOW), Refused("too large"), RULES)
    assert [event.type for event in settlement_events(decided, NOW)] == ["errored", "failed"]


def test_a_settlement_tells_nothing_of_the_token() -> None:
    decided: Settlement = settle(claimed(), OOPS, RULES, NOW)
    assert TOKEN not in repr(settlement_events(decided, NOW))
    assert TOKEN not in repr(decided)
    assert TOKEN not in repr(claimed())


def test_a_claim_tells_who_has_the_job_and_that_another_lost_it() -> None:
    job = claimed(errors=1).job
    (event,) = claim_events(job, NOW, lease_lost=False)
    assert (event.type, event.attempt, event.data) == ("claimed", 2, {"worker": "worker-1"})
    assert [event.type for event in claim_events(job, NOW, lease_lost=True)] == ["lease_lost", "claimed"]


def test_progress() -> None:
    event = progress_event(claimed().job, Progress(40, "half way"), NOW)
    assert (event.type, event.data) == ("progress", {"value": 40, "message": "half way"})


def test_an_event_as_json_ready_values() -> None:
    event = job_event(claimed().job, "enqueued", NOW)
    plain = event.to_dict()
    assert plain == {
        "type": "enqueued",
        "job_id": "job-1",
        "name": "send",
        "queue": "mail",
        "at_ms": NOW,
        "attempt": 1,
        "data": {},
        "id": None,
    }
    assert msgspec.convert(plain, Event) == event


def test_events_do_not_share_their_data() -> None:
    one, other = (Event(type="x", job_id="1", name="n", queue="q", at_ms=1) for _ in range(2))
    assert one.data is not other.data
