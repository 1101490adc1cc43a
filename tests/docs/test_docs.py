"""README and docs: examples run, commands exist, links have a target, and the words are those of the glossary."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jobmill.cli import main
from tests import stores_under_test
from tests.docs.node import Scripts
from tests.docs.pages import (
    PAGES,
    ROOT,
    Block,
    Example,
    blocks,
    headings,
    needs_database,
    needs_mongo,
    needs_node,
    needs_redis,
    page_id,
    prose,
    section,
    spans,
    table,
    without_blocks,
)

README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs/architecture.md"
GLOSSARY = ROOT / "docs/glossary.md"
QUICKSTART = ROOT / "examples/quickstart.py"
PACKAGE = ROOT / "src/jobmill"

each_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


# ---------------------------------------------------------------------------------------------------- examples


# Node takes a moment to start.
run_page = pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if needs_node(page) else []) for page in PAGES],
    ids=page_id,
)


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """An example configures logging, which must not be seen by other tests."""
    loggers = [logging.getLogger(name) for name in (None, "shop")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


@run_page
@pytest.mark.usefixtures("_own_logging")
async def test_the_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if needs_database(page):
            server = request.getfixturevalue("postgres_server")
            monkeypatch.setenv("DATABASE_URL", await stack.enter_async_context(server.database()))
        if needs_redis(page):
            monkeypatch.setenv("REDIS_URL", request.getfixturevalue("redis_database_url"))
        if needs_mongo(page):
            url = await stores_under_test.migrated_mongo(request.getfixturevalue("mongo_url"))
            monkeypatch.setenv("MONGO_URL", url)
        example = Example(page, tmp_path, monkeypatch)
        stack.push_async_callback(example.close)
        if needs_node(page):
            example.scripts = Scripts(request.getfixturevalue("node_packages"), tmp_path)
        for block in blocks(page):
            if block.language in ("python", "sql", "js"):
                await example.run(block)


@each_page
def test_every_code_block_has_a_known_language(page: Path) -> None:
    known = ("python", "console", "sql", "toml", "js", "redis", "dockerfile", "ini", "nginx", "html")
    assert [str(block) for block in blocks(page) if block.language not in known] == []


def test_the_quickstart_of_the_readme_is_the_example() -> None:
    assert QUICKSTART.read_text() in [block.code for block in blocks(README)]


@pytest.mark.slow
def test_the_quickstart_runs_until_ctrl_c(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JOBMILL_URL"}
    with subprocess.Popen(
        [sys.executable, QUICKSTART],
        cwd=tmp_path,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (lines, rest, errors) == (["hello Ada\n", "greeted Ada\n", "hello Grace\n"], "", "")
    assert process.returncode == 0


# ---------------------------------------------------------------------------------------------------- commands


#: tests/deploy checks what their command lines name.
PROGRAMS = ("python", "curl", "docker", "kubectl", "promtool", "sudo", "source", "uvicorn", "pytest")


def commands(page: Path) -> Iterator[tuple[Block, str]]:
    for block in blocks(page):
        if block.language == "console":
            yield from ((block, line[2:]) for line in block.code.splitlines() if line.startswith("$ "))


@each_page
def test_the_commands_exist(page: Path) -> None:
    for block, line in commands(page):
        words = shlex.split(line, comments=True)
        if words[0] == "jobmill":
            parse(words[1:], f"{block}: {line}")
        elif words[0] in ("flask", "litestar"):
            command, *rest = words[words.index("jobmill") + 1 :]
            parse(
                [command, *(["module:jobs"] if command in ("worker", "dashboard") else []), *rest], f"{block}: {line}"
            )
        else:
            assert words[0] in ("python3", "pip", *PROGRAMS), f"{block}: {line}"


def parse(words: list[str], where: str) -> None:
    """Let click parse a command line without running the command."""
    command: click.Command = main
    context = click.Context(main, info_name="jobmill")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, where
        command, words = found, words[1:]
    try:
        command.make_context(command.name, list(words), parent=context)
    except click.exceptions.Exit:  # --version and --help
        pass
    except click.ClickException as error:
        pytest.fail(f"{where}: {error.format_message()}")


@each_page
def test_the_verbs_of_dev_py_exist(page: Path) -> None:
    known = (ROOT / "dev.py").read_text()
    for verb in re.findall(r"python3 dev\.py (\w+)", page.read_text()):
        assert f"python3 dev.py {verb}" in known


def test_the_guide_names_every_command() -> None:
    guide = ROOT / "docs/guide/command-line.md"
    named = {row["command"].strip("`"): spans(row["does"]) for row in table(guide, "The command line", "command")}
    context = click.Context(main)
    assert set(named) == set(main.list_commands(context))
    for name in named:
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            assert set(named[name]) == set(command.commands)


# ---------------------------------------------------------------------------------------------------- the walk


SHAPE = "The shape of a store"


def paths_in(text: str) -> list[str]:
    return [span for span in spans(text) if re.fullmatch(r"[\w./-]+\.(py|sql|lua|toml|md)", span)]


def test_every_file_that_the_architecture_names_exists() -> None:
    text = ARCHITECTURE.read_text().replace(section(ARCHITECTURE, SHAPE), "")
    paths = paths_in(text)
    assert len(paths) > 30
    assert [path for path in paths if not source(path).exists()] == []


def test_every_file_name_of_a_store_exists_in_a_store() -> None:
    names = {name for row in table(ARCHITECTURE, SHAPE, "file") for name in paths_in(row["file"])}
    assert len(names) > 15
    assert sorted(name for name in names if not list(PACKAGE.glob(f"stores/*/{name}"))) == []


def source(path: str) -> Path:
    return PACKAGE / path if (PACKAGE / path).exists() else ROOT / path


def test_every_function_of_the_walk_is_in_a_file_that_its_step_names() -> None:
    steps = [heading for heading in headings(ARCHITECTURE) if re.match(r"\d\. ", heading)]
    assert [spans(step)[0] for step in steps] == [
        *("core/lifecycle.py", "client/client.py", "store.py", "stores/memory/store.py"),
        *("worker/exchanger.py", "worker/runner.py", "core/lifecycle.py", "stores/sqlite/exchange.py"),
    ]
    for step in [*steps, "The loops of a worker"]:
        named = spans(step + section(ARCHITECTURE, step))
        defined = {name for path in named if path.endswith(".py") for name in definitions(source(path))}
        missing = [span for span in named if span.endswith("()") and span.removesuffix("()") not in defined]
        assert missing == [], step


def definitions(path: Path) -> set[str]:
    """The functions of a file, and its methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{one.name}" for one in methods)
    return found


def test_the_architecture_names_every_loop_and_every_layer() -> None:
    loops = {spans(row["loop"])[0] for row in table(ARCHITECTURE, "The loops of a worker", "loop")}
    expected = ("exchanger", "heartbeat", "reporter", "janitor", "outbox", "hooks", "usage", "recycle", "announcer")
    assert loops == {f"worker/{name}.py" for name in expected}
    layers = {name for row in table(ARCHITECTURE, "The layers", "layer") for name in spans(row["modules"])}
    own = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert layers == own


def test_the_architecture_names_the_rules_of_import_linter() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rules = [contract["name"] for contract in configuration["tool"]["importlinter"]["contracts"]]
    assert re.findall(r"^- (.+)$", section(ARCHITECTURE, "The layers"), re.MULTILINE) == rules


# ---------------------------------------------------------------------------------------------------- links


@each_page
def test_every_link_has_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in [anchor_of(heading) for heading in headings(target)], link


def anchor_of(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# ---------------------------------------------------------------------------------------------------- words

# Words that the glossary avoids for one concept, and that are right for another: an error has a message, a file has a
# lock, a process gets signals, Django has tasks and their backends.
PLAIN = {"app", "args", "body", "data", "driver", "finish", "group", "item", "lock", "message", "server"}
PLAIN |= {"status", "task", "try", "touch", "trigger", "backend"}

# The glossary names the words to avoid. The page about performance compares other systems in their words. Other pages
# are for people who search with the words of their old system.
IN_WORDS_OF_OTHERS = ("glossary", "performance", "faq", "choosing-a-store", "index")
PAGES_IN_OUR_WORDS = [
    page for page in PAGES if page_id(page) not in IN_WORDS_OF_OTHERS and page.parent.name != "coming-from"
]

# Words that people search for, which must lead somewhere.
SEARCHED = (
    *("task", "broker", "ack", "acks_late", "ETA", "countdown", "retry", "dead letter", "visibility timeout"),
    *("exactly once", "priority", "cron", "beat", "result backend", "prefetch", "revoke", "chord", "rate limit"),
)


@pytest.mark.parametrize("page", PAGES_IN_OUR_WORDS, ids=page_id)
def test_every_page_uses_the_words_of_the_glossary(page: Path) -> None:
    avoided = {word.strip() for row in table(GLOSSARY, "Glossary", "word") for word in row["avoid"].split(",")}
    assert avoided >= PLAIN
    avoided -= PLAIN
    text = prose(page)
    assert [word for word in avoided if word and re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE)] == []


@pytest.mark.parametrize("word", SEARCHED)
def test_the_words_of_other_systems_lead_to_the_faq(word: str) -> None:
    assert re.search(rf"\b{re.escape(word)}s?\b", (ROOT / "docs/faq.md").read_text(), re.IGNORECASE)
