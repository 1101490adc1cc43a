"""The strategies of the state machine, and its model of a job."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st
from msgspec import Struct

from jobmill.core.changes import Cancel, Change, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.job import Keep, State
from jobmill.core.lifecycle import Policy
from jobmill.core.values import Claimed, Settlement, after
from jobmill.testing.contract.support import fail, release, retry, snooze, succeed, wish

T = TypeVar("T")

NAMES = ("build", "ship")
QUEUES = ("left", "right")
KEPT_MS = 4_000
#: The retention of jobs in the model: for a while, or none.
KEPT = Policy(keep_succeeded=Keep(age_ms=KEPT_MS), keep_failed=Keep(age_ms=KEPT_MS))
NOT_KEPT = Policy(keep_succeeded=Keep(last=0), keep_failed=Keep(last=0))

#: Queue, name, priority, delay and unique key of a new job.
Wanted: TypeAlias = tuple[str, str, int, int, str | None]
SETTLE: dict[str, Callable[[Claimed, int], Settlement]] = {
    "succeed": lambda claimed, _: succeed(claimed, "good", KEPT),
    "vanish": lambda claimed, _: succeed(claimed, "good", NOT_KEPT),
    "fail": lambda claimed, _: fail(claimed, "bad", KEPT),
    "retry": lambda claimed, delay_ms: retry(claimed, delay_ms),
    "snooze": lambda claimed, delay_ms: snooze(claimed, delay_ms),
    "release": lambda claimed, _: release(claimed),
}

new_jobs = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from(NAMES),
        st.integers(0, 2),
        st.sampled_from([0, 0, 500, 3_000]),
        st.sampled_from([None, None, "a", "b"]),
    ),
    min_size=1,
    max_size=4,
)
#: Counted from the end, because the next step mostly concerns recent jobs.
picks = st.integers(0, 7)
delays = st.sampled_from([0, 700, 2_500])
settling = st.lists(st.tuples(picks, st.sampled_from(sorted(SETTLE)), delays), min_size=1, max_size=3)
claims = st.builds(
    lambda n, queues, rooms, lease_ms: wish(n, queues=queues, names=rooms, lease_ms=lease_ms),
    st.sampled_from([5, 1, 2, 3]),
    st.sampled_from([QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]]),
    st.sampled_from([{"build": 3, "ship": 3}, {"build": 1, "ship": 2}, {"build": 2}, {"build": 0, "ship": 1}]),
    st.sampled_from([1_000, 6_000]),
)
changes: st.SearchStrategy[Change] = st.one_of(
    st.just(Cancel()),
    st.builds(Requeue, st.builds(after, delays)),
    st.builds(Reschedule, st.builds(after, delays)),
    st.builds(Reprioritize, st.integers(0, 2)),
    st.just(Remove()),
    st.builds(
        lambda lease_ms: Seize(token=secrets.token_hex(16), worker="by hand", lease_ms=lease_ms),
        st.sampled_from([1_000, 6_000]),
    ),
)


class ModelJob(Struct):
    """The model of one job."""

    id: str
    queue: str
    name: str
    priority: int
    due_ms: int
    seq: int
    key: str | None
    #: The order that applies while it waits; "none" if the port promises no order.
    line: str
    state: State = "waiting"
    claims: int = 0
    errors: int = 0
    crashes: int = 0
    until_ms: int = 0
    token: str = ""
    finished_ms: int = 0
    kept_ms: int = 0


def recent(items: list[T], pick: int) -> T:
    """An item of a list, counted from its end."""
    return items[-1 - pick % len(items)]
