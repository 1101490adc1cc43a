from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jobmill
from jobmill.cli.runner import MODULES
from jobmill.errors import StoreBusy, StoreUnavailable
from jobmill.stores.sqlite import SqliteStore
from tests.cli.conftest import Shell
from tests.helpers import without_coverage

COMMANDS = (
    *("worker", "enqueue", "jobs", "jobs list", "jobs show", "jobs cancel", "jobs requeue", "jobs remove"),
    *("jobs reschedule", "jobs reprioritize", "queues", "queues counts", "queues pause", "queues resume"),
    *("queues limits", "queues feed", "events", "migrate", "demo"),
)


def test_version(shell: Shell) -> None:
    assert shell("--version").stdout == f"jobmill {jobmill.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(shell: Shell, command: str) -> None:
    for help in ("--help", "-h"):
        assert shell(*command.split(), help).stdout.startswith(f"Usage: jobmill {command} ")


HEAVY = ("asyncio", "msgspec", "rich", "sqlite3", "jobmill.client", "jobmill.stores", "jobmill.worker")
#: What enqueueing does not need. Together they took a quarter of its CPU time.
NOT_TO_ENQUEUE = (
    *("rich", "json", "hashlib", "cronsim", "zoneinfo", "ctypes", "shutil", "asyncpg", "redis", "pymongo", "uvloop"),
    *("jobmill.worker", "jobmill.dashboard", "jobmill.core.cron", "jobmill.core.unique_keys"),
    *(f"jobmill.cli.{module}" for module in MODULES.values() if module != "enqueue"),
)


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        *((command, HEAVY) for command in ("--version", "--help", "worker --help", "jobs list --help")),
        ("enqueue send", NOT_TO_ENQUEUE),
    ],
)
def test_starting_imports_nothing_heavy(shell: Shell, command: str, heavy: tuple[str, ...]) -> None:
    """Rather than a time, which depends on the machine: what costs time is not there."""
    code = f"""
import atexit, sys
atexit.register(lambda: print("heavy:", [name for name in {heavy} if name in sys.modules]))
sys.argv = ["jobmill", *{command.split()}]
from jobmill.cli import main
main()
"""
    environment = without_coverage(shell.environment)
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said.splitlines()[-1] == "heavy: []"


def test_python_m_jobmill(shell: Shell) -> None:
    process = shell.start("--version")
    assert process.communicate(timeout=20) == (f"jobmill {jobmill.__version__}\n", "")
    assert process.returncode == 0


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "args",
    [
        ["nothing"],
        ["jobs", "nothing"],
        ["jobs", "list", "--nothing"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "show"],
    ],
)
def test_wrong_usage_is_reported_in_one_line(shell: Shell, args: list[str]) -> None:
    line = shell.refused(*args, code=2)
    assert "(see jobmill" in line
    assert "--help)" in line


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("oracle://x", 2, "url: expected"),
        ("sqlite://x", 2, "three slashes"),
        ("mongodb://localhost", 2, "the name of the database is part of it"),
        ("memory://", 2, "exists inside one process"),
    ],
)
def test_a_url_that_cannot_be_used(shell: Shell, url: str, code: int, said: str) -> None:
    assert said in shell.refused("jobs", "list", "--url", url, code=code)


@pytest.mark.parametrize(
    "args",
    [
        ["jobs", "list"],
        ["jobs", "show", "x"],
        ["jobs", "cancel", "--all"],
        ["queues"],
        ["queues", "pause", "x"],
        ["events", "default"],
    ],
)
def test_reading_creates_no_database(shell: Shell, args: list[str]) -> None:
    assert f"there is no database at {shell.file};" in shell.refused(*args, code=1)
    assert list(shell.folder.iterdir()) == []


def test_the_url_option_overrides_the_environment(shell: Shell, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    shell("enqueue", "good", "--url", f"sqlite:///{other}")
    assert other.exists()
    assert not shell.file.exists()


def test_a_file_that_is_not_a_database(shell: Shell) -> None:
    shell.file.write_text("these are not the bytes that you are looking for" * 100)
    assert str(shell.file) in shell.refused("jobs", "list", code=1)


@pytest.mark.parametrize("error", [StoreUnavailable("gone\nfishing"), StoreBusy("busy")])
def test_an_unavailable_store(shell: Shell, monkeypatch: pytest.MonkeyPatch, error: StoreUnavailable) -> None:
    async def away(*_: object) -> None:
        raise error

    monkeypatch.setattr(SqliteStore, "enqueue", away)
    assert shell.refused("enqueue", "good", code=3) == "jobmill: " + " ".join(str(error).split())


@pytest.mark.parametrize("group", ["", "jobs"])
def test_a_group_without_a_command_shows_its_help(shell: Shell, group: str) -> None:
    result = shell(*group.split(), code=2)
    assert "\n\nCommands:\n  " in result.output
    assert "jobmill: " not in result.output


def test_an_unexpected_error_is_reported_in_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("jobmill.cli.jobs._listing", broken)
    shell("enqueue", "good")
    assert "unexpected KeyError: 'oops' (JOBMILL_DEBUG=1 shows where)" in shell.refused("jobs", "list", code=1)


def test_debug_shows_the_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("migrate")
    monkeypatch.setenv("JOBMILL_DEBUG", "1")
    process = shell.start("jobs", "show", "x")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Traceback (most recent call last)" in said
    assert said.splitlines()[-1].startswith("jobmill: there is no job 'x'")


def test_the_exit_code_of_ctrl_c_is_130(shell: Shell) -> None:
    process = shell.start("enqueue", "good", "--wait")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(" created\n")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said.strip()) == (130, "")


def test_a_reader_that_closes_the_pipe(shell: Shell) -> None:
    for n in range(40):
        shell("enqueue", "good", "--id", f"a{n}")
    process = shell.start("jobs", "list", "--json")
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")


# ---------------------------------------------------------------------------------------------------- migrate


def test_migrate_prints_migrations_of_sqlite(shell: Shell) -> None:
    assert shell("migrate").stdout.startswith("ran 0001_")
    assert shell("migrate").stdout == "up to date\n"
    assert shell.json("migrate") == {"ran": []}
