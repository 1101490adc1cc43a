"""docs/tutorial.md: its files are an application that works as the page says, and whose tests pass."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.processes import launched

PAGE = ROOT / "docs/tutorial.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a reader who has followed the page to its end."""
    for block in blocks(PAGE):
        if block.file is not None:
            block.write(tmp_path)
    (settings,) = [block.code for block in blocks(PAGE) if block.language == "toml"]
    (tmp_path / "pyproject.toml").write_text(settings)
    return tmp_path


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("JOBMILL_")}


@contextlib.contextmanager
def running(folder: Path, *command: str) -> Iterator[Path]:
    """A process of the tutorial; the file with its output."""
    output = folder / f"{command[1]}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            launched(None, signal.SIGKILL, [sys.executable, *command]),
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=log,
        )
    try:
        yield output
    finally:
        process.terminate()
        process.wait(30)


def ask(port: int, method: str, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@pytest.fixture
async def shop(folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """The port of the web application, and the output of the worker."""
    port = free_port()
    with (
        running(folder, "-m", "uvicorn", "web:app", "--port", str(port)),
        running(folder, "-m", "jobmill", "worker", "work:jobs") as output,
    ):
        await until(lambda: ask(port, "GET", "/docs") == 200)
        yield port, output


async def test_an_order_is_followed_by_a_mail_and_errors_by_retries(shop: tuple[int, Path]) -> None:
    port, output = shop
    assert ask(port, "POST", "/orders?item=tea&email=ada@example.com") == 201
    await until(lambda: "to ada@example.com: thank you for buying tea" in output.read_text())
    assert ask(port, "POST", "/orders?item=tea&email=grace@down.example") == 201
    await until(lambda: "the mail server does not answer" in output.read_text())
    assert ask(port, "POST", "/orders?item=tea&email=nobody") == 201
    await until(lambda: "BadAddress" in output.read_text())
    assert ask(port, "GET", "/jobs/") == 200


@pytest.mark.extended
def test_the_first_version_runs_what_the_command_line_enqueued(tmp_path: Path) -> None:
    next(block for block in blocks(PAGE) if block.file == "work.py").write(tmp_path)
    jobmill = [sys.executable, "-m", "jobmill"]
    enqueue = [*jobmill, "enqueue", "send_receipt", '{"order": 1}']
    subprocess.run(enqueue, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    work = [*jobmill, "worker", "work:jobs", "--max-jobs", "1"]
    worked = subprocess.run(work, cwd=tmp_path, env=environment(), check=False, capture_output=True, text=True)
    assert "receipt for order 1" in worked.stdout


@pytest.mark.extended
def test_the_tests_of_the_page_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
