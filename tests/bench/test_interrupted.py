"""A run of the benchmark that is interrupted: what it has measured until then is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: Of a turn that begins when the one before it has been measured.
SECOND = b"50 callers"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    compiled = Path(cache_from_source(str(ROOT / "src/jobmill/client/client.py")))
    compiled.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench", "--quick", "--store", "sqlite", "--measure", "enqueue"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path), "--json", str(tmp_path / "figures.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"src{os.pathsep}."},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stderr is not None
        assert any(SECOND in line for line in running.stderr)
        running.send_signal(number)
        shown, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors.decode()
    assert compiled.exists(), "what is measured does not compile it again"
    assert b"one by one" in shown
    figures = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert figures["interrupted"]
    assert [one["what"] for one in figures["figures"] if one["unit"] == "jobs/s"] == ["one by one"]
    assert "It was interrupted" in (tmp_path / "performance.md").read_text("utf-8")
