"""What Windows and macOS need, as far as Linux can show it: imports, jobs that run, and what type checkers know.

None of this is a test on these systems. `tox run -e portable` runs tests there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobmill import InvalidValue
from jobmill.worker.options import check_health
from jobmill.worker.supervisor import check_processes
from tests.docs.pages import ROOT
from tests.helpers import without_coverage

HERE = Path(__file__).parent

#: Where names are used that a system does not have, because the code never gets there. "Other systems" in
#: docs/deployment.md lists it.
NOT_THERE = {
    "win32": (
        r"worker/isolate/",  # isolated handlers: refused by `where_is`
        r"worker/(supervisor|processes|forking|health_process)\.py",  # --processes: refused by `check_processes`
        r"frameworks/beside\.py",  # the same
        r"worker/health\.py",  # unix sockets: refused by `check_health`
        r"worker/recycle\.py",  # max_memory: refused by `to_bytes`
    ),
    # Forks, which only Linux does safely.
    "darwin": (r"worker/isolate/(server|server_link|process|process_state)\.py", r"worker/health_process\.py"),
}


def windows_like(what: str) -> str:
    ran = subprocess.run(
        [sys.executable, HERE / "windows_like.py", what],
        env=without_coverage(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_no_module_needs_at_its_import_what_windows_does_not_have() -> None:
    assert windows_like("imports") == ""


@pytest.mark.slow
def test_jobs_run_without_what_windows_does_not_have() -> None:
    assert windows_like("works").splitlines() == [
        *("memory: hello Ada", "memory: 6"),
        *("sqlite: hello Ada", "sqlite: 6"),
    ]


@pytest.mark.extended
@pytest.mark.parametrize("platform", NOT_THERE)
def test_no_other_module_names_what_a_system_does_not_have(platform: str, tmp_path: Path) -> None:
    """mypy knows what each system has."""
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", str(tmp_path), "src/jobmill"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    missing = re.findall(r"^src/jobmill/(.+): error: Module has no attribute \"(\w+)\"", ran.stdout, re.MULTILINE)
    assert missing, ran.stdout + ran.stderr
    known = re.compile("|".join(NOT_THERE[platform]))
    assert [one for one in missing if known.match(one[0]) is None] == []


def test_what_a_system_does_not_have_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(InvalidValue, match="health: expected a port: this system has no unix sockets"):
        check_health("/run/jobmill.sock")
    with pytest.raises(InvalidValue, match="processes: expected 1 on this system"):
        check_processes(2)
