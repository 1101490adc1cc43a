"""Runs JavaScript blocks of the pages on Node, with BullMQ installed."""

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
    """Runs the scripts of one page in its folder."""

    def __init__(self, packages: Packages, folder: Path) -> None:
        self._folder = folder
        self._started: list[tuple[asyncio.subprocess.Process, IO[bytes]]] = []
        # Node searches packages from the folder of the script.
        (folder / "node_modules").symlink_to(packages.home / "node_modules")

    async def run(self, where: str, code: str) -> None:
        """Run a script to its end; it must exit with 0."""
        process, errors = await self._start(code)
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await process.wait()
        except TimeoutError:
            raise AssertionError(f"{where} did not end within {ENDS_WITHIN_S:g} s; {_output(errors)}") from None
        assert process.returncode == 0, f"{where}: {_output(errors)}"

    async def begin(self, code: str) -> None:
        """Start a script that runs until the page ends."""
        await self._start(code)

    async def close(self) -> None:
        """Kill the scripts that still run."""
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


async def parsed(where: str, code: str, folder: Path) -> None:
    """Let Node parse a module without running it."""
    script = folder / "parsed.mjs"
    script.write_text(code)
    process = await asyncio.create_subprocess_exec(find_node(), "--check", script, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 0, f"{where}: {errors.decode(errors='replace').strip()[-2_000:]}"


def _output(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()[-2_000:]
