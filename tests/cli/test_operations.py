"""`jobmill status, workers, audit, mark, doctor, fsck, metrics`, and `jobmill jobs hold, release, why`."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

import jobmill
from jobmill.cli import doctor
from jobmill.core.findings import Finding
from tests.cli.conftest import Shell
from tests.kit.processes import wait_until


@pytest.fixture
def busy(shell: Shell) -> Shell:
    shell("enqueue", "good", "--id", "a")
    shell("enqueue", "bad", "--id", "b", "--max-attempts", "1")
    shell.tick()
    shell("enqueue", "good", "--delay", "1h", "--id", "later")
    shell("enqueue", "good", "--queue", "mail", "--id", "mail-1")
    return shell


@pytest.fixture
def as_ada(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")


# ---------------------------------------------------------------------------------------------------- hold, why


def test_hold_and_release(busy: Shell, as_ada: None) -> None:
    assert busy("jobs", "hold", "later", "--note", "not yet").stdout == "later held\n"
    assert busy.json("jobs", "show", "later")["held"]["note"] == "not yet"
    assert "held by ada" in busy("jobs", "list").stdout
    assert "by ada: not yet" in busy("jobs", "show", "later").stdout
    assert busy("jobs", "release", "later").stdout == "later released\n"
    assert busy.refused("jobs", "release", "later", code=1) == "jobmill: later not released: the job is not held"
    assert busy("jobs", "hold", "--queue", "mail", "--yes").stdout == "1 job held\n"


def test_why(busy: Shell) -> None:
    said = busy("jobs", "why", "later").stdout
    assert re.match(r"1\. the job is due in 59m5[0-9]s, at .*  \[not_due\]\n", said)
    assert "jobmill jobs reschedule later --delay 0" in said
    assert "2. no worker has announced itself in the last 30 s  [no_worker]" in said
    assert [one["code"] for one in busy.json("jobs", "why", "later")] == ["not_due", "no_worker"]
    (finished,) = busy.json("jobs", "why", "b")
    assert (finished["code"], finished["evidence"]["state"]) == ("finished", "failed")
    assert "there is no job 'nothing'" in busy.refused("jobs", "why", "nothing", code=1)


def test_the_remedies_of_why_can_be_run(busy: Shell) -> None:
    for id, state in (("later", "waiting"), ("b", "waiting")):
        (remedy,) = [one["remedy"] for one in busy.json("jobs", "why", id) if "jobmill jobs" in (one["remedy"] or "")]
        _, _, command = remedy.partition(": jobmill ")
        busy(*command.split())
        assert busy.json("jobs", "show", id)["state"] == state
    busy("queues", "pause", "mail")
    (paused,) = [one for one in busy.json("jobs", "why", "mail-1") if one["code"] == "queue_paused"]
    busy(*paused["remedy"].partition(": jobmill ")[2].split())
    assert [one["code"] for one in busy.json("jobs", "why", "mail-1")] == ["no_worker"]


# ---------------------------------------------------------------------------------------------------- audit


def test_audit_and_mark(busy: Shell, as_ada: None) -> None:
    busy("queues", "pause", "mail", "--note", "api down", "--until", "in 5m")
    busy("jobs", "cancel", "later", "mail-1")
    assert busy("mark", "v1.4.2").stdout == "marked: v1.4.2\n"
    head, *lines = busy("audit").stdout.splitlines()
    assert head.split() == ["when", "who", "what", "on", "note"]
    assert [line.split()[2:] for line in lines] == [
        ["ada", "mark", "v1.4.2"],
        ["ada", "cancel", "2", "jobs"],
        ["ada", "pause", "queue", "mail", "api", "down"],
    ]
    (entry,) = busy.json("audit", "--job", "later")
    assert (entry["what"], entry["ids"], entry["count"]) == ("cancel", ["later", "mail-1"], 2)
    first = busy("audit", "--limit", "2")
    cursor = re.search(r"--cursor (\S+)", first.stderr)
    assert cursor is not None
    (last,) = busy.json("audit", "--limit", "2", "--cursor", cursor[1])
    assert last["what"] == "pause"
    assert busy("audit", "--who", "nobody").stderr == "no actions\n"
    assert "cursor" in busy.refused("audit", "--cursor", "garbage", code=2)


def test_a_pause_shows_who_why_and_until(busy: Shell, as_ada: None) -> None:
    said = busy("queues", "pause", "mail", "--note", "api down", "--until", "in 5m").stdout
    assert re.fullmatch(r"queue mail: paused by ada until \S+Z \(api down\)\n", said)
    assert busy.json("queues", "pause", "mail")["pause"]["who"] == "ada"


# ---------------------------------------------------------------------------------------------------- workers, status


@pytest.fixture
def worker(busy: Shell) -> Iterator[Any]:
    app = busy.folder / "working.py"
    app.write_text(
        "import jobmill\njobs = jobmill.connect()\n\n@jobs.handler\ndef good() -> None: ...\n\n"
        "@jobs.handler(max_attempts=1)\ndef bad() -> None:\n    raise ValueError('no luck')\n"
    )
    process = busy.start("worker", str(app), "--name", "w1", stderr=subprocess.DEVNULL)
    wait_until(lambda: bool(busy.json("workers")), "the worker announces itself")
    yield process
    process.terminate()
    process.wait(20)


@pytest.mark.slow
def test_workers_and_status_of_a_real_worker(busy: Shell, worker: Any) -> None:
    (card,) = busy.json("workers")
    assert (card["name"], card["pid"], card["queues"], card["names"]) == (
        "w1",
        worker.pid,
        ["default"],
        ["bad", "good"],
    )
    head, row = busy("workers").stdout.splitlines()
    assert head.split()[:2] == ["worker", "host"]
    assert row.split()[0] == "w1"
    busy("enqueue", "bad")
    wait_until(lambda: len(busy.json("status")["errors"]) > 1, "the worker sends what it counted")
    found = busy.json("status")
    # The other error is from a tick.
    (group,) = [one for one in found["errors"] if one["error_type"] == "ValueError"]
    assert (group["name"], group["count"]) == ("bad", 1)
    assert group["location"] == "working.py:9 in bad"
    assert [(one["queue"], one["workers"]) for one in found["queues"]] == [("default", 1), ("mail", 0)]
    screen = busy("status").stdout
    assert "no worker" in next(line for line in screen.splitlines() if line.startswith("mail"))
    assert "working.py:9 in bad" in screen
    assert "\n1 worker, room for 20 jobs\n" in screen
    assert screen.endswith("\nworkers and errors: up to 10 s old; queues: now\n")
    assert busy.refused("workers", "stop", "nobody", code=1) == "jobmill: there is no worker nobody"
    assert busy("workers", "stop", "w1").stdout == "1 worker ordered to stop\n"
    assert worker.wait(20) == 0
    assert busy("workers").stderr == "no workers\n"


def test_status_without_anything(shell: Shell) -> None:
    shell("migrate")
    assert shell("status").stdout == "no queues\n\n0 workers\n"
    assert shell.json("status") == {"queues": [], "workers": [], "errors": [], "late": []}
    assert "--watch" in shell.refused("status", "--watch", "--json", code=2)


def test_a_late_recurrence_is_on_the_screen(shell: Shell) -> None:
    async def work(jobs: jobmill.Client) -> None:
        enqueued = await jobs.enqueue("report", every="1h", key="hourly")
        await jobs.reschedule(enqueued.id, due_at=datetime(2020, 1, 1, tzinfo=UTC))

    shell.do(work)
    (late,) = shell.json("status")["late"]
    assert (late["name"], late["key"]) == ("report", "hourly")
    assert "late recurrences\nreport hourly: " in shell("status").stdout


# ---------------------------------------------------------------------------------------------------- metrics, scale


def test_metrics_of_the_store(busy: Shell) -> None:
    lines = busy("metrics").stdout.splitlines()
    assert 'jobmill_queue_jobs{queue="mail",state="due"} 1' in lines
    assert 'jobmill_queue_jobs{queue="default",state="failed"} 1' in lines
    assert 'jobmill_queue_paused{queue="mail"} 0' in lines
    default, mail = busy.json("metrics")["queues"]
    assert (default["queue"], default["desired"], mail["desired"]) == ("default", 0, 1)


def test_metrics_of_lanes(busy: Shell) -> None:
    assert "jobmill_lanes{" not in busy("metrics").stdout

    async def work(jobs: jobmill.Client) -> None:
        await jobs.queue("mail").lanes(running=1)
        await jobs.queue("mail").lane("rated", running=5, rate=(1, "1h"))
        await jobs.queue("mail").lane("closed").pause()
        lanes = ("full", "full", "full", "free", "rated", "rated", "closed")
        await jobs.enqueue_many(jobs.draft("send", queue="mail", lane=lane) for lane in lanes)
        await jobs.enqueue("send", queue="mail", lane="free", delay="1h")
        await jobs.queue("ruled").lanes(running=5)
        await jobs.enqueue("send", queue="ruled", lane="a")
        await jobs.queue("own").lane("a", running=1)
        await jobs.enqueue_many(jobs.draft("send", queue="own", lane="a") for _ in range(2))

    busy.do(work)
    lines = busy("metrics").stdout.splitlines()
    for state, count in (("running", 0), ("admitted", 3), ("ready", 4), ("later", 1)):
        assert f'jobmill_lane_jobs{{queue="mail",state="{state}"}} {count}' in lines
    for state in ("paused", "full", "limited", "free"):
        assert f'jobmill_lanes{{queue="mail",state="{state}"}} 1' in lines
    assert 'jobmill_lanes{queue="ruled",state="free"} 1' in lines, "a rule, and no job that waits for a slot"
    assert 'jobmill_lanes{queue="own",state="full"} 1' in lines, "no rule, and a lane with limits of its own"
    assert not [line for line in lines if line.startswith("jobmill_lane") and "default" in line]


@pytest.mark.slow
def test_metrics_and_scale_over_http(busy: Shell) -> None:
    process = busy.start("metrics", "--port", "0")
    base = re.search(r"http://\S+:\d+", _log_line(process, "serving"))
    assert base is not None

    def get(path: str) -> Any:
        with urllib.request.urlopen(base[0] + path, timeout=5) as answer:
            return answer.read().decode()

    try:
        assert 'jobmill_queue_jobs{queue="mail",state="due"} 1' in get("/metrics")
        scale = json.loads(get("/scale/mail"))
        assert (scale["queue"], scale["desired"], scale["due"], scale["active"]) == ("mail", 1, 1, True)
        assert json.loads(get("/scale/mail?target=0.01&concurrency=1"))["desired"] == 100
        assert json.loads(get("/scale/nobody"))["desired"] == 0
        assert json.loads(get("/scale"))["total"]["due"] == 1
        assert json.loads(get("/livez")) == {"ok": True}
        for path, code in (("/scale/a%20b", 400), ("/scale/mail?target=x", 400), ("/nothing", 404), ("/scale/", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path)
            with refused.value as answer:
                assert answer.code == code
    finally:
        process.terminate()
    assert process.wait(10) == 0


def test_a_port_that_is_in_use_is_named_by_its_option(busy: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = busy.refused("metrics", "--port", str(port), code=2)
    assert f"jobmill: port: expected a port that can be bound on 127.0.0.1, got {port}; " in said


def _log_line(process: Any, word: str) -> str:
    for line in process.stderr:
        if word in line:
            return str(line)
    raise AssertionError(f"no line with {word!r}")


# ---------------------------------------------------------------------------------------------------- doctor, fsck


def test_doctor(busy: Shell) -> None:
    findings = busy.json("doctor")
    assert {"reachable", "clock_skew", "no_worker", "late_recurrences"} <= {one["check"] for one in findings}
    said = busy("doctor")
    assert re.search(r"^ok      reachable: SQLite 3\.\S+ answers in \S+ ms, and its schema is current", said.stdout)
    assert re.search(r"\d+ checks, 0 with a problem or warning", said.stderr)


def test_doctor_fails_if_something_is_wrong(busy: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding(check="x", level="error", text="it is broken", remedy="repair it")

    async def examine(_: Any) -> list[Finding]:
        return [broken]

    monkeypatch.setattr(jobmill.Client, "examine", examine)
    said = busy("doctor", code=1)
    assert said.stdout == "error   x: it is broken\n        repair it\n"
    assert busy.json("doctor", code=1)[0]["remedy"] == "repair it"


def test_fsck_repairs_only_when_told(busy: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = [3]

    async def fsck(_: Any, *, repair: bool = False, who: str | None = None) -> list[Finding]:
        count = damage[0]
        if repair:
            damage[0] = 0
        level: Any = "error" if damage[0] else "ok"
        return [Finding(check="x", level=level, text="jobs are odd", remedy="repair", count=count, can_repair=True)]

    monkeypatch.setattr(jobmill.Client, "fsck", fsck)
    assert busy("fsck", code=1).stdout.startswith("error   x: jobs are odd")
    assert "give --yes" in busy("fsck", "--repair", code=1).stderr
    assert damage == [3]
    said = busy("fsck", "--repair", "--yes")
    assert "repair x: 3 records" in said.stderr
    assert said.stdout == "ok      x: jobs are odd\n"
    assert damage == [0]
    assert doctor.fsck.name == "fsck"


def test_a_repair_says_how_many_records_of_each_check(busy: Shell) -> None:
    def plant(first: int) -> None:
        with closing(sqlite3.connect(busy.file)) as file, file:
            file.execute("UPDATE jobmill_jobs SET token = 'x' WHERE id = 'later'")
            file.executemany("INSERT INTO jobmill_payloads VALUES (?, '{}')", [(first,), (first + 1,)])

    plant(7_001)
    said = busy("fsck", "--repair", "--yes")
    lines = {line.split()[1].rstrip(":"): line for line in said.stdout.splitlines()}
    assert [check for check, line in lines.items() if "repaired" in line] == ["token_on_waiting", "payload_without_job"]
    assert lines["token_on_waiting"].endswith("; 1 record repaired")
    assert lines["payload_without_job"].endswith("; 2 records repaired")
    assert said.stderr.splitlines()[-1].endswith("checks, 0 with a problem or warning; 3 records repaired")
    assert "repaired" not in busy("fsck", "--repair", "--yes").output
    plant(8_001)
    found = busy.json("fsck", "--repair", "--yes")
    repaired = {one["check"]: (one["count"], one["repaired"]) for one in found if one["repaired"]}
    assert repaired == {"token_on_waiting": (0, 1), "payload_without_job": (0, 2)}
