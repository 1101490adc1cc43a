"""The health server, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobmill.errors import InvalidValue
from jobmill.runtime.watchdog import Watchdog
from jobmill.worker import health
from jobmill.worker.health import Health, ask, worker_views


class Worker:
    """Stands in for the worker that the server reports on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watchdog = Watchdog(lambda: self.now)
        self.wrong: dict[str, Any] = {}
        self.metrics = "m 1\n"
        self.health = Health(0, worker_views(self.watchdog, lambda: self.wrong, lambda: self.metrics))

    async def raw(self, request: bytes) -> bytes:
        async with self.connection() as (reader, writer):
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 5)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.health.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()

    async def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        head, _, body = (await self.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(b"\r\n\r\n")
        assert b"\r\nConnection: close" in head
        return int(head.split()[1]), json.loads(body) if body else None


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    await worker.health.start()
    yield worker
    await worker.health.stop()


async def test_livez_and_readyz_are_ok_while_all_loops_run(worker: Worker) -> None:
    worker.watchdog.beat("exchange")
    for path in ("/livez", "/readyz", "/livez?verbose"):
        assert await worker.ask(path) == (200, {"ok": True})


async def test_livez_fails_while_a_loop_is_stuck(worker: Worker) -> None:
    worker.watchdog.beat("heartbeat")
    worker.now = 31.25
    worker.watchdog.beat("exchange")
    for path in ("/livez", "/readyz"):
        assert await worker.ask(path) == (503, {"ok": False, "stuck": {"heartbeat": 31.2}})
    worker.watchdog.beat("heartbeat")
    assert await worker.ask("/livez") == (200, {"ok": True})


async def test_readyz_fails_while_the_store_is_unavailable_or_the_worker_is_not_ready(worker: Worker) -> None:
    worker.watchdog.store_error = "cannot reach postgresql://ada:secret@db"
    worker.wrong = {"ready": False}
    assert await worker.ask("/readyz") == (503, {"ok": False, "store": "unavailable", "ready": False})
    assert await worker.ask("/livez") == (200, {"ok": True})
    worker.watchdog.store_error, worker.wrong = None, {}
    assert await worker.ask("/readyz") == (200, {"ok": True})


async def test_other_paths_and_methods_are_refused(worker: Worker) -> None:
    assert (await worker.ask("/"))[0] == 404
    assert (await worker.ask("/livez", "POST"))[0] == 405
    assert await worker.ask("/livez", "HEAD") == (200, None)
    assert b"Allow: GET, HEAD" in await worker.raw(b"DELETE /livez HTTP/1.1\r\n\r\n")


async def test_a_request_that_is_not_http_is_refused(worker: Worker) -> None:
    for request in (b"hello\r\n\r\n", b"GET /livez\r\n\r\n", b"\x16\x03\x01\xff\r\n\r\n"):
        assert (await worker.raw(request)).startswith(b"HTTP/1.1 400 ")
    too_long = b"GET /livez HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    assert (await worker.raw(too_long)).startswith(b"HTTP/1.1 431 ")
    assert await worker.ask("/livez") == (200, {"ok": True})


async def test_a_client_that_sends_nothing_is_disconnected(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "READ_DEADLINE_S", 0.05)
    assert await worker.raw(b"GET /livez HTTP/1.1\r\n") == b""


async def test_stopping_closes_open_connections() -> None:
    worker = Worker()
    await worker.health.start()
    async with worker.connection() as (reader, _):
        assert await worker.ask("/livez") == (200, {"ok": True})  # the server has taken the first connection too
        await asyncio.wait_for(worker.health.stop(), 2)
        assert await asyncio.wait_for(reader.read(), 5) == b""
    await worker.health.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", worker.health.port)


async def test_a_port_that_is_taken_is_refused(worker: Worker) -> None:
    port = worker.health.port
    with pytest.raises(InvalidValue, match=f"health: expected a port that can be bound on 127.0.0.1, got {port}; "):
        await Health(port, {}).start()


async def test_an_unknown_host_is_refused(worker: Worker) -> None:
    with pytest.raises(InvalidValue, match="bound on 203.0.113.1, got 0"):
        await Health(0, {}, host="203.0.113.1").start()


async def test_an_unknown_name_of_a_host_is_refused() -> None:
    with pytest.raises(InvalidValue, match="bound on no.such.host.invalid, got 0; "):
        await Health(0, {}, host="no.such.host.invalid").start()


async def test_metrics_are_text(worker: Worker) -> None:
    head, _, body = (await worker.raw(b"GET /metrics HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in head
    assert body == b"m 1\n"


async def test_an_error_in_a_view_is_a_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> str:
        raise RuntimeError("no metrics today")

    server = Health(0, {"/metrics": broken})
    await server.start()
    assert (await ask(server.port, "/metrics"))[0] == 500
    assert "/metrics could not be answered" in caplog.text
    assert (await ask(server.port, "/metrics"))[0] == 500
    await server.stop()


async def test_a_unix_socket(worker: Worker, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    views = worker_views(worker.watchdog, lambda: {"stopping": True}, str)
    server = Health(path, views)
    await server.start()
    assert await ask(path, "/livez") == (200, b'{"ok":true}')
    assert await ask(path, "/readyz") == (503, b'{"ok":false,"stopping":true}')
    with pytest.raises(InvalidValue, match="health: expected a path for a socket, got '.+'; another process uses it"):
        await Health(path, views).start()
    assert (await ask(path, "/livez"))[0] == 200  # the server has taken the connection of the other one too
    await server.stop()
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no such file
        await ask(path, "/livez")
    again = Health(path, views)  # over the file that a killed process left
    await again.start()
    assert (await ask(path, "/livez"))[0] == 200
    await again.stop()


async def test_an_answer_that_is_not_http(tmp_path: Path) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_unix_server(hello, tmp_path / "socket"):
        with pytest.raises(ConnectionError, match="not HTTP"):
            await ask(str(tmp_path / "socket"), "/livez")
