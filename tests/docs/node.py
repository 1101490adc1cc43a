"""Blocks of JavaScript, run on Node with BullMQ beside them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from typing import IO

from tests.kit.node import Packages, find_node
from tests.kit.processes import launched

ENDS_WITHIN_S = 60.0


class Scripts:
    """The scripts of one page, in its folder."""

    def __init__(self, packages: Packages, folder: Path) -> None:
        self._folder = folder
        self._started: list[tuple[asyncio.subprocess.Process, IO[bytes]]] = []
        # A script finds packages only from where it is itself.
        (folder / "node_modules").symlink_to(packages.home / "node_modules")

    async def run(self, where: str, code: str) -> None:
        """To its end, which must be a good one."""
        process, errors = await self._start(code)
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await process.wait()
        except TimeoutError:
            raise AssertionError(f"{where} did not end within {ENDS_WITHIN_S:g} s; {_said(errors)}") from None
        assert process.returncode == 0, f"{where}: {_said(errors)}"

    async def begin(self, code: str) -> None:
        """Until the page ends."""
        await self._start(code)

    async def close(self) -> None:
        """End those that still run."""
        for process, errors in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            errors.close()

    async def _start(self, code: str) -> tuple[asyncio.subprocess.Process, IO[bytes]]:
        script = self._folder / f"block{len(self._started)}.mjs"
        script.write_text(code)
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the page
        process = await asyncio.create_subprocess_exec(
            *launched(None, signal.SIGKILL, [find_node(), script]), stdout=errors, stderr=errors
        )
        self._started.append((process, errors))
        return process, errors


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()[-2_000:]
