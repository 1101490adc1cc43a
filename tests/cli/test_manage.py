from __future__ import annotations

import asyncio
import os
from datetime import datetime

import click
import pytest

import jobmill
from jobmill.cli import manage
from tests.cli.conftest import Shell


def states(shell: Shell) -> dict[str, str]:
    return {job["id"]: job["state"] for job in shell.json("jobs", "list")}


@pytest.fixture
def three(shell: Shell) -> Shell:
    for id in ("a", "b", "c"):
        shell("enqueue", "good" if id != "c" else "bad", "--id", id)
    return shell


def test_cancel_one_job_and_several_jobs(three: Shell) -> None:
    assert three("jobs", "cancel", "a").stdout == "a cancelled\n"
    assert three("jobs", "cancel", "b", "c").stdout == "2 jobs cancelled\n"
    assert set(states(three).values()) == {"cancelled"}


def test_refused_changes_are_listed_one_by_one(three: Shell) -> None:
    three("jobs", "cancel", "a")
    result = three("jobs", "cancel", "a", "b", "nobody", code=1)
    assert result.stdout == "b cancelled\n"
    lines = sorted(result.stderr.splitlines())
    assert [line.split(":")[1] for line in lines] == [" a not cancelled", " nobody not cancelled"]
    answer = three.json("jobs", "cancel", "a", "c", code=1)
    assert answer["changed"] == ["c"]
    assert list(answer["refused"]) == ["a"]


def test_jobs_selected_by_filters_and_by_all(three: Shell) -> None:
    assert three("jobs", "cancel", "--name", "bad").stdout == "1 job cancelled\n"
    assert three("jobs", "cancel", "--state", "failed").stdout == "0 jobs cancelled\n"
    assert three.json("jobs", "cancel", "--all", "--yes") == {"changed": ["a", "b"], "refused": {}}
    assert three("jobs", "remove", "--all").stdout == "3 jobs removed\n"
    assert states(three) == {}


def test_ids_are_read_from_stdin(three: Shell) -> None:
    assert three("jobs", "cancel", "-", input="a\nb\n").stdout == "2 jobs cancelled\n"


def test_requeue_spread(three: Shell) -> None:
    three("jobs", "cancel", "--all")
    assert three("jobs", "requeue", "--all", "--spread", "30m").stdout == "3 jobs requeued\n"
    due = sorted(datetime.fromisoformat(job["due_at"]) for job in three.json("jobs", "list"))
    assert [round((one - due[0]).total_seconds() / 60) for one in due] == [0, 10, 20]


def test_requeue_keep_steps(shell: Shell) -> None:
    calls: list[int] = []

    async def tick(client: jobmill.Client) -> None:
        @client.handler
        async def stepped(context: jobmill.Context) -> None:
            await context.step("note", calls.append, 1)

        await client.tick()

    id = shell.enqueue("stepped")
    shell.do(tick)
    for flags, count in ((["--keep-steps"], 1), ([], 2)):
        shell("jobs", "requeue", id, *flags)
        shell.do(tick)
        assert (shell.json("jobs", "show", id)["state"], len(calls)) == ("succeeded", count)


def test_reschedule_and_reprioritize(three: Shell) -> None:
    assert three("jobs", "reschedule", "a", "--due-at", "2030-01-01T00:00Z").stdout == "a rescheduled\n"
    assert three("jobs", "reprioritize", "--all", "--priority", "9").stdout == "3 jobs reprioritized\n"
    job = three.json("jobs", "show", "a")
    assert (job["due_at"], job["priority"]) == ("2030-01-01T00:00:00Z", 9)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cancel"], "select jobs by ids, by filters or with --all"),
        (["cancel", "a", "--all"], "only one of the three"),
        (["remove", "a", "--name", "good"], "only one of the three"),
        (["reschedule", "a"], "give --delay or --due-at"),
        (["reprioritize", "a"], "Missing option '--priority'"),
        (["reprioritize", "a", "--priority", "-1"], "priority: expected"),
        (["requeue", "--all", "--spread", "-1s"], "spread: expected"),
        (["cancel", "--state", "done"], "'done' is not one of"),
    ],
)
def test_wrong_usage_changes_nothing(three: Shell, args: list[str], said: str) -> None:
    assert said in three.refused("jobs", *args, code=2)
    assert set(states(three).values()) == {"waiting"}


@pytest.mark.parametrize(("answer", "code", "state"), [(b"n\n", 1, "waiting"), (b"y\n", 0, "cancelled")])
def test_a_terminal_asks_before_it_changes_several_jobs(three: Shell, answer: bytes, code: int, state: str) -> None:
    ours, theirs = os.openpty()
    process = three.start("jobs", "cancel", "--all", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"cancel 3 jobs? [y/N]" not in said:
        said += os.read(ours, 1024)
    os.write(ours, answer)
    assert process.wait(20) == code
    os.close(ours)
    assert set(states(three).values()) == {state}


def test_ctrl_c_ends_the_question(three: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked while no event loop runs: in one, the first Ctrl-C only cancels the task that is held up by it."""

    def interrupted(*_: object, **__: object) -> bool:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        raise click.Abort

    monkeypatch.setattr(click, "confirm", interrupted)
    monkeypatch.setattr(manage, "_can_ask", lambda: True)
    three("jobs", "cancel", "--all", code=130)
    assert set(states(three).values()) == {"waiting"}
