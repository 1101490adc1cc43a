"""The benchmark's server far away: all arrives, in its order, and later."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from bench.far import far

DISTANCE_S = 0.05


@pytest.fixture
def echo() -> Iterator[str]:
    """The URL of a server that sends back what it gets, until one side ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/3"
    thread.join(10)


def test_an_answer_comes_later_by_the_round_trip_and_whole(echo: str) -> None:
    sent = bytes(range(256)) * 4_000
    with far(echo, DISTANCE_S) as url:
        assert urlsplit(url).path == "/3"
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=10) as connection:
            began = time.perf_counter()
            connection.sendall(b"a question")
            assert connection.recv(100) == b"a question"
            assert time.perf_counter() - began >= DISTANCE_S

            threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
            came = b""
            while len(came) < len(sent):
                came += connection.recv(1 << 16)
            assert came == sent

            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "the end arrives too"
