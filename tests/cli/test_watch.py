"""`jobmill status --watch` on a real terminal: it shows changes, survives an outage, and ends at Ctrl-C."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import subprocess
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

import jobmill
from tests.cli.conftest import Shell
from tests.helpers import until
from tests.kit.places import free_port, port_of
from tests.kit.proxy import Proxy

ALTERNATE_SCREEN, MAIN_SCREEN, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
HOME = "\x1b[H"


class Terminal:
    """A terminal of 100 columns that a command has as its own, so that keys become signals."""

    def __init__(self, shell: Shell, *args: str) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, 100))
        self.written = ""
        self.process: subprocess.Popen[str] = shell.start(
            *args,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        try:
            self.written += os.read(self._ours, 1 << 16).decode()
        except OSError:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._ours)

    @property
    def screen(self) -> str:
        """The last whole frame, without colors."""
        frames = self.written.split(HOME)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frames[-2] if len(frames) > 2 else "")

    def row(self, queue: str) -> list[str]:
        """What the screen says of a queue: its name, due, later and so on."""
        return next((line.split() for line in self.screen.splitlines() if line.startswith(queue)), [])

    async def press(self, keys: bytes) -> int:
        """Press keys that end the command; its exit code."""
        os.write(self._ours, keys)
        return await asyncio.to_thread(self.process.wait, 20)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)


@contextmanager
def terminal(shell: Shell, *args: str) -> Iterator[Terminal]:
    made = Terminal(shell, *args)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def jobs(shell: Shell) -> AsyncIterator[jobmill.Client]:
    async with jobmill.connect(shell.url) as client:
        yield client


@pytest.mark.slow
async def test_the_screen_follows_the_store_until_ctrl_c(shell: Shell, jobs: jobmill.Client) -> None:
    await jobs.enqueue("send", queue="mail")
    with terminal(shell, "status", "--watch", "--every", "100ms") as watch:
        await until(lambda: watch.row("mail")[:3] == ["mail", "1", "0"], 30)
        assert watch.written.startswith(ALTERNATE_SCREEN)
        await jobs.enqueue("send", queue="mail")
        await jobs.enqueue("send", queue="images", delay=60)
        await until(lambda: watch.row("mail")[:3] == ["mail", "2", "0"])
        await until(lambda: watch.row("images")[:3] == ["images", "0", "1"])
        assert await watch.press(b"\x03") == 130
        await until(lambda: MAIN_SCREEN in watch.written)
        _, _, after = watch.written.rpartition(MAIN_SCREEN)
        assert SHOW_CURSOR in watch.written
        assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", after).strip() == "", "the terminal is as it was"


@pytest.mark.slow
@pytest.mark.stores("redis")
async def test_the_screen_survives_a_store_that_goes_away(shell: Shell, local_redis_url: str) -> None:
    async with Proxy(port_of(local_redis_url)) as proxy, jobmill.connect(local_redis_url) as jobs:
        await jobs.enqueue("send", queue="mail")
        shell.url = proxy.url(local_redis_url)
        with terminal(shell, "status", "--watch", "--every", "100ms") as watch:
            await until(lambda: watch.row("mail")[:2] == ["mail", "1"], 30)
            proxy.refuse()
            proxy.cut()
            await until(lambda: "the store is unavailable" in watch.screen, 30)
            assert watch.row("mail")[:2] == ["mail", "1"], "what it saw last is still there"
            await jobs.enqueue("send", queue="mail")
            proxy.accept()
            await until(lambda: watch.row("mail")[:2] == ["mail", "2"], 30)
            assert "unavailable" not in watch.screen
            proxy.refuse()
            proxy.cut()
            await until(lambda: "the store is unavailable" in watch.screen, 30)
            assert await watch.press(b"\x03") == 130


def test_a_store_that_is_not_there_ends_the_command(shell: Shell) -> None:
    shell.url = f"redis://127.0.0.1:{free_port()}"
    shell.refused("status", "--watch", code=3)
