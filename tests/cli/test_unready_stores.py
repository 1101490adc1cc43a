"""Commands of operators on a store that is not ready: one sentence says what is wrong and what to run."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jobmill
from tests.cli.conftest import Shell
from tests.helpers import until
from tests.kit.places import free_port, port_of
from tests.kit.proxy import Proxy

COMMANDS = [
    ("status",),
    ("status", "--watch"),
    ("metrics",),
    ("metrics", "--json"),
    ("metrics", "--port", "0", "--quiet"),
    ("doctor",),
    ("fsck",),
]
OLD = Path(__file__).parents[1] / "upgrade" / "0.1.0" / "sqlite.sqlite3"

every_command = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@every_command
@pytest.mark.stores("postgres")
async def test_a_database_without_the_schema(shell: Shell, postgres_url: str, command: tuple[str, ...]) -> None:
    shell.url = postgres_url
    said = await asyncio.to_thread(lambda: shell.refused(*command, code=1))
    assert said == (
        "jobmill: the schema 'jobmill' is not set up yet; run `jobmill migrate` (or `await jobs.store.migrate()`)"
    )


@every_command
@pytest.mark.stores("mongo")
async def test_a_collection_without_indexes(shell: Shell, mongo_url: str, command: tuple[str, ...]) -> None:
    shell.url = mongo_url
    said = await asyncio.to_thread(lambda: shell.refused(*command, code=1))
    assert "has no index " in said
    assert said.endswith("run `jobmill migrate`")


@pytest.mark.parametrize("command", ["status", "metrics", "doctor", "fsck"])
@pytest.mark.stores("sqlite")
def test_a_file_of_an_older_version_is_migrated(shell: Shell, command: str) -> None:
    shutil.copy(OLD, shell.file)
    shell(command, code=1 if command == "doctor" else 0)  # its jobs have been due for long, and no worker runs
    assert shell("migrate").stdout == "up to date\n"


@every_command
@pytest.mark.stores("sqlite")
def test_a_file_of_a_newer_version(shell: Shell, command: tuple[str, ...]) -> None:
    shell("migrate")
    with closing(sqlite3.connect(shell.file)) as file, file:
        file.execute("INSERT INTO jobmill_migrations VALUES (999, '0999_future', 0)")
    said = shell.refused(*command, code=1)
    assert "was written by a newer Jobmill (schema 999, this one knows " in said
    assert said.endswith("update Jobmill; nothing was changed")


@every_command
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
@pytest.mark.stores("redis", "postgres")
def test_a_server_that_is_not_there(shell: Shell, scheme: str, command: tuple[str, ...]) -> None:
    port = free_port()
    shell.url = f"{scheme}://127.0.0.1:{port}"
    said = shell.refused(*command, code=3)
    assert str(port) in said


@pytest.mark.slow
@pytest.mark.stores("redis")
async def test_metrics_are_served_again_after_an_outage(shell: Shell, local_redis_url: str) -> None:
    async with Proxy(port_of(local_redis_url)) as proxy, jobmill.connect(local_redis_url) as jobs:
        await jobs.enqueue("send", queue="mail")
        shell.url = proxy.url(local_redis_url)
        process = shell.start("metrics", "--port", "0")
        assert process.stderr is not None
        base = re.search(r"http://\S+:\d+", await asyncio.to_thread(process.stderr.readline))
        assert base is not None

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(base[0] + path, timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        async def answers(path: str, status: int) -> Any:
            code, text = await asyncio.to_thread(get, path)
            return text if code == status else None

        proxy.refuse()
        proxy.cut()
        for path in ("/metrics", "/scale", "/scale/mail"):
            assert json.loads(await answers(path, 503)) == {"ok": False, "store": "unavailable"}
        assert json.loads(await answers("/livez", 200)) == {"ok": True}
        proxy.accept()
        await until(lambda: answers("/metrics", 200), 30)
        assert 'jobmill_queue_jobs{queue="mail",state="due"} 1' in await answers("/metrics", 200)
        process.terminate()
        _, log = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
    assert "/scale/mail cannot be answered, because the store is unavailable: " in log
    assert "Traceback" not in log
