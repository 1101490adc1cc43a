"""Workers that a supervisor forks: when it forks, and that no fork shares what must be its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.worker.forking import why_unsafe
from tests.helpers import until, without_coverage
from tests.kit.places import free_port
from tests.kit.processes import Member, family, is_gone
from tests.kit.scrape import ask
from tests.kit.workers import ROOT, WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]

#: The handler stays in its process, so that each process of several runs one job.
APP = """
import asyncio, atexit, os, random
from pathlib import Path
import jobmill
{extra}
jobs = jobmill.connect()
here = Path(os.environ["NOTES_DIR"])
last_words = (here / "last_words").open("a")
last_words.own_cycle = [last_words]
atexit.register(lambda: (here / f"exit-{{os.getpid()}}").touch())

@jobs.handler()
async def look(context: jobmill.Context, beside: int) -> dict:
    last_words.write(f"{{os.getpid()}} ")
    (here / f"here-{{os.getpid()}}").touch()
    while len(list(here.glob("here-*"))) < beside:
        await asyncio.sleep(0.01)
    inner = await jobs.enqueue("nobody", {{}})
    return {{"pid": os.getpid(), "parent": os.getppid(), "random": random.random(), "id": inner.id,
            "session": os.getsid(0), "worker": context.job.worker}}
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.end()


@pytest.fixture
async def jobs(workers: WorkerProcesses) -> AsyncIterator[Client]:
    async with jobmill.connect(workers.url) as client:
        yield client


def start(workers: WorkerProcesses, *args: str, extra: str = "") -> subprocess.Popen[bytes]:
    app = workers.folder / "forked_app.py"
    app.write_text(APP.format(extra=extra))
    return workers.start("worker", f"{app}:jobs", "--processes", "2", "--concurrency", "1", *args)


async def look_around(jobs: Client) -> list[dict[str, Any]]:
    """What a handler in each of two processes sees."""
    both = [await jobs.enqueue("look", {"beside": 2}) for _ in range(2)]
    return [await one.result(timeout=60) for one in both]


def files(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_forks_share_the_code_and_nothing_else(workers: WorkerProcesses, jobs: Client) -> None:
    supervisor = start(workers)
    one, two = await look_around(jobs)
    assert {one["parent"], two["parent"]} == {supervisor.pid}
    for field in ("pid", "random", "id", "worker"):
        assert one[field] != two[field], field
    assert [one["session"], two["session"]] == [one["pid"], two["pid"]], "Ctrl-C reaches only the supervisor"
    # The supervisor stays as it was before the first fork, so that it can fork again.
    assert len(os.listdir(f"/proc/{supervisor.pid}/task")) == 1
    assert [name for name in files(supervisor.pid) if "eventpoll" in name or "jobs.db" in name] == []
    own = [{name for name in files(each["pid"]) if name.startswith(("socket:", "pipe:"))} for each in (one, two)]
    inherited = {name for name in files(supervisor.pid) if name.startswith("pipe:")}
    assert own[0] & own[1] == set()
    assert inherited & (own[0] | own[1]) == set(), "the supervisor's signals are its own"
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 0
    # Each has ended like any other Python program.
    assert sorted((workers.folder / "last_words").read_text().split()) == sorted(
        str(each["pid"]) for each in (one, two)
    )
    assert {f"exit-{each['pid']}" for each in (one, two)} < {path.name for path in workers.folder.glob("exit-*")}


async def test_a_process_is_replaced_by_another_fork(workers: WorkerProcesses, jobs: Client) -> None:
    supervisor = start(workers, "--max-jobs", "1")
    seen = [*await look_around(jobs), *await look_around(jobs)]
    killed = await jobs.enqueue("look", {"beside": 9_999})
    await until(lambda: len(list(workers.folder.glob("here-*"))) > 4, 30)
    old = {str(one["pid"]) for one in seen}
    (running,) = [path.name[5:] for path in workers.folder.glob("here-*") if path.name[5:] not in old]
    os.kill(int(running), signal.SIGKILL)
    await until(lambda: "crashed: killed by SIGKILL" in workers.output(supervisor), 30)
    assert (await jobs.cancel(killed.id)).ids == [killed.id]
    last = await look_around(jobs)
    assert {one["parent"] for one in (*seen, *last)} == {supervisor.pid}
    assert len({one["pid"] for one in (*seen, *last)}) == 6
    assert len({one["random"] for one in (*seen, *last)}) == 6


UNSAFE = {
    "threads": (
        "import sleeping_thread",
        "the import of sleeping_thread starts threads",
    ),
    "connection": (
        "import socket; left = socket.create_server(('127.0.0.1', 0))",
        "this process has a connection (a socket) open",
    ),
    "loop": (
        "import select; left = select.epoll()",
        "this process has an event loop open",
    ),
    "database": (
        "import sqlite3; left = sqlite3.connect(os.environ['NOTES_DIR'] + '/other.db'); left.execute('begin')",
        "/other.db open",
    ),
}


@pytest.mark.parametrize("what", UNSAFE)
async def test_an_application_that_must_not_be_forked(workers: WorkerProcesses, jobs: Client, what: str) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    (workers.folder / "sleeping_thread.py").write_text(thread)
    extra, why = UNSAFE[what]
    supervisor = start(workers, extra=extra)
    one, two = await look_around(jobs)
    assert {one["parent"], two["parent"]} == {supervisor.pid}
    assert "--spawn" in command_line(supervisor.pid), "it began again"
    assert "--processes" not in command_line(one["pid"])
    assert len(os.listdir(f"/proc/{supervisor.pid}/task")) == 1
    (line,) = [line for line in workers.output(supervisor).splitlines() if "new interpreter" in line]
    assert why in line
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 0


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", None),
        ("left = open('log', 'a')", None),
        ("left = open('/dev/null', 'r+b')", None),
        ("import threading; threading.Thread(target=print).start(); import gc; gc.collect()", None),
        ("left = open('log', 'w+')", "/log open"),
        ("import asyncio; left = asyncio.new_event_loop()", " open"),
        ("import os; left = os.eventfd(0)", "[eventfd] open"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "several threads"),
    ],
)
def test_what_is_unsafe_to_fork(tmp_path: Path, code: str, why: str | None) -> None:
    code = f"{code}\nfrom jobmill.worker.forking import why_unsafe; print(why_unsafe())"
    environment = without_coverage({**os.environ, "PYTHONPATH": str(ROOT / "src")})
    said = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True)
    assert said.strip() == "None" if why is None else why in said


def test_other_systems_do_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_unsafe() == "only on Linux can a process be forked safely"


# ---------------------------------------------------------------------------------------------------- the health port


async def start_with_port(workers: WorkerProcesses) -> tuple[subprocess.Popen[bytes], int, list[Member]]:
    """A supervisor that is ready, its port, and its family: it, the process of the port, and two workers."""
    port = free_port()
    supervisor = start(workers, "--health", str(port))
    await until(lambda: answers(port), 60)
    return supervisor, port, family(supervisor.pid)


def answers(port: int) -> bool:
    answer = ask(port, "/readyz")
    return answer is not None and answer.status == 200


async def test_the_process_of_the_health_port_is_restarted(workers: WorkerProcesses, jobs: Client) -> None:
    supervisor, port, (_, of_port, *_) = await start_with_port(workers)
    os.kill(of_port.pid, signal.SIGTERM)  # a service manager may send it to all processes
    os.kill(of_port.pid, signal.SIGKILL)
    await until(lambda: is_gone(of_port), 20)
    await until(lambda: answers(port), 30)
    assert re.search(r"health port: crashed: killed by SIGKILL .*; restarting in", workers.output(supervisor))
    assert len(await look_around(jobs)) == 2
    assert len(family(supervisor.pid)) == 4
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 0
    assert ask(port, "/livez") is None


async def test_nothing_is_left_when_the_supervisor_is_killed(workers: WorkerProcesses) -> None:
    supervisor, _, members = await start_with_port(workers)
    assert len(members) == 4
    supervisor.kill()
    await until(lambda: all(is_gone(one) for one in members), 30)


# ---------------------------------------------------------------------------------------------------- memory


@pytest.mark.extended
@pytest.mark.alone
async def test_four_processes_share_most_of_their_memory(workers: WorkerProcesses, jobs: Client) -> None:
    """The supervisor counts too. Measured: 54 to 59 MB.

    10 MB are libraries in C, which the processes of the tests share: 62 MB if no other Python program runs.
    """
    first = await start_small(workers)  # it compiles modules, which takes 5 MB
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    supervisor = await start_small(workers)
    members = family(supervisor.pid)
    assert len(members) == 5
    assert sum(map(proportional_bytes, members)) < 60e6
    for job in [await jobs.enqueue("nothing", {}) for _ in range(200)]:
        await job.result(timeout=60)
    assert sum(map(proportional_bytes, members)) < 60e6


async def start_small(workers: WorkerProcesses) -> subprocess.Popen[bytes]:
    """Four processes with a handler that does nothing; all of them are ready."""
    app = workers.folder / "small_app.py"
    app.write_text("import jobmill\njobs = jobmill.connect()\n@jobs.handler()\nasync def nothing() -> None: ...\n")
    supervisor = workers.start("worker", f"{app}:jobs", "--processes", "4")
    await until(lambda: workers.output(supervisor).count("concurrency 20") == 4, 60)
    return supervisor


def proportional_bytes(member: Member) -> int:
    """The memory of a process, with its share of what it shares."""
    lines = Path(f"/proc/{member.pid}/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024
