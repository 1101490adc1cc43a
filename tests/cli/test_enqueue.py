from __future__ import annotations

from datetime import datetime

import pytest

from tests.cli.conftest import Shell


def test_enqueue_prints_id_and_status(shell: Shell) -> None:
    id, how = shell("enqueue", "good", '{"n": 1}').stdout.split()
    assert how == "created"
    job = shell.json("jobs", "show", id)
    assert (job["name"], job["payload"], job["state"]) == ("good", {"n": 1}, "waiting")


def test_a_payload_may_come_from_stdin(shell: Shell) -> None:
    id, _ = shell("enqueue", "good", "-", input='{"n": 5}').stdout.split()
    assert shell.json("jobs", "show", id)["payload"] == {"n": 5}


def test_all_options_are_passed_on(shell: Shell) -> None:
    said = [
        "--id=mine",
        "--priority=3",
        "--unique-key=k",
        "--queue=q",
        "--tenant=t",
        "--max-attempts=7",
        "--timeout=2s",
    ]
    job = shell.json("jobs", "show", shell.enqueue("good", *said, "--due-at", "2030-01-31T09:00+01:00"))
    assert (job["id"], job["priority"], job["unique_key"], job["queue"], job["tenant"]) == ("mine", 3, "k", "q", "t")
    assert job["options"] == {"max_attempts": 7, "timeout_ms": 2_000}
    assert datetime.fromisoformat(job["due_at"]) == datetime.fromisoformat("2030-01-31T08:00Z")


@pytest.mark.parametrize("delay", ["300", "5m", "300s"])
def test_a_delay_is_seconds_or_a_duration(shell: Shell, delay: str) -> None:
    job = shell.json("jobs", "show", shell.enqueue("good", "--delay", delay))
    due, created = datetime.fromisoformat(job["due_at"]), datetime.fromisoformat(job["created_at"])
    assert (due - created).total_seconds() == 300


def test_the_status_of_a_known_id_and_of_a_known_unique_key(shell: Shell) -> None:
    assert shell.json("enqueue", "good", "--id", "mine") == {"id": "mine", "status": "created"}
    assert shell.json("enqueue", "good", "--id", "mine") == {"id": "mine", "status": "exists"}
    first = shell.enqueue("good", "--unique-key", "k")
    assert shell.json("enqueue", "good", "--unique-key", "k") == {"id": first, "status": "duplicate"}


def test_what_happens_if_the_unique_key_is_taken(shell: Shell) -> None:
    debounced = ["--unique-key", "a", "--debounce", "5s"]
    first = shell.enqueue("good", '{"n": 1}', *debounced)
    assert shell.json("enqueue", "good", '{"n": 2}', *debounced) == {"id": first, "status": "updated"}
    assert shell.json("jobs", "show", first)["payload"] == {"n": 2}
    throttled = ["--unique-key", "b", "--unique-for", "1h"]
    second = shell.enqueue("good", '{"n": 1}', *throttled)
    shell.tick()
    assert shell.json("enqueue", "good", *throttled) == {"id": second, "status": "duplicate"}
    third = shell.enqueue("good", "--unique-key", "c")
    assert shell.json("enqueue", "good", "--unique-key", "c", "--when-live", "cancel")["status"] == "created"
    assert shell.json("jobs", "show", third)["state"] == "cancelled"


def test_a_recurring_job_is_updated_by_its_key(shell: Shell) -> None:
    said = ["--cron", "0 9 * * mon", "--timezone", "Europe/Berlin", "--key", "monday"]
    first = shell.json("enqueue", "good", *said)
    assert first["status"] == "created"
    assert shell.json("enqueue", "good", "--every", "1h", "--key", "monday") == {**first, "status": "updated"}
    shown = shell("jobs", "show", first["id"]).stdout
    assert "every 60 m (UTC), key monday" in shown
    assert "declared" not in shown


def test_wait_prints_the_result(shell: Shell) -> None:
    shell("enqueue", "good", '{"n": 1}', "--id", "mine")
    shell.tick()
    assert shell("enqueue", "good", "--id", "mine", "--wait").stdout == "mine exists\n2\n"
    answer = {"id": "mine", "status": "exists", "state": "succeeded", "result": 2}
    assert shell.json("enqueue", "--wait", "5s", "good", "--id", "mine") == answer
    # A lone --wait does not swallow the name.
    assert shell.json("enqueue", "--wait", "good", "--id", "mine") == answer


def test_wait_reports_a_failed_job(shell: Shell) -> None:
    shell("enqueue", "bad", "--id", "mine")
    shell.tick()
    result = shell("enqueue", "bad", "--id", "mine", "--wait", code=1)
    assert result.stdout == "mine exists\n"
    assert result.stderr == "jobmill: job mine failed: RuntimeError: out of paper\n"
    assert shell.json("enqueue", "bad", "--id", "mine", "--wait", code=1)["error"] == "RuntimeError: out of paper"


def test_wait_reports_a_cancelled_job(shell: Shell) -> None:
    shell("enqueue", "good", "--id", "mine")
    shell("jobs", "cancel", "mine")
    assert shell.json("enqueue", "good", "--id", "mine", "--wait", code=1)["state"] == "cancelled"


def test_wait_ends_after_its_timeout(shell: Shell) -> None:
    result = shell("enqueue", "good", "--wait", "1ms", code=1)
    assert "was not final after 1ms" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["good", "{n"], "Invalid value for PAYLOAD: expected JSON in quotes, such as"),
        (["good", ""], "got nothing"),
        (["good", "--priority", "-1"], "priority: expected a whole number"),
        (["good", "--priority", "high"], "'high' is not a valid integer"),
        (["good", "--delay", "soon"], "delay: expected a duration"),
        (["good", "--delay", "nan"], "delay: expected a duration"),
        (["good", "--due-at", "tomorrow"], "expected an instant"),
        (["good", "--due-at", "99999999w ago"], "expected an instant"),
        (["good", "--due-at", "in 5x"], "expected an instant"),
        (["good", "--delay", "1s", "--due-at", "in 5m"], "either delay or due_at"),
        (["good", "--cron", "whenever", "--key", "k"], "cron"),
        (["good", "--every", "1s"], "key: expected a key"),
        (["not a name"], "name: expected"),
        (["good", "--id", "12"], "id that is not all digits"),
        ([], "Missing argument 'NAME'"),
        (["good", "--wait=soon"], "timeout: expected a duration"),
    ],
)
def test_invalid_values_are_refused_in_one_line(shell: Shell, args: list[str], said: str) -> None:
    result = shell("enqueue", *args, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("jobmill: ")
    assert said in line
