"""Several processes open a new file at the same moment: one of them makes it, and the others wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPENS = r"""
import asyncio, sys, jobmill

async def main() -> None:
    print("ready", flush=True)
    for number in range(40):
        sys.stdin.readline()
        async with jobmill.connect(f"sqlite:///{sys.argv[1]}/{number}.db") as jobs:
            await jobs.depths()
        print("opened", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.stores("sqlite")
def test_processes_that_open_a_new_file_together_wait_for_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENS, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for number, word in enumerate(("ready", *["opened"] * 40)):
            for process in processes:
                assert process.stdout is not None
                line = process.stdout.readline().strip()
                assert line == word, process.communicate(timeout=30)[1]
            for process in processes if number < 40 else ():
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
