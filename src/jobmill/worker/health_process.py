"""The health port of a supervisor that forks: in a process of its own, because the supervisor has no event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket

import msgspec

from jobmill.worker.health import Address, Health
from jobmill.worker.processes import InChild, StartedProcess, fork
from jobmill.worker.supervisor_health import Board, Seen, supervisor_views

#: How long the process may take until it serves.
READY_S = 30.0
#: How long it may take to end before it is killed.
END_S = 2.0
_MAX_BYTES = 1 << 20


class HealthProcess:
    """Tells the process of the health port what the supervisor sees. It ends when this connection ends."""

    def __init__(self, address: Address, host: str) -> None:
        self._address = address
        self._host = host
        self._link: socket.socket | None = None
        self._sent: Seen | None = None

    def __enter__(self) -> HealthProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, here and in every fork."""
        if self._link is not None:
            self._link.close()

    def start(self, seen: Seen) -> StartedProcess:
        """Start the process: the first one, or the next one after it has ended."""
        if self._link is not None:
            self._link.close()
        self._sent = seen
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = fork(functools.partial(_serve, theirs, seen, self._address, self._host), None)
        except InChild:
            raise
        except BaseException:
            theirs.close()
            raise
        theirs.close()
        return process

    def wait_ready(self) -> bool:
        """Wait until the process serves; False if it has ended, or takes too long."""
        assert self._link is not None
        self._link.settimeout(READY_S)
        try:
            return bool(self._link.recv(1))
        except TimeoutError:
            return False
        finally:
            self._link.setblocking(False)

    def update(self, seen: Seen) -> None:
        """Tell it what the supervisor sees, if that has changed."""
        assert self._link is not None
        if seen == self._sent:
            return
        try:
            self._link.send(msgspec.json.encode(seen), socket.MSG_DONTWAIT)
        except OSError:
            return  # it does not read, or has ended: the next turn tries again
        self._sent = seen

    def end(self, process: StartedProcess) -> int:
        """End the process, and return its exit code."""
        assert self._link is not None
        try:
            self._link.shutdown(socket.SHUT_WR)
            self._link.settimeout(END_S)
            while self._link.recv(16):
                pass
        except OSError:
            process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process.poll() or 0


def _serve(link: socket.socket, seen: Seen, address: Address, host: str) -> int:
    """In the process of the health port."""
    # A signal to all processes of a service is for the supervisor. This port answers until all workers have ended.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    with link:
        return asyncio.run(_answer(link, Board(seen), address, host))


async def _answer(link: socket.socket, board: Board, address: Address, host: str) -> int:
    ended = asyncio.Event()

    def on_readable() -> None:
        try:
            packet = link.recv(_MAX_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        if packet:
            board.update(msgspec.json.decode(packet, type=Seen))
        else:
            asyncio.get_running_loop().remove_reader(link)
            ended.set()

    health = Health(address, supervisor_views(board), host)
    await health.start()
    try:
        link.setblocking(False)
        asyncio.get_running_loop().add_reader(link, on_readable)
        link.send(b"1")
        await ended.wait()
    finally:
        await health.stop()
    return 0
