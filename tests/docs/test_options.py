"""docs/options.md: its tables name exactly the options, defaults and numbers of the code; its refusals are heard."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

import jobmill
from jobmill import errors
from jobmill.cli import main
from jobmill.client.filters import FilterOptions
from jobmill.core.job import NO_OPTIONS
from jobmill.core.lifecycle import policy
from jobmill.core.values import QueueSettings
from jobmill.handlers.options import CommonOptions, EnqueueOptions, HandlerOptions, enqueue_options
from jobmill.stores import DEFAULT_URL, store_for
from jobmill.stores.sqlite import SqliteStore
from jobmill.worker.options import WorkerOptions, worker_settings
from tests.docs.pages import ROOT, Example, blocks, code_of, section, spans, table

PAGE = ROOT / "docs/options.md"
PACKAGE = ROOT / "src/jobmill"


def names(rows: list[dict[str, str]], column: str = "option") -> list[str]:
    return [code_of(row[column]) for row in rows]


def defaults(rows: list[dict[str, str]], column: str = "option") -> dict[str, Any]:
    """The defaults that are values; others are told in words."""
    return {
        code_of(row[column]): eval(row["default"].strip("`"), {"jobmill": jobmill})
        for row in rows
        if re.fullmatch(r"`[^`{]+`", row["default"])
    }


def known(kind: type, *others: type) -> set[str]:
    return {name for one in (kind, *others) for name in one.__annotations__}


# ---------------------------------------------------------------------------------------------------- tables


def test_handler_options() -> None:
    rows = table(PAGE, "Handlers", "option")
    assert sorted(names(rows)) == sorted(known(HandlerOptions, CommonOptions))
    told = defaults(rows)
    assert set(told) == set(names(rows)) - {"name"}
    assert {name: handler_with(**{name: value}) for name, value in told.items()} == dict.fromkeys(told, handler_with())


def handler_with(**given: Any) -> Any:
    """All that follows from a handler's options."""
    handler: Any = jobmill.connect("memory://").handler(**given)(some_handler)
    rules = structs.replace(handler.policy, said=NO_OPTIONS)
    return (*effective(handler.options_given), rules, handler.isolate, handler.concurrency)


def some_handler() -> None: ...


def test_enqueue_options() -> None:
    rows = table(PAGE, "Enqueueing", "option")
    assert sorted(names(rows)) == sorted(known(EnqueueOptions, CommonOptions))
    told = defaults(rows)
    assert set(told) == {"delay", "timezone", "dedupe", *known(CommonOptions), "backoff"}
    for name, value in told.items():
        rest = {"cron": "@daily", "key": "k"} if name == "timezone" else {}
        assert effective(enqueue_options({name: value, **rest})) == effective(enqueue_options(rest)), name


def effective(options: Any) -> Any:
    """Where something is said and where nothing is: the rules that the job is run under, and the rest."""
    rules = structs.replace(policy(options.stored), said=NO_OPTIONS)
    return rules, structs.replace(options, stored=NO_OPTIONS)


def test_filters() -> None:
    assert names(table(PAGE, "Filters", "option")) == list(FilterOptions.__annotations__)


def test_worker_options() -> None:
    rows = table(PAGE, "Workers", "option")
    assert names(rows) == list(WorkerOptions.__annotations__)
    told = defaults(rows)
    assert set(told) == set(names(rows)) - {"queues", "name"}
    for name, value in told.items():
        given: Any = {"name": "w", name: value}
        assert worker_settings(given, ()) == worker_settings({"name": "w"}, ()), name


def test_worker_options_on_the_command_line() -> None:
    flags = {flag for option in main.commands["worker"].params for flag in option.opts if flag.startswith("--")}
    told = names(table(PAGE, "Workers", "option"), "on the command line")
    (others,) = re.findall(r"Only on the command line: (.+)", section(PAGE, "Workers"))
    assert sorted(told + spans(others)) == sorted(flags)


def test_the_guide_tells_the_same_about_workers() -> None:
    guide = table(ROOT / "docs/guide.md", "Run workers", "option")
    options = {name: option for option in main.commands["worker"].params for name in option.opts}
    assert [flag for row in guide for flag in spans(row["option"]) if flag not in options] == []
    for row in guide:
        told = options[spans(row["option"])[0]]
        assert isinstance(told, click.Option)
        if re.fullmatch(r"\d+s?", row["default"]) and told.name != "processes":
            assert f"default {row['default']}." in str(told.help)


def test_queue_settings() -> None:
    rows = table(PAGE, "Queues", "setting")
    assert defaults(rows, "setting") == structs.asdict(QueueSettings())


def test_the_url() -> None:
    assert f"`{DEFAULT_URL}`" in table(PAGE, "Connecting", "argument")[0]["default"]
    (row,) = table(PAGE, "Connecting", "URL option")
    plain, said = (store_for(f"sqlite:///x.db{end}") for end in ("", f"?synchronous={code_of(row['default'])}"))
    assert isinstance(plain, SqliteStore)
    assert isinstance(said, SqliteStore)
    assert plain._synchronous == said._synchronous
    for example in names(table(PAGE, "Connecting", "URL"), "URL"):
        store_for(example)


def test_environment_variables() -> None:
    used = {name for path in PACKAGE.rglob("*.py") for name in re.findall(r"JOBMILL_[A-Z_]+", path.read_text())}
    assert set(names(table(PAGE, "Connecting", "environment variable"), "environment variable")) == used


def test_numbers() -> None:
    for row in table(PAGE, "Numbers that are no options", "what"):
        module, _, name = code_of(row["in the code"]).rpartition(".")
        value = getattr(importlib.import_module(f"jobmill.{module}"), name)
        assert float(row["number"].replace(",", "")) == value, row["what"]


def test_errors() -> None:
    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.JobmillError) and value is not errors.JobmillError
    }
    told = names(table(PAGE, "Errors", "error"), "error")
    assert set(told) == own
    assert own <= set(jobmill.__all__)


# ---------------------------------------------------------------------------------------------------- refusals


async def test_refusals_are_heard_as_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example(PAGE, tmp_path, monkeypatch)
    for block in blocks(PAGE):
        if block.language == "python":
            await example.run(block)
    told = {code_of(row["you write"]): code_of(row["you hear"]) for row in table(PAGE, "Refusals", "you write")}
    heard = {}
    for call in told:
        with pytest.raises(jobmill.JobmillError) as refused:
            await example.evaluate(expression(call))
        heard[call] = str(refused.value)
    assert heard == told
    await example.close()


def expression(text: str) -> Any:
    """Compiled, with await."""
    return compile(text, str(PAGE), "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
