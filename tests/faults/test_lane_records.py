"""The rule by which records of runs are judged: what exceeds a limit, and what only seems to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.faults.lane_records import Asked, Begun, Ended, Ending, History, LimitChange, Record

LIMIT = 2


def begun(id: str, at: float, claim: int = 1, **about: Any) -> Begun:
    """A run that was claimed by a call of 0.1 s, just after its admission."""
    given = {"called": at - 0.1, "returned": at, "admitted": at - 0.1, "lease_ends": at + 100, **about}
    return Begun("a", id, claim, **given)


def run(id: str, start: float, end: float, claim: int = 1, outcome: str = "succeeded", **about: Any) -> list[Record]:
    """A run that was settled."""
    answer = Ended(id, claim, end + 0.1, "done")
    return [begun(id, start, claim, **about), Ending(id, claim, end, outcome), answer]


def over(
    *records: Sequence[Record],
    killed: float | None = None,
    asked: list[Asked] | None = None,
    changes: list[LimitChange] | None = None,
    lag_s: float = 0.0,
) -> list[str]:
    """The runs that began while their lane was full."""
    history = History([[one for some in records for one in some]], [killed], asked or [])
    return [one.id for one in history.overruns(LIMIT, {"a": changes or []}, lag_s)[0]]


def test_runs_at_once() -> None:
    assert over(run("x", 1, 5), run("y", 2, 5)) == []
    assert over(run("x", 1, 5), run("y", 2, 5), run("z", 4, 6)) == ["z"]
    assert over(run("x", 1, 5), run("y", 2, 5), run("z", 5, 6)) == []


def test_a_run_counts_until_its_process_was_killed() -> None:
    both: list[Sequence[Record]] = [[begun("x", 1)], run("y", 2, 9)]
    assert over(*both, run("z", 4, 6), killed=3) == []
    assert over(*both, run("z", 4, 6), killed=5) == ["z"]


def test_a_recovered_run_has_kept_its_slot() -> None:
    lost = [begun("x", 1, lease_ends=2)]
    again = run("x", 6, 7, claim=2, is_recovered=True)
    assert over(lost, run("y", 1, 9), run("z", 4, 5), killed=1.5) == []
    assert over(lost, again, run("y", 1, 9), run("z", 4, 5), killed=1.5) == ["z"]


def test_a_run_after_one_that_nobody_recorded_is_not_judged() -> None:
    both = [run("x", 1, 5), run("y", 2, 5)]
    assert over(*both, run("z", 4, 6, claim=2)) == []
    assert over(*both, run("z", 1, 2, outcome="retried"), run("z", 4, 6, claim=2)) == ["z"]


def test_a_run_counts_until_its_cancellation() -> None:
    runs = [run("x", 1, 9), run("y", 1, 9), run("z", 5, 9)]
    assert over(*runs, asked=[Asked("x", 4, 4.1, "cancelled")]) == []
    assert over(*runs, asked=[Asked("x", 6, 6.1, "cancelled")]) == ["z"]


def test_a_run_begins_by_the_limit_of_its_moment() -> None:
    lowered = [LimitChange(3, 3.2, 1)]
    runs = [run("x", 1, 9), run("y", 3.25, 9)]
    assert over(*runs, changes=lowered) == [], "its claim was called before the limit was lowered"
    runs[1] = run("y", 3.5, 9)
    assert over(*runs, changes=lowered) == ["y"]
    assert over(*runs, changes=[*lowered, LimitChange(3.3, 3.6, 2)]) == []
    assert over(run("x", 3.5, 4), changes=[LimitChange(3, 3.2, 0)]) == ["x"], "the lane was paused"


def test_on_some_stores_a_lower_limit_holds_a_moment_later() -> None:
    lowered, runs = [LimitChange(3, 3.2, 1)], [run("x", 1, 9), run("y", 3.5, 9, admitted=3.1)]
    assert over(*runs, changes=lowered, lag_s=0.5) == []
    assert over(*runs, changes=lowered, lag_s=0.1) == ["y"]
    runs[1] = run("y", 3.5, 9, admitted=3.4)
    assert over(*runs, changes=lowered, lag_s=0.5) == ["y"], "it was admitted by the new limit"


def wrong(state: str, *records: Record, asked: list[Asked] | None = None) -> bool:
    """Whether the state of the job x does not follow from the records."""
    return bool(History([records], [None], asked or []).wrong_ends({"x": state}))


def test_a_job_ends_as_recorded() -> None:
    assert not wrong("succeeded", *run("x", 1, 2))
    assert wrong("failed", *run("x", 1, 2))
    assert wrong("succeeded", *run("x", 1, 2, outcome="retried"))
    assert wrong("succeeded", *run("x", 1, 2), *run("x", 3, 4, claim=2)), "it ended twice"
    requeued = [Asked("x", 2.5, 2.6, "requeued")]
    assert not wrong("failed", *run("x", 1, 2), *run("x", 3, 4, claim=2, outcome="failed"), asked=requeued)
    assert wrong("succeeded", *run("x", 1, 2), *run("x", 3, 4, claim=2, outcome="failed"), asked=requeued)
    assert not wrong("succeeded", *run("x", 1, 2)[:2]), "the answer may be lost"


def lost(*asked: Asked, lease_ends: float = 9, answer: str = "lost") -> list[str]:
    """The jobs whose run was lost at 5 without a reason."""
    records: list[Record] = [
        begun("x", 1, lease_ends=lease_ends),
        Ending("x", 1, 4.9, "succeeded"),
        Ended("x", 1, 5, answer),
    ]
    return History([records], [None], asked).wrong_losses()


def test_a_run_is_lost_only_with_a_reason() -> None:
    assert lost() == ["x"]
    assert lost(answer="done") == []
    assert lost(lease_ends=4) == []
    assert lost(Asked("x", 3, 3.1, "cancelled")) == []
    assert lost(Asked("x", 0.5, 0.6, "cancelled"), Asked("x", 6, 7, "cancelled"), Asked("x", 3, 4, "requeued")) == ["x"]


def test_a_settlement_may_be_written_and_its_job_requeued_before_the_answer() -> None:
    meanwhile = Asked("x", 4.95, 4.99, "requeued")
    assert lost(meanwhile) == []
    assert lost(Asked("x", 4, 4.8, "requeued")) == ["x"]
    first: list[Record] = [begun("x", 1), Ending("x", 1, 4.9, "succeeded"), Ended("x", 1, 5, "lost")]
    assert not wrong("succeeded", *first, *run("x", 6, 7, claim=2), asked=[meanwhile])
    assert wrong("succeeded", *first, *run("x", 6, 7, claim=2), asked=[Asked("x", 5.1, 5.2, "requeued")])


def test_a_retry_may_be_written_and_its_job_changed_before_the_answer() -> None:
    first: list[Record] = [begun("x", 1), Ending("x", 1, 4.9, "retried"), Ended("x", 1, 5, "lost")]

    def lost_of(*more: Record, asked: Sequence[Asked] = ()) -> list[str]:
        return History([[*first, *more]], [None], asked).wrong_losses()

    assert lost_of() == ["x"]
    assert lost_of(asked=[Asked("x", 4.95, 4.99, "reprioritized")]) == []
    assert lost_of(asked=[Asked("x", 4, 4.8, "reprioritized")]) == ["x"]
    assert lost_of(*run("x", 4.92, 4.95, claim=2)) == []
    assert lost_of(*run("x", 5.1, 5.2, claim=2)) == ["x"]
