"""Sentry in the Django project of docs/django.md: a real worker, and the real SDK with a server that records."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sentry_sdk.envelope import Envelope

from tests.django.test_page import write_project
from tests.docs.pages import ROOT
from tests.kit.processes import launched, wait_until

ENQUEUE = """
from shop.tasks import send_receipt
send_receipt.using(max_attempts=1).enqueue(999)
"""


class Sentry:
    """A server on this machine that keeps the events it gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        keep = self._keep

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keep(self.rfile.read(int(self.headers["content-length"])), self.headers.get("content-encoding"))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _keep(self, body: bytes, encoding: str | None) -> None:
        envelope = Envelope.deserialize(gzip.decompress(body) if encoding == "gzip" else body)
        self.events += [json.loads(item.get_bytes()) for item in envelope.items if item.type == "event"]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    sentry = Sentry()
    yield sentry
    sentry.close()


@pytest.mark.slow
def test_a_task_that_fails_is_one_event(sentry: Sentry, tmp_path: Path) -> None:
    write_project(ROOT / "docs/django.md", tmp_path)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "SENTRY_DSN": sentry.dsn}
    django = [sys.executable, "-m", "django"]

    def run(*arguments: str) -> None:
        subprocess.run(
            [*django, *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60
        )

    run("migrate", "--run-syncdb", "-v", "0")
    run("shell", "-c", ENQUEUE)
    worker = subprocess.Popen(
        launched(None, signal.SIGKILL, [*django, "jobmill", "worker"]),
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: bool(sentry.events), "the worker reports the task")
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    (event,) = sentry.events
    raised = event["exception"]["values"][-1]
    assert (raised["type"], raised["mechanism"]["type"]) == ("Order.DoesNotExist", "jobmill")
    assert raised["stacktrace"]["frames"][-1]["function"] == "get"
    assert "send_receipt" in {frame["function"] for frame in raised["stacktrace"]["frames"]}
    assert event["tags"] == {"name": "shop.tasks.send_receipt", "queue": "mail", "attempt": "1"}
    assert "django" in event["sdk"]["integrations"]
