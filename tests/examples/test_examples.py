"""The examples: the index names all of them, and each runs as it is printed. Web frameworks have tests of their own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import jobmill
from tests.docs.pages import ROOT, table
from tests.docs.test_docs import parse
from tests.examples.printed import (
    EXAMPLES,
    NOT_RUN,
    SCRIPTS,
    Command,
    commands,
    copied,
    environment_of,
    output,
    printed,
    run,
)
from tests.helpers import until
from tests.kit.node import Packages
from tests.kit.processes import launched

INDEX = EXAMPLES / "README.md"


def examples() -> list[str]:
    found = (path for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__"))
    return sorted(path.name for path in found if path.is_dir() or path.suffix == ".py")


each_example = pytest.mark.parametrize("example", examples())


# ---------------------------------------------------------------------------------------------------- the index


def test_the_index_names_every_example_once() -> None:
    names = [re.findall(r"\[([\w.]+)\]", row["example"])[0] for row in table(INDEX, "Examples", "example")]
    assert sorted(names) == examples()


def test_the_links_of_the_index_have_targets() -> None:
    for page in (INDEX, *EXAMPLES.glob("*/README.md")):
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not link.startswith("https://")]
        assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == [], page


def test_the_commands_of_the_index_are_those_that_the_examples_print() -> None:
    for row in table(INDEX, "Examples", "example"):
        (name,) = re.findall(r"\[([\w.]+)\]", row["example"])
        lines = [shlex.join(command.words) for command in commands(name)]
        if lines:
            assert row["run"].strip("`") in lines, name
        elif row["run"]:
            assert row["run"] == f"`python {name}`"


@each_example
def test_every_printed_command_can_be_run(example: str) -> None:
    for command in commands(example):
        assert command.program in ("python", "node", *SCRIPTS, *NOT_RUN), command
        if command.program == "jobmill":
            parse(list(command.words[1:]), f"{example}: {command}")
        if command.program == "python":
            assert (EXAMPLES / example / command.words[1]).exists() or command.words[1] == example, command


@each_example
def test_every_printed_requirement_is_a_package_of_the_tests(example: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command in commands(example):
        if command.program == "pip":
            for requirement in command.words[2:]:
                name, _, extra = requirement.rstrip("]").partition("[")
                if name == "jobmill":
                    assert not extra or set(extra.split(",")) <= extras.keys(), requirement
                assert distribution(name).version, "this raises if it is not installed"


# ---------------------------------------------------------------------------------------------------- programs


@pytest.mark.slow
@pytest.mark.stores("sqlite")
def test_image_pipeline(tmp_path: Path) -> None:
    folder = copied("image_pipeline", tmp_path)
    shown = run(printed("image_pipeline", "python pipeline.py"), folder)
    assert sorted(shown.splitlines()) == sorted(output("image_pipeline"))
    for name in ("photo1", "photo2", "photo3"):
        for width, height in ((80, 60), (160, 120)):
            data = (folder / f"photos/{name}-{width}.png").read_bytes()
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (width, height)
    assert not (folder / "photos/bomb-80.png").exists()
    with contextlib.closing(jobmill.connect(f"sqlite:///{folder}/jobmill.db").sync) as jobs:
        (count,) = [one.count for one in jobs.count(states="failed")]
        assert count == 2, "one for each width"


@pytest.mark.extended
@pytest.mark.stores("memory", "sqlite")
def test_nightly_reports(tmp_path: Path) -> None:
    folder = copied("nightly_reports", tmp_path)
    shown = [run(printed("nightly_reports", "python reports.py"), folder) for _ in range(2)]
    assert shown[0] == shown[1], "the same recurring jobs"
    times = r"\d{4}-\d\d-\d\d 02:30:00[+-]\d\d:00"
    like = [re.sub(times, "TIME", line) for line in output("nightly_reports")]
    assert [re.sub(times, "TIME", line) for line in shown[0].splitlines()] == like
    plain = printed("nightly_reports", "pytest")
    tests = Command((*plain.words, "-q", "-p", "no:cacheprovider", "-p", "no:valkey"), plain.variables)
    assert re.search(r"^\d+ passed in ", run(tests, folder), re.MULTILINE)


@pytest.mark.extended
@pytest.mark.stores("sqlite")
def test_rate_limited_api(tmp_path: Path) -> None:
    folder = copied("rate_limited_api.py", tmp_path)
    shown = run(printed("rate_limited_api.py", "python"), folder)
    found = re.findall(r"^(\w+) a limit: 20 answers, (\d+) refused requests, in [\d.]+ s$", shown, re.MULTILINE)
    assert [how for how, _ in found] == ["without", "with"], shown
    without, limited = (int(refused) for _, refused in found)
    assert without >= 15, "all jobs call at once, and five are answered"
    assert limited < without / 3, "a busy machine may be late for a window of the API"


@pytest.mark.slow
@pytest.mark.stores("sqlite", "postgres")
def test_outbox(store_name: str, store_url: str, tmp_path: Path) -> None:
    folder = copied("outbox_sqlalchemy.py", tmp_path)
    sqlite, postgres = [command for command in commands("outbox_sqlalchemy.py") if command.program == "python"]
    if store_name == "sqlite":
        assert run(sqlite, folder).splitlines() == output("outbox_sqlalchemy.py")
    else:
        assert urlsplit(postgres.variables["SHOP_URL"]).scheme == "postgresql"
        shown = run(postgres, folder, {"SHOP_URL": store_url})
        assert shown.splitlines() == output("outbox_sqlalchemy.py")


# ---------------------------------------------------------------------------------------------------- with Node


@contextlib.contextmanager
def running(command: Command, folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """A worker, which must end with 0 after SIGTERM; the file with what it writes."""
    log = folder / f"{command.program}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            launched(None, signal.SIGKILL, command.argv()),
            cwd=folder,
            env=environment_of(command, environment),
            stdout=out,
            stderr=out,
        )
    try:
        yield log
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.extended
@pytest.mark.stores("redis")
async def test_node_and_python(redis_database_url: str, node_packages: Packages, tmp_path: Path) -> None:
    folder = copied("node_and_python", tmp_path)
    (folder / "node_modules").symlink_to(node_packages.home / "node_modules")  # as `npm install` would make it
    environment = {"REDIS_URL": redis_database_url}
    like = [re.sub("Node|Python", "SIDE", line) for line in output("node_and_python")]
    python, node = (printed("node_and_python", line) for line in ("jobmill worker", "node worker.mjs"))
    with running(python, folder, environment) as log_of_python, running(node, folder, environment) as log_of_node:
        await until(lambda: ": concurrency " in log_of_python.read_text() and "working" in log_of_node.read_text(), 60)
        sides: set[str] = set()
        for line in ("node add.mjs", "python app.py"):
            shown = await asyncio.to_thread(run, printed("node_and_python", line), folder, environment)
            assert [re.sub("Node|Python", "SIDE", one) for one in shown.splitlines()] == like
            assert shown.splitlines()[-1].endswith("(Python)"), "only Python knows it"
            sides |= set(re.findall("Node|Python", shown))
        assert "Python" in sides


@pytest.mark.extended
@pytest.mark.stores("redis")
@pytest.mark.parametrize("side", ["jobmill worker", "node worker.mjs"])
async def test_one_side_alone_runs_the_jobs_of_the_other(
    side: str, redis_database_url: str, node_packages: Packages, tmp_path: Path
) -> None:
    """So that neither side's worker of the test above is a decoration."""
    folder = copied("node_and_python", tmp_path)
    (folder / "node_modules").symlink_to(node_packages.home / "node_modules")
    environment = {"REDIS_URL": redis_database_url}
    name = "Python" if side.startswith("jobmill") else "Node"
    with running(printed("node_and_python", side), folder, environment):
        async with jobmill.connect(redis_database_url) as jobs:
            enqueued = await jobs.enqueue("price", {"item": "tea"}, queue="shop")
            assert await enqueued.result(timeout=60) == f"3 ({name})"


def test_node_gets_the_version_that_the_tests_compare_with() -> None:
    import json

    asked = json.loads((EXAMPLES / "node_and_python/package.json").read_text())["dependencies"]["bullmq"]
    tested = json.loads((ROOT / "tests/interop/node/package.json").read_text())["dependencies"]["bullmq"]
    assert asked == f"^{tested}"
