"""The example shops as their docstrings say: a real server, and worker processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from jobmill import Client, connect
from tests.kit.places import free_port
from tests.kit.processes import launched

EXAMPLES = Path(__file__).parents[2] / "examples"

#: The command that serves a shop, before its port; and the one that runs its worker.
SERVERS = {
    "fastapi": ["-m", "uvicorn", "fastapi_shop:app", "--port"],
    "flask": ["-m", "flask", "--app", "flask_shop", "run", "--port"],
    "litestar": ["-m", "litestar", "--app", "litestar_shop:app", "run", "--port"],
}
WORKERS = {
    "fastapi": ["-m", "jobmill", "worker", "fastapi_shop:jobs"],
    "flask": ["-m", "flask", "--app", "flask_shop", "jobmill", "worker"],
    "litestar": ["-m", "litestar", "--app", "litestar_shop:app", "jobmill", "worker"],
}


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Shop:
    """One example with a database of its own, and its processes."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework = framework
        self.database = folder / "shop.db"
        self.log = folder / "log"
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def jobs(self) -> Client:
        """A client of the same store."""
        return connect(f"sqlite:///{self.database}")

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        own = {"SHOP_DB": str(self.database), "PYTHONPATH": str(EXAMPLES), "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                launched(None, signal.SIGKILL, [sys.executable, *command]),
                cwd=EXAMPLES,
                env={**os.environ, **own, **environment},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def serve(self, **environment: str) -> subprocess.Popen[bytes]:
        return self.start([*SERVERS[self.framework], str(self.port)], **environment)

    def work(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return self.start([*WORKERS[self.framework], *arguments], **environment)

    def run(self, *arguments: str) -> str:
        """A command of `jobmill` in the command line of the framework; what it printed."""
        ended = subprocess.run(
            [sys.executable, *WORKERS[self.framework][:-1], *arguments],
            cwd=EXAMPLES,
            env={**os.environ, "SHOP_DB": str(self.database), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"content-type": "application/json"} if sent else {})
            response = connection.getresponse()
            return Answer(response.status, response.read().decode())
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/orders/1").status == 404
        except OSError:
            return False

    def state(self, order: int) -> str:
        return str(self.ask("GET", f"/orders/{order}").json["state"])

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
