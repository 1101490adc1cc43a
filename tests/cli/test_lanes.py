"""`jobmill queues lanes` and `jobmill queues lane`, and lanes in the commands that enqueue and select jobs."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def busy(shell: Shell) -> Shell:
    """Two lanes of the queue mail, each with room for one job."""
    shell("migrate")
    shell("queues", "lanes", "mail", "--running", "1")
    for number, lane in enumerate(("acme", "acme", "acme", "bigco")):
        shell("enqueue", "good", "--queue", "mail", "--lane", lane, "--id", f"{lane}-{number}")
    shell("enqueue", "good", "--queue", "mail", "--lane", "acme", "--id", "late", "--delay", "1h")
    return shell


def test_lanes_as_a_table(busy: Shell) -> None:
    busy("queues", "lane", "mail", "bigco", "--running", "7", "--rate", "5/1m")
    busy("queues", "lane", "mail", "closed", "--pause", "--note", "unpaid")
    head, *lines = busy("queues", "lanes", "mail").stdout.splitlines()
    assert head.split() == ["lane", "running", "admitted", "ready", "later", "limits", "state"]
    rows = [re.split(r"\s{2,}", line) for line in lines]
    assert rows[:2] == [
        ["acme", "0", "1", "2", "1", "at most 1 at once", "full"],
        ["bigco", "0", "1", "0", "0", "at most 7 at once and rate 5/1m; own: running, rate"],
    ]
    assert rows[2][:6] == ["closed", "0", "0", "0", "0", "at most 1 at once"]
    assert re.fullmatch(r"paused by \S+ \(unpaid\)", rows[2][6])


def test_lanes_as_json(busy: Shell) -> None:
    busy("queues", "lane", "mail", "bigco", "--strict")
    acme, bigco = busy.json("queues", "lanes", "mail")
    assert acme == {
        "queue": "mail",
        "lane": "acme",
        "state": "full",
        "running": 0,
        "admitted": 1,
        "ready": 2,
        "later": 1,
        "limits": {"running": 1, "rate": None, "strict": False, "paused": False},
        "own": {},
        "limited_until": None,
    }
    assert (bigco["limits"]["strict"], bigco["own"], bigco["state"]) == (True, {"strict": True}, "free")


def test_a_rate_that_is_reached(busy: Shell) -> None:
    busy("queues", "lanes", "mail", "--rate", "1/1h")
    busy("enqueue", "good", "--queue", "mail", "--lane", "bigco")
    bigco = busy.json("queues", "lanes", "mail")[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", bigco["limited_until"])
    assert "rate 1/1h  rate reached, next in " in busy("queues", "lanes", "mail").stdout


def test_pages(busy: Shell) -> None:
    first = busy("queues", "lanes", "mail", "--limit", "1")
    assert [line.split()[0] for line in first.stdout.splitlines()] == ["lane", "acme"]
    assert first.stderr == "next page: --after acme\n"
    second = busy("queues", "lanes", "mail", "--limit", "1", "--after", "acme")
    assert [line.split()[0] for line in second.stdout.splitlines()] == ["lane", "bigco"]
    assert second.stderr == ""
    assert (
        busy("queues", "lanes", "mail", "--after", "bigco").stderr
        == "no lanes with live jobs or limits of their own; each lane: at most 1 at once\n"
    )


def test_a_queue_without_lanes(busy: Shell) -> None:
    busy("enqueue", "good")
    assert busy("queues", "lanes", "default").stderr == "no lanes with live jobs or limits of their own\n"
    assert busy.json("queues", "lanes", "default") == []
    unknown = busy("queues", "lanes", "mial").stderr.splitlines()
    assert unknown[0].startswith("no lanes")
    assert unknown[1].endswith("the nearest name is mail")


def test_the_rule_of_a_queue(busy: Shell) -> None:
    said = busy("queues", "lanes", "mail", "--running", "2", "--rate", "30/1m", "--strict", "--note", "fair").stdout
    assert said == "queue mail: each lane: at most 2 at once and rate 30/1m and strict\n"
    assert busy.json("audit")[0]["note"] == "running 2, rate 30 per 1m, strict true; fair"
    assert busy("queues", "limits", "mail", "--running", "9").stdout == (
        "queue mail: running 9, each lane: at most 2 at once and rate 30/1m and strict\n"
    )
    assert "mail (running 9, each lane: at most 2 at once" in busy("queues").stdout
    assert busy.json("queues", "lanes", "mail", "--rate", "5/s", "--no-strict")["lanes"] == {
        "rate": {"count": 5, "per_ms": 1_000}
    }
    assert busy("queues", "lanes", "mail", "--none").stdout == "queue mail: running 9\n"


def test_one_lane(busy: Shell) -> None:
    said = busy("queues", "lane", "mail", "acme").stdout
    assert said == "lane acme of queue mail (at most 1 at once): full; 0 running, 1 admitted, 2 ready, 1 later\n"
    said = busy("queues", "lane", "mail", "acme", "--running", "2").stdout
    assert (
        said
        == "lane acme of queue mail (at most 2 at once; own: running): full; 0 running, 2 admitted, 1 ready, 1 later\n"
    )
    said = busy("queues", "lane", "mail", "acme", "--pause", "--note", "down").stdout
    assert re.fullmatch(
        r"lane acme .*; own: running\): paused by \S+ \(down\); 0 running, 0 admitted, 3 ready.*\n", said
    )
    assert busy.json("audit")[0]["what"] == "pause_lane"
    assert busy.json("queues", "lane", "mail", "acme", "--default")["own"].keys() == {"pause"}
    document = busy.json("queues", "lane", "mail", "acme", "--resume", "--rate", "5/1m")
    assert document["own"] == {"rate": {"count": 5, "per_ms": 60_000}}
    assert document["limits"] == {"running": 1, "rate": document["own"]["rate"], "strict": False, "paused": False}
    assert busy.json("queues", "lane", "mail", "empty")["own"] == {}
    document = busy.json("queues", "lane", "mail", "acme", "--default", "--running", "3")
    assert document["own"] == {"running": 3}, "the others are removed"
    assert "the lane empty has no jobs now" in busy("queues", "lane", "mail", "empty", "--pause").stderr
    assert "queue mial is not known" in busy("queues", "lane", "mial", "acme").stderr


def test_strict_without_a_limit_is_warned_of(busy: Shell) -> None:
    assert "strict has no effect" not in busy("queues", "lane", "mail", "acme", "--strict").stderr
    busy("queues", "lanes", "mail", "--none")
    assert "strict has no effect without a limit: --running 1" in busy("queues", "lane", "mail", "acme").stderr


def test_a_lane_that_looks_like_an_option(busy: Shell) -> None:
    for id in ("first", "second"):
        busy("enqueue", "good", "--queue", "mail", "--lane", "--none", "--id", id)
    busy("queues", "lane", "--pause", "--", "mail", "--none")
    remedy = "jobmill queues lane --resume -- mail --none"
    assert remedy in busy("jobs", "why", "second").stdout
    assert "0 running, 1 admitted, 1 ready" in busy(*remedy.split()[1:]).stdout


def test_jobs_are_selected_and_shown_with_their_lane(busy: Shell) -> None:
    assert {job["id"] for job in busy.json("jobs", "list", "--lane", "bigco")} == {"bigco-3"}
    rows = {line.split()[0]: line for line in busy("jobs", "list").stdout.splitlines()}
    assert "waits in lane acme" in rows["acme-1"]
    assert "due now" in rows["acme-0"]
    assert "due in 60 m" in rows["late"]
    assert re.search(r"^lane +acme$", busy("jobs", "show", "acme-1").stdout, re.MULTILINE)
    assert busy.json("jobs", "show", "acme-1")["lane"] == "acme"
    assert busy.json("jobs", "cancel", "--lane", "acme", "--yes")["changed"] == ["acme-0", "acme-1", "acme-2", "late"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["lanes", "q", "--rate", "fast"], "expected a rate such as 100/1s"),
        (["lanes", "q", "--running", "0"], "2147483647, got 0; to stop a lane, pause it"),
        (["lanes", "q", "--running", "1", "--none"], "--none cannot be combined with limits"),
        (["lanes", "q", "--strict"], "give the whole rule: --running or --rate as well"),
        (["lanes", "q", "--no-strict"], "give the whole rule: --running or --rate as well"),
        (["lanes", "q", "--rate", "5/1m", "--strict"], "--strict needs --running"),
        (["lanes", "q", "--note", "why"], "--note needs a change"),
        (["lane", "q", "x", "--resume", "--note", "why"], "--note needs a change"),
        (["lanes", "q", "--limit", "0"], "0 is not in the range"),
        (["lane", "q", "x", "--pause", "--resume"], "--pause and --resume cannot be combined"),
        (["lane", "q", ""], "lane: expected a text of 1 to 255 characters"),
        (["lane", "q"], "Missing argument 'LANE'"),
    ],
)
def test_wrong_limits_are_refused(busy: Shell, args: list[str], said: str) -> None:
    assert said in busy.refused("queues", *args, code=2)
