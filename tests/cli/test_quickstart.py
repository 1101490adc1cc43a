from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.mark.slow
def test_the_quickstart_works_until_ctrl_c(shell: Shell) -> None:
    process = subprocess.Popen(
        [sys.executable, str(QUICKSTART)], env=shell.environment, cwd=shell.folder, stdout=subprocess.PIPE, text=True
    )
    shell.processes.append(process)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["hello Ada\n", "greeted Ada\n", "hello Grace\n"]
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
