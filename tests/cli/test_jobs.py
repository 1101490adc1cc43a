from __future__ import annotations

import re
import shlex

import pytest

from jobmill import Client
from jobmill.core.limits import MAX_ATTEMPTS
from jobmill.core.values import Claim
from tests.cli.conftest import Shell


def test_a_list_as_a_table(shell: Shell) -> None:
    waiting = shell.enqueue("good", "--delay", "300.5")
    done = shell.enqueue("good", "--queue", "default")
    failed = shell.enqueue("bad", "--max-attempts", "1")
    shell.tick()
    head, *lines = shell("jobs", "list").stdout.splitlines()
    assert head.split() == ["id", "name", "queue", "state", "attempt", "when", "error"]
    by_id = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert by_id == {
        waiting: "good default waiting 1 due in 5 m",
        done: "good default succeeded 1 now",
        failed: "bad default failed 1 now RuntimeError: out of paper",
    }


def test_a_running_job_is_listed_with_its_duration(shell: Shell) -> None:
    shell("enqueue", "snail")

    async def claim(client: Client) -> None:
        wish = Claim(queues=("default",), names={"snail": 1}, n=1, lease_ms=60_000, worker="w", token="secret-token")
        assert (await client.store.exchange([], wish)).claimed

    shell.do(claim)
    assert "running        1  for " in shell("jobs", "list").stdout
    # The token of the lease is in no listing.
    (job,) = shell.json("jobs", "list")
    assert job["worker"] == "w"
    assert "secret-token" not in str(job) + shell("jobs", "show", job["id"]).stdout


def test_filters_and_limits(shell: Shell) -> None:
    for n in range(5):
        shell("enqueue", "good", "--id", f"a{n}", "--tenant", "ada")
    shell("enqueue", "bad", "--id", "b", "--queue", "other", "--unique-key", "k", "--delay", "2h")

    def ids(*args: str) -> set[str]:
        return {job["id"] for job in shell.json("jobs", "list", *args)}

    ours = {f"a{n}" for n in range(5)}
    assert ids("--queue", "other") == ids("--name", "bad") == ids("--unique-key", "k") == {"b"}
    assert ids("--tenant", "ada") == ids("--due-before", "in 1h") == ours
    assert ids("--due-after", "in 1h") == {"b"}
    assert ids("--created-after", "1h ago", "--created-before", "in 1h") == ours | {"b"}
    assert ids("--state", "running", "--state", "failed") == ids("--finished-before", "now") == set()
    assert ids("--state", "waiting") == ours | {"b"}
    assert len(ids("--limit", "2")) == 2


def test_filters_by_payload_name_error_and_kind(shell: Shell) -> None:
    shell("enqueue", "good", '{"to": "ada", "count": 3}', "--id", "ada")
    shell("enqueue", "good", '{"to": "bob", "count": "3"}', "--id", "bob")
    hourly = shell.enqueue("bad", "--key", "hourly", "--every", "1h")
    shell("jobs", "hold", "bob")

    def ids(*args: str) -> set[str]:
        return {job["id"] for job in shell.json("jobs", "list", *args)}

    assert ids("--payload", "to=ada") == ids("--payload", "count=3", "--payload", "to=ada") == {"ada"}
    assert ids("--payload", 'count="3"') == ids("--held") == {"bob"}
    assert ids("--recurring") == ids("--name-prefix", "ba") == {hourly}
    assert ids("--not-recurring", "--not-held") == {"ada"}
    assert ids("--error-type", "ValueError") == set()
    refused = shell("jobs", "list", "--payload", "to", code=2)
    assert "expected a field and its value, such as to=ada, got 'to'" in refused.stderr


def test_pages_are_continued_by_their_cursor(shell: Shell) -> None:
    for n in range(5):
        shell("enqueue", "good", "--id", f"a{n}")
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        result = shell("jobs", "list", "--limit", "2", *cursor)
        seen += [line.split()[0] for line in result.stdout.splitlines()[1:]]
        more = [line for line in result.stderr.splitlines() if line.startswith("next page: --cursor ")]
        if not more:
            break
        cursor = shlex.split(more[0])[2:]
    assert sorted(seen) == [f"a{n}" for n in range(5)]


def test_a_limit_can_be_larger_than_a_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.cli.jobs.PAGE", 2)
    for n in range(5):
        shell("enqueue", "good", "--id", f"a{n}")
    assert len(shell.json("jobs", "list")) == 5
    assert len(shell.json("jobs", "list", "--limit", "3")) == 3


def test_a_list_without_jobs(shell: Shell) -> None:
    shell("migrate")
    assert shell.json("jobs", "list") == []
    assert shell("jobs", "list").stderr == "no jobs\n"
    assert shell("jobs", "list", "--name", "x").stderr == "no jobs match\n"


def test_show_prints_all_fields(shell: Shell) -> None:
    id = shell.enqueue("bad", "--tenant", "ada", "--max-attempts", "1")
    shell.tick()
    said = shell("jobs", "show", id, "--logs").stdout
    for part in (id, "state", "failed", "RuntimeError: out of paper", "tenant", "ada", "attempt", "1 of 1, 1 errored"):
        assert part in said
    assert re.search(r"\nattempt 1 errored on \S+ from .* to .*\nTraceback \(most recent call last\):\n", said)
    assert said.rstrip().endswith("  1  warning  a line before the end")
    assert "a line before" not in shell("jobs", "show", id).stdout


def test_show_as_json(shell: Shell) -> None:
    id = shell.enqueue("bad", "--max-attempts", "1")
    shell.tick()
    job = shell.json("jobs", "show", id, "--logs")
    assert [line["text"] for line in job["logs"]] == ["a line before the end"]
    assert (job["logs"][0]["attempt"], job["logs"][0]["level"]) == (1, "warning")
    assert job["logs"][0]["at"].endswith("Z")
    assert job["error"] == "RuntimeError: out of paper"
    assert "logs" not in shell.json("jobs", "show", id)


def test_an_unknown_job(shell: Shell) -> None:
    shell("migrate")
    assert "there is no job 'nobody'" in shell.refused("jobs", "show", "nobody", code=1)


def test_a_job_without_a_limit_of_attempts(shell: Shell) -> None:
    limited = shell.enqueue("good", "--max-attempts", "7")
    id = shell.enqueue("good", "--max-attempts", str(MAX_ATTEMPTS))
    assert str(MAX_ATTEMPTS) not in shell("jobs", "list").stdout
    assert "of 7" in shell("jobs", "show", limited).stdout
    assert f"of {MAX_ATTEMPTS}" not in shell("jobs", "show", id).stdout
