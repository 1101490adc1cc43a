"""The memory of a process that the benchmark looks at, with that of those below it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.child import READY, start
from bench.resident import MB, resident
from bench.scenarios import nothing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HOLD = "import sys; held = bytearray({mb} << 20); print('held', flush=True); sys.stdin.read()"
#: Starts another one that holds as much.
NESTED = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); " + HOLD


def _held(code: str, *arguments: str, lines: int) -> int:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        now = resident(process.pid).now
        process.communicate()
    return now


def test_memory_of_a_process_and_of_its_children_counts() -> None:
    small, large = _held(HOLD.format(mb=1), lines=1), _held(HOLD.format(mb=51), lines=1)
    assert 45 * MB < large - small < 55 * MB
    two = _held(NESTED.format(mb=51), HOLD.format(mb=51), lines=2)
    assert two > 2 * 51 * MB


def test_the_maximum_is_at_least_the_present_value() -> None:
    with start(nothing) as child:
        child.wait_for(READY)
        found = resident(child.pid)
    assert 0 < found.now <= found.most
