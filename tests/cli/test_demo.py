from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.conftest import Shell


@pytest.fixture
def temporary(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo puts its file."""
    place = shell.folder / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.mark.slow
def test_the_demo_shows_every_kind_of_job_and_ends(shell: Shell, temporary: Path) -> None:
    process = shell.start("demo")
    said, wrong = process.communicate(timeout=60)
    assert (process.returncode, wrong) == (0, "")
    for kind, word in {
        "now": "succeeded: hello Ada",
        "delayed": "due in 3 s",
        "priority 0": "running",
        "unique": "enqueued again: duplicate",
        "recurring": "succeeded: beat 2",
        "retried": "retrying in 1.4 s",
        "fails": "failed: no attempts left after 2",
        "progress": "progress 50 %",
        "sync": "in a thread",
        "isolated": "errored: process ended by SIGSEGV",
        "cancelled": "cancelled while it ran",
        "recovered": "its worker was killed; the lease ends after 2s",
    }.items():
        lines = [line for line in said.splitlines() if f" s  {kind} " in line]
        assert any(word in line for line in lines), (kind, word, said)
    recovered = [line.split(maxsplit=4)[4] for line in said.splitlines() if " s  recovered " in line]
    assert recovered[1].startswith("running in a second worker")
    assert recovered[-2:] == ["running, attempt 1", "succeeded: backed up"]
    assert [line for line in said.splitlines() if len(line) > 80] == []
    order = [line.split()[3] for line in said.splitlines() if "print_page" in line and "running" in line]
    assert order == ["0", "5", "9"]
    for word in ("states ", "failed   charge_card: PermissionError: card declined", "pick-up ", "2,000 jobs enqueued"):
        assert word in said
    assert "`jobmill worker app.py:jobs`" in said
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_the_demo_shows_a_live_view_on_a_terminal(
    shell: Shell, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    ours, theirs = os.openpty()
    process = shell.start("demo", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"jobmill enqueue NAME" not in said:
        said += os.read(ours, 65_536)
    assert process.wait(20) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode()).replace("\r", "\n")
    assert "frame 3" in text
    assert "†●" in text
    assert [line for line in text.splitlines() if cell_len(line) > 80] == []
    # The last frame has every job on one line, and nothing is cut off.
    _, last = text.rsplit(" attempts ", 1)
    for kind, detail in {
        "cancelled": "by jobs.cancel(id), while it ran",
        "fails": "PermissionError: card declined",
        "unique": "in sync  (again: duplicate)",
        "recovered": "backed up  (worker was killed)",
    }.items():
        assert any(line.strip().startswith(kind) and line.rstrip().endswith(detail) for line in last.splitlines()), last
    assert "…" not in last


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_demo_ends_at_once_after_a_signal(shell: Shell, temporary: Path, signum: signal.Signals, code: int) -> None:
    process = shell.start("demo")
    assert process.stdout is not None
    while "progress" not in process.stdout.readline():
        pass
    process.send_signal(signum)
    _, wrong = process.communicate(timeout=20)
    assert process.returncode == code
    assert wrong.strip() == ""
    assert list(temporary.iterdir()) == []
