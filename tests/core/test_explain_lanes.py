"""Why a job waits for a slot of its lane: what no store is needed for. The contract has a test for each code."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, structs

from jobmill.core.announcing import WorkerCard
from jobmill.core.due import NEVER_MS, Held, at
from jobmill.core.explain import explain, fine
from jobmill.core.job import Job
from jobmill.core.lane_state import lane_word
from jobmill.core.queue_settings import LaneRule, LaneSettings, Pause, QueueSettings, RateLimit
from jobmill.core.reasons import Facts, LaneFacts
from jobmill.core.values import Depth, Lane
from jobmill.testing.contract.announce import card

NOW = 1_000_000
HELD = Held(by=("lane",), due=at(NOW - 5))


def job(id: str = "j", **about: Any) -> Job:
    given: dict[str, Any] = {"state": "waiting", "due_ms": NEVER_MS, "held": HELD, "lane": "acme", "priority": 0}
    times = {"created_ms": 0, "updated_ms": 0}
    return Job(**{"id": id, "name": "send", "queue": "mail", "payload_json": Raw(b"{}"), **times, **given, **about})


def worker(**about: Any) -> WorkerCard:
    return card(**{"queues": ("mail",), "names": ("send",)} | about)


def facts(lane: Lane | None, *holders: Job, rule: LaneRule | None = None, of: Job | None = None) -> Facts:
    return Facts(
        job=of or job(),
        now_ms=NOW,
        settings=QueueSettings(lanes=rule),
        depth=Depth(queue="mail"),
        workers=[worker()],
        lane=None if lane is None else LaneFacts(lane=lane, holders=holders),
    )


def lane(**about: Any) -> Lane:
    return Lane(queue="mail", name="acme", **about)


def codes(given: Facts) -> list[str]:
    return [reason.code for reason in explain(given)]


def test_a_lane_with_room_gives_a_slot_soon() -> None:
    given = facts(lane(ready=1), rule=LaneRule(running=1))
    (reason,) = explain(given)
    assert (reason.code, reason.evidence) == ("held", {"by": ["lane"]})
    assert "has room" in reason.text
    (reason,) = explain(facts(None))
    assert (reason.code, reason.text) == ("held", "the job waits for a slot of its lane 'acme'")


def test_each_thing_that_keeps_slots_is_a_reason() -> None:
    """Three slots: one job runs, one waits for its next attempt, and one has no handler."""
    retrying = job("r", held=None, due_ms=NOW + 5_000)
    unknown = structs.replace(job("u", held=None, due_ms=NOW), name="old")
    running = job("x", held=None, due_ms=NOW, state="running")
    rule = LaneRule(running=3, strict=True)
    assert codes(facts(lane(running=1, admitted=2, ready=1), running, retrying, unknown, rule=rule)) == [
        "lane_blocked_by_name",
        "lane_strict",
        "lane_full",
    ]
    assert codes(facts(lane(admitted=2, ready=1), retrying, unknown, rule=LaneRule(running=2, strict=True))) == [
        "lane_blocked_by_name",
        "lane_strict",
    ]


def test_a_full_lane_whose_rate_is_used_up_has_two_reasons() -> None:
    rule = LaneRule(running=1, rate=RateLimit(1, 60_000))
    assert codes(facts(lane(running=1, ready=1, limited_until_ms=NOW + 1), rule=rule)) == ["lane_full", "lane_rate"]
    assert codes(facts(lane(ready=1, limited_until_ms=NOW), rule=rule)) == ["held"], "the window is over"


@pytest.mark.parametrize(
    ("rule", "code"), [(LaneRule(running=1), "lane_full"), (LaneRule(rate=RateLimit(1, 60_000)), "lane_rate")]
)
def test_the_number_of_jobs_that_come_first_is_named(rule: LaneRule, code: str) -> None:
    given = facts(lane(running=1, ready=5, limited_until_ms=NOW + 1), rule=rule)
    assert given.lane is not None
    (reason,) = explain(structs.replace(given, lane=structs.replace(given.lane, ahead=4)))
    assert (reason.code, reason.evidence["ahead"]) == (code, 4)
    assert reason.text.endswith("; 4 more before this job")


@pytest.mark.parametrize(
    ("one", "rule", "raises"),
    [
        (lane(running=1, ready=1), LaneRule(running=1), True),
        (lane(admitted=1, ready=1), LaneRule(running=1), False),
        (lane(running=1, ready=1), LaneRule(running=1, strict=True), False),
    ],
)
def test_a_higher_limit_is_advised_where_it_helps(one: Lane, rule: LaneRule, raises: bool) -> None:
    (reason,) = explain(facts(one, rule=rule))
    assert reason.code == "lane_full"
    assert (reason.remedy == "raise it: jobmill queues lane mail acme --running 2") is raises


@pytest.mark.parametrize(
    ("name", "command"),
    [("a b", "jobmill queues lane mail 'a b' --resume"), ("--x", "jobmill queues lane --resume -- mail --x")],
)
def test_a_command_can_be_pasted(name: str, command: str) -> None:
    paused = Lane(queue="mail", name=name, settings=LaneSettings(pause=Pause()))
    (reason,) = explain(facts(paused, of=job(lane=name)))
    assert reason.remedy == f"resume it: {command}"


def test_the_own_limit_of_a_lane_counts() -> None:
    own = lane(running=1, ready=1, settings=LaneSettings(running=1))
    assert codes(facts(own, rule=LaneRule(running=9))) == ["lane_full"]
    assert codes(facts(lane(running=1, ready=1, settings=LaneSettings(running=9)), rule=LaneRule(running=1))) == [
        "held"
    ]


def test_a_paused_lane_is_not_called_full() -> None:
    paused = lane(running=1, ready=1, settings=LaneSettings(pause=Pause(who="ada")))
    assert codes(facts(paused, rule=LaneRule(running=1))) == ["lane_paused"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            facts(lane(running=1, ready=1), rule=LaneRule(running=1)),
            ["its lane 'acme' is not paused", "its lane has no rate"],
        ),
        (
            facts(lane(ready=1, settings=LaneSettings(pause=Pause())), rule=LaneRule(running=1, rate=RateLimit(1, 1))),
            ["0 of at most 1 jobs of its lane have a slot", "the rate of its lane is not used up"],
        ),
        (
            facts(lane(ready=1)),
            ["its lane 'acme' is not paused", "its lane has no running limit", "its lane has no rate"],
        ),
        (facts(None), []),
        (facts(None, of=job(held=None, due_ms=NOW)), ["its lane 'acme' has given it a slot"]),
        (facts(None, of=job(held=None, due_ms=NOW, lane=None)), []),
    ],
)
def test_what_was_checked_and_is_no_reason(given: Facts, expected: list[str]) -> None:
    texts = fine(given, explain(given))
    assert [text for text in texts if "lane" in text] == expected
    assert ("nothing holds the job" in texts) == (given.job.held is None)


@pytest.mark.parametrize(
    ("one", "rule", "word"),
    [
        (lane(settings=LaneSettings(pause=Pause())), None, "paused"),
        (lane(running=1, admitted=1, ready=1), LaneRule(running=2), "full"),
        (lane(running=2), LaneRule(running=2), "free"),
        (lane(running=1, ready=1), LaneRule(running=2), "free"),
        (lane(ready=1, limited_until_ms=NOW + 1), LaneRule(rate=RateLimit(1, 9)), "limited"),
        (lane(ready=1, limited_until_ms=NOW), LaneRule(rate=RateLimit(1, 9)), "free"),
        (lane(), None, "free"),
    ],
)
def test_the_state_of_a_lane_in_one_word(one: Lane, rule: LaneRule | None, word: str) -> None:
    assert lane_word(one, rule, NOW) == word
