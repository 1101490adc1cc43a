"""The example shops as their docstrings say: a real server, and worker processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from jobmill import Client, connect
from tests.examples.printed import EXAMPLES, curls, printed
from tests.kit.places import free_port
from tests.kit.processes import launched

#: The command that serves a shop, before its port; and the one that runs its worker: as the examples print them.
SERVERS = {
    "fastapi": [*printed("fastapi_shop.py", "uvicorn").argv(), "--port"],
    "flask": [*printed("flask_shop.py", "flask --app flask_shop run").argv(), "--port"],
    "litestar": [*printed("litestar_shop.py", "litestar --app litestar_shop:app run").argv(), "--port"],
}
WORKERS = {
    "fastapi": printed("fastapi_shop.py", "jobmill worker").argv(),
    "flask": printed("flask_shop.py", "flask --app flask_shop jobmill worker").argv(),
    "litestar": printed("litestar_shop.py", "litestar --app litestar_shop:app jobmill worker").argv(),
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
        own = {"SHOP_DB": str(self.database), "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                launched(None, signal.SIGKILL, command),
                cwd=EXAMPLES,
                env={**os.environ, **own, **environment},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def serve(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return self.start([*SERVERS[self.framework], str(self.port), *arguments], **environment)

    def work(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return self.start([*WORKERS[self.framework], *arguments], **environment)

    def run(self, *arguments: str) -> str:
        """A command of `jobmill` in the command line of the framework; what it printed."""
        ended = subprocess.run(
            [*WORKERS[self.framework][:-1], *arguments],
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

    def ask_as_printed(self) -> list[Answer]:
        """The requests that the example prints, up to the one that shows the order."""
        return [self.ask(*request) for request in curls(f"{self.framework}_shop.py")[:-1]]

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
