"""docs/coming-from: ten pages of one structure, whose code is at least parsed, and whose commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from jobmill.cli import main
from tests.docs.pages import DOCS, Block, Example, blocks, headings, section, spans, table, without_blocks

FOLDER = DOCS / "coming-from"
INDEX = FOLDER / "index.md"
SYSTEMS = {
    "celery": "Celery",
    "rq": "RQ",
    "arq": "arq",
    "dramatiq": "Dramatiq",
    "huey": "Huey",
    "apscheduler": "APScheduler",
    "procrastinate": "procrastinate",
    "django-q2": "django-q2",
    "bullmq": "BullMQ",
    "monque": "Monque",
}
STRUCTURE = [
    *("Words", "The same program", "Run both side by side", "Move what waits"),
    *("What you lose", "What you gain", "Checklist"),
]
#: A page that nobody reads to its end helps nobody.
MAX_LINES = 160

#: What people who come from a system search for, on all pages and on one.
SEARCHED = ("task", "ETA", "ack", "retry", "broker", "dead letter", "result backend")
SEARCHED_ON = {
    "celery": ("acks_late", "prefetch", "countdown", "beat", "chain", "chord", "group", "visibility timeout"),
    "rq": ("depends_on", "scheduler", "FailedJobRegistry", "rq-dashboard"),
    "arq": ("_job_id", "_defer_by", "WorkerSettings", "ctx", "lock"),
    "dramatiq": ("actor", "prefetch", "middleware", "pipeline"),
    "huey": ("lock_task", "periodic_task", "consumer", "pickle"),
    "apscheduler": ("misfire", "coalesce", "job store", "trigger", "lock"),
    "procrastinate": ("lock", "queueing_lock", "defer", "stalled"),
    "django-q2": ("async_task", "qcluster", "Schedule", "Q_CLUSTER", "countdown", "lock"),
    "bullmq": ("processor", "flow", "stalled", "prefetch", "lock"),
    "monque": ("uniqueKey", "lockTimeout", "schedule"),
}

each_system = pytest.mark.parametrize("page", [FOLDER / f"{name}.md" for name in SYSTEMS], ids=lambda page: page.stem)


def test_there_is_one_page_for_each_system() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {"index", *SYSTEMS}


@each_system
def test_all_pages_have_the_same_structure(page: Path) -> None:
    assert headings(page) == [f"Coming from {SYSTEMS[page.stem]}", *STRUCTURE]
    assert len(page.read_text().splitlines()) <= MAX_LINES
    assert len(re.findall(r"^- \[ \] .", section(page, "Checklist"), re.MULTILINE)) >= 5


@each_system
def test_a_page_names_the_version_that_the_index_names(page: Path) -> None:
    rows = table(INDEX, "Coming from another system", "page")
    (checked,) = [row["checked with"] for row in rows if f"({page.name})" in row["page"]]
    opening = page.read_text().partition("## ")[0]
    assert "Checked with" in opening
    versions = re.findall(r"\d+\.\d+\.\d+\w*", checked)
    assert versions
    assert [version for version in versions if version not in opening] == []


@each_system
def test_the_words_that_people_search_for_occur(page: Path) -> None:
    text = page.read_text().replace("\n", " ")
    words = (*SEARCHED, *SEARCHED_ON[page.stem])
    assert [word for word in words if not re.search(rf"(?<![a-z]){re.escape(word)}", text, re.IGNORECASE)] == []


@each_system
def test_a_page_has_the_program_of_both(page: Path) -> None:
    programs = [block for block in blocks(page) if block.language in ("python", "js")]
    assert any(block.how == "no-run" for block in programs)
    assert any(block.file is not None for block in programs)


# ---------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("page", [INDEX, *(FOLDER / f"{name}.md" for name in SYSTEMS)], ids=lambda page: page.stem)
def test_the_commands_in_the_text_exist(page: Path) -> None:
    for span in spans(without_blocks(page)):
        words = shlex.split(span.removeprefix("manage.py "))
        if words[0] == "jobmill" and len(words) > 1:
            check_command(words[1:], f"{page.name}: {span}")


def check_command(words: list[str], where: str) -> None:
    """The command must exist, with all options that the words name; arguments may be missing."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, where
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("-") and word not in known] == [], where


# ---------------------------------------------------------------------------------------------------- typing errors


@pytest.mark.parametrize(
    "block",
    [
        Block(FOLDER / "x.md", 1, "python", "no-run", "def f(:\n"),
        Block(FOLDER / "x.md", 1, "python", "file=nobody_imports_it.py", "def f(:\n"),
        Block(FOLDER / "x.md", 1, "python", "", "def f(:\n"),
        Block(FOLDER / "x.md", 1, "js", "no-run", "const = 1;\n"),
    ],
    ids=lambda block: f"{block.language} {block.how}",
)
async def test_a_typing_error_in_a_block_fails(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example(block.page, tmp_path, monkeypatch)
    with pytest.raises((SyntaxError, AssertionError), match=r"invalid syntax|SyntaxError"):
        await example.run(block)


async def test_a_correct_module_of_node_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(FOLDER / "x.md", 1, "js", "no-run", 'import { x } from "nowhere";\nawait x();\n')
    await Example(block.page, tmp_path, monkeypatch).run(block)
