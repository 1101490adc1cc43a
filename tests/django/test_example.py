"""The example project as its README says: a real server, worker processes, a rollback, and a worker killed with -9."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.django.test_django import database_settings
from tests.examples.printed import curls, printed
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.processes import launched

PROJECT = Path(__file__).parents[2] / "examples/django_project"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any


class Shop:
    """The project with a database of its own, and its processes."""

    def __init__(self, url: str, folder: Path) -> None:
        given = database_settings(url)
        names = {"NAME": "DB", "USER": "USER", "PASSWORD": "PASSWORD", "HOST": "HOST", "PORT": "PORT"}
        postgres = {f"POSTGRES_{name}": given[key] for key, name in names.items() if url.startswith("postgres")}
        self.environment = {**os.environ, "SHOP_DB": given["NAME"], **postgres, "PYTHONDONTWRITEBYTECODE": "1"}
        self.log = folder / "log"
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def manage(self, *arguments: str) -> str:
        """Run a command to its end; what it printed."""
        ended = subprocess.run(
            [sys.executable, PROJECT / "manage.py", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def start(self, *command: str, folder: Path = PROJECT) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                launched(None, signal.SIGKILL, [sys.executable, *command]),
                cwd=folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        # From another folder, because the command must find the project without the working directory.
        return self.start(str(PROJECT / "manage.py"), "jobmill", "worker", *arguments, folder=self.log.parent)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            headers = {name.lower(): one for name, one in response.getheaders()}
            is_json = headers.get("content-type") == "application/json"
            return Answer(response.status, headers, json.loads(text) if is_json else text.decode())
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/orders/1/").status == 404
        except OSError:
            return False

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def shop(store_url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(store_url, tmp_path)
    yield shop
    shop.end()


async def ended(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 60)


@pytest.mark.extended
@pytest.mark.stores("sqlite", "postgres")
async def test_the_project(shop: Shop, store_name: str) -> None:
    await asyncio.to_thread(shop.manage, "migrate", "-v", "0")
    server = shop.start("-m", "gunicorn", "--preload", "-w", "2", "-b", f"127.0.0.1:{shop.port}", "project.wsgi")
    await until(shop.is_up, timeout=60)
    worker = shop.worker("--lease", "1s")

    made = shop.ask("POST", "/orders/", {"customer": "Ada", "amount": 12})
    assert made.status == 201, shop.log.read_text()
    number = made.json["number"]
    await until(lambda: shop.ask("GET", f"/orders/{number}/").json["receipt_sent"], timeout=60)

    # The order that is refused leaves neither a row nor a task.
    assert shop.ask("POST", "/orders/", {"customer": "Bob", "amount": 5_000}).status == 409
    assert shop.ask("GET", f"/orders/{number + 1}/").status == 404
    listed = json.loads(await asyncio.to_thread(shop.manage, "jobmill", "jobs", "list", "--json"))
    assert sorted(job["name"] for job in listed) == ["shop.tasks.close_orders", "shop.tasks.send_receipt"]
    (recurring,) = [job for job in listed if job["recurrence"]]
    assert recurring["recurrence"]["timezone"] == "Europe/Berlin"

    # A worker that dies leaves its task to another one.
    id = shop.ask("POST", "/exports/", {"seconds": 2}).json["id"]
    await until(lambda: shop.ask("GET", f"/exports/{id}/").json["status"] == "RUNNING", timeout=60)
    worker.kill()
    worker.wait()
    other = shop.worker("--lease", "1s")
    await until(lambda: shop.ask("GET", f"/exports/{id}/").json["status"] == "SUCCESSFUL", timeout=60)
    export = shop.ask("GET", f"/exports/{id}/").json
    assert (export["attempts"], export["result"]) == (2, {"orders": 1, "attempt": 2})
    assert len(set(export["workers"])) == 2

    # Only staff sees the dashboard.
    answer = shop.ask("GET", "/jobs/queues")
    assert (answer.status, answer.headers["location"]) == (302, "/admin/login/?next=/jobs/queues")
    assert "reports" in await asyncio.to_thread(shop.manage, "jobmill", "status")

    assert await ended(other) == 0, shop.log.read_text()
    assert await ended(server) == 0, shop.log.read_text()


@pytest.mark.extended
@pytest.mark.stores("sqlite")
async def test_several_processes_and_the_dashboard_command(shop: Shop, store_name: str) -> None:
    await asyncio.to_thread(shop.manage, "migrate", "-v", "0")
    shop.start(*printed("django_project", "python manage.py runserver").words[1:], "--noreload", str(shop.port))
    await until(shop.is_up, timeout=60)
    worker = printed("django_project", "python manage.py jobmill worker").words[1:]
    supervisor = shop.start(*worker, "--processes", "2", "--shutdown-timeout", "10s")
    order, refused, shown, export = curls("django_project")
    assert shop.ask(*order).status == 201
    assert shop.ask(*refused).status == 409
    await until(lambda: shop.ask(*shown).json["receipt_sent"], timeout=60)
    assert shop.ask(export.method, export.path, {"seconds": 0}).status == 202
    assert await ended(supervisor) == 0, shop.log.read_text()

    port = free_port()
    dashboard = shop.start("manage.py", "jobmill", "dashboard", "--port", str(port))
    shop.port = port
    await until(lambda: _status(shop, "/queues") == 200, timeout=60)
    assert "shop.tasks.close_orders" in shop.ask("GET", "/recurring").json
    assert await ended(dashboard) == 0, shop.log.read_text()


def _status(shop: Shop, path: str) -> int:
    try:
        return shop.ask("GET", path).status
    except OSError:
        return 0
