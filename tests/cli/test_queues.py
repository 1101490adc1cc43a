from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def busy(shell: Shell) -> Shell:
    shell("enqueue", "good", "--id", "a")
    shell("enqueue", "bad", "--id", "b", "--max-attempts", "1")
    shell.tick()
    shell("enqueue", "good", "--delay", "1h", "--queue", "later")
    return shell


def test_counts_as_a_table(busy: Shell) -> None:
    busy("queues", "pause", "later")
    head, *lines = busy("queues").stdout.splitlines()
    assert head.split()[:6] == ["queue", "waiting", "running", "succeeded", "failed", "cancelled"]
    rows = [re.sub(r" \(paused by \S+\)", "", line).split()[:6] for line in lines]
    assert rows == [
        ["default", "0", "0", "1", "1", "0"],
        ["bad", "0", "0", "0", "1", "0"],
        ["good", "0", "0", "1", "0", "0"],
        ["later", "1", "0", "0", "0", "0"],
        ["good", "1", "0", "0", "0", "0"],
    ]
    assert lines[3].startswith("later (paused by ")


def test_counts_as_json(busy: Shell) -> None:
    default, later = busy.json("queues")
    assert busy.json("queues", "counts") == [default, later]
    assert (default["queue"], default["succeeded"], default["failed"]) == ("default", 1, 1)
    assert [one["name"] for one in default["names"]] == ["bad", "good"]
    assert default["names"][1]["p95_ms"] >= 0
    assert (later["queue"], later["waiting"], later["paused"], later["rate_limit"]) == ("later", 1, False, None)


def test_counts_without_queues(shell: Shell) -> None:
    shell("migrate")
    assert shell("queues").stderr == "no queues\n"
    assert shell.json("queues") == []


def test_pause_and_resume(busy: Shell) -> None:
    assert re.fullmatch(r"queue default: paused by \S+\n", busy("queues", "pause", "default").stdout)
    assert busy.json("queues", "pause", "default")["paused"] is True
    assert busy("queues", "resume", "default").stdout == "queue default: no limits\n"


def test_limits(busy: Shell) -> None:
    said = busy("queues", "limits", "default", "--rate", "100/1m", "--running", "5").stdout
    assert said == "queue default: rate 100/1m, running 5\n"
    said = busy("queues", "limits", "default", "--rate", "7/s", "--note", "slow bank").stdout
    assert said == "queue default: rate 7/1s, running 5\n"
    assert busy.json("audit")[0]["note"] == "7 per 1s; slow bank"
    assert busy("queues", "limits", "default", "--no-running").stdout == "queue default: rate 7/1s\n"
    assert busy.json("queues", "limits", "default")["rate_limit"] == {"count": 7, "per_ms": 1_000}
    assert busy("queues", "limits", "default", "--no-rate").stdout == "queue default: no limits\n"


@pytest.mark.parametrize(
    "args",
    [
        *(["queues", "pause", "latr"], ["queues", "resume", "latr"], ["queues", "limits", "latr"]),
        *(["jobs", "list", "--queue", "latr"], ["jobs", "hold", "--queue", "latr"]),
    ],
    ids=lambda args: f"{args[0]}-{args[1]}",
)
def test_a_queue_that_nothing_knows_is_named(busy: Shell, args: list[str]) -> None:
    said = (
        "jobmill: the queue latr is not known: it has no jobs, and no worker claims from it; the nearest name is later"
    )
    assert said in busy(*args).stderr.splitlines()
    known = busy(*("later" if arg == "latr" else arg for arg in args))
    assert "not known" not in known.stderr
    assert "not known" not in busy(*args[:-1], "default").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["limits", "q", "--rate", "fast"], "expected a rate such as 100/1s"),
        (["limits", "q", "--rate", "0/1s"], "count: expected"),
        (["limits", "q", "--rate", "1/soon"], "per: expected a duration"),
        (["limits", "q", "--rate", "1/s", "--no-rate"], "--rate and --no-rate cannot be combined"),
        (["limits", "q", "--running", "0"], "running_limit: expected"),
        (["pause", "a:b"], 'queue: expected a name without ":"'),
        (["pause"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_limits_are_refused(busy: Shell, args: list[str], said: str) -> None:
    assert said in busy.refused("queues", *args, code=2)


def test_events_of_a_feed(shell: Shell) -> None:
    shell("migrate")
    assert "feed of queue 'default' is off" in shell.refused("events", "default", code=1)
    assert shell("queues", "feed", "default", "on").stdout == "queue default: feed\n"
    shell("enqueue", "bad", "--id", "b", "--max-attempts", "1")
    shell.tick()
    events = [json.loads(line) for line in shell("events", "default", "--json").stdout.splitlines()]
    assert [event["type"] for event in events] == ["enqueued", "claimed", "errored", "failed"]
    assert {event["job_id"] for event in events} == {"b"}
    lines = shell("events", "default", "--after", events[1]["id"]).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["errored", "failed"]
    assert lines[1].endswith("bad b attempt 1  error=RuntimeError: out of paper")
