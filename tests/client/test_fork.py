"""Processes that fork after they have used Jobmill: each child has connections and threads of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import jobmill
from tests.helpers import until
from tests.kit.places import free_port

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, os, sys, threading, jobmill

jobs = jobmill.connect()
jobs.sync(jobs.store.migrate())
for _ in range(3):
    jobs.sync.enqueue("send")

def child(depth):
    jobs.sync.enqueue("send")
    assert jobs.sync.count()[0].count >= 4
    asyncio.run(there())
    if depth:
        fork(depth - 1)
    jobs.sync.close()

async def there():
    await jobs.enqueue("send")

def fork(depth):
    pid = os.fork()
    if not pid:
        try:
            child(depth)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

busy = True
def keep_busy():
    while busy:
        jobs.sync.count()
others = [threading.Thread(target=keep_busy) for _ in range(2)]
for other in others:
    other.start()
try:
    for _ in range(4):
        fork(1)  # while other threads use the store
finally:
    busy = False
    for other in others:
        other.join()
jobs.sync.enqueue("send")
print(jobs.sync.count()[0].count)
jobs.sync.close()
"""


@pytest.mark.slow
async def test_a_forked_child_works_and_its_parent_goes_on(store_name: str, store_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM),  # Python 3.12 warns of threads at a fork
        env={**os.environ, "JOBMILL_URL": store_url},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()
    # Three, then four children with one child each, two each; and the last. The memory of a child is its own.
    assert out.decode().split() == ["4" if store_name == "memory" else "20"]


APP = """
import os, jobmill

jobs = jobmill.connect()
jobs.sync.enqueue("loaded")  # in the parent, before the fork

def app(environ, start_response):
    enqueued = jobs.sync.enqueue("requested")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {enqueued.status}".encode()]
"""


@pytest.mark.slow
@pytest.mark.stores("sqlite", "postgres", "redis", "mongo")
@pytest.mark.extended("sqlite", "redis", "mongo")  # test_a_forked_child_works_and_its_parent_goes_on has each store
async def test_gunicorn_with_preload(store_name: str, store_url: str, tmp_path: Path) -> None:
    async with jobmill.connect(store_url) as jobs:
        await jobs.store.migrate()
        (tmp_path / "app.py").write_text(APP)
        port = free_port()
        gunicorn = start_gunicorn(port, store_url, tmp_path)
        try:
            answers: set[str] = set()

            async def both() -> bool:
                answers.add(await asyncio.to_thread(fetch, port))
                return len(answers - {""}) == 2

            await until(both, 40)
        finally:
            gunicorn.terminate()
            await asyncio.to_thread(gunicorn.wait, 30)
        assert all(answer.endswith("created") for answer in answers - {""}), (tmp_path / "log").read_text()
        assert {job.name for job in (await jobs.find()).jobs} == {"loaded", "requested"}


def start_gunicorn(port: int, store_url: str, folder: Path) -> subprocess.Popen[bytes]:
    options = ["--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "--timeout", "15"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "app:app"],
            env={**os.environ, "JOBMILL_URL": store_url},
            cwd=folder,
            stdout=log,
            stderr=log,
        )


def fetch(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:  # not yet
        return ""
