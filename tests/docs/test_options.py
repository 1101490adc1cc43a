"""docs/options.md names exactly the options, defaults and numbers of the code, and its error messages are real."""

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
from jobmill.cli.worker import worker
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
    """The defaults that are values; others are described in words."""
    return {
        code_of(row[column]): eval(row["default"].strip("`"), {"jobmill": jobmill})
        for row in rows
        if re.fullmatch(r"`[^`{]+`", row["default"])
    }


def annotated(kind: type, *others: type) -> set[str]:
    return {name for one in (kind, *others) for name in one.__annotations__}


# ---------------------------------------------------------------------------------------------------- tables


def test_the_options_of_handlers_are_those_of_the_code() -> None:
    rows = table(PAGE, "Handlers", "option")
    assert sorted(names(rows)) == sorted(annotated(HandlerOptions, CommonOptions))
    documented = defaults(rows)
    assert set(documented) == set(names(rows)) - {"name", "timezone", "key"}
    for name, value in documented.items():
        assert handler_with(**{name: value}) == handler_with(), name


def handler_with(**given: Any) -> Any:
    """Everything that the options of a handler decide."""
    handler: Any = jobmill.connect("memory://").handler(**given)(some_handler)
    rules = structs.replace(handler.policy, given=NO_OPTIONS)
    return (*effective(handler.options_given), rules, handler.isolate, handler.concurrency)


def some_handler() -> None: ...


def test_the_options_of_one_job_are_those_of_the_code() -> None:
    rows = table(PAGE, "Enqueueing", "option")
    assert sorted(names(rows)) == sorted(annotated(EnqueueOptions, CommonOptions))
    documented = defaults(rows)
    assert set(documented) == {"delay", "timezone", "dedupe", "when_live", *annotated(CommonOptions), "backoff"}
    needed = {"timezone": {"cron": "@daily", "key": "k"}, "when_live": {"unique_key": "k"}}
    for name, value in documented.items():
        rest: dict[str, Any] = needed.get(name, {})
        assert effective(enqueue_options({name: value, **rest})) == effective(enqueue_options(rest)), name


def effective(options: Any) -> Any:
    """The rules that the job runs under, and the other options; whether they were given or are defaults is left out."""
    rules = structs.replace(policy(options.stored), given=NO_OPTIONS)
    return rules, structs.replace(options, stored=NO_OPTIONS)


def test_the_filters_are_those_of_the_code() -> None:
    assert names(table(PAGE, "Filters", "option")) == list(FilterOptions.__annotations__)


def test_the_options_of_workers_are_those_of_the_code() -> None:
    rows = table(PAGE, "Workers", "option")
    assert names(rows) == list(WorkerOptions.__annotations__)
    documented = defaults(rows)
    assert set(documented) == set(names(rows)) - {"queues", "name"}
    for name, value in documented.items():
        given: Any = {"name": "w", name: value}
        assert worker_settings(given, ()) == worker_settings({"name": "w"}, ()), name


def test_the_flags_of_the_worker_command_are_those_of_the_code() -> None:
    shown = [option for option in worker.params if not getattr(option, "hidden", False)]
    flags = {flag for option in shown for flag in option.opts if flag.startswith("--")}
    documented = names(table(PAGE, "Workers", "option"), "on the command line")
    (others,) = re.findall(r"Only on the command line: (.+)", section(PAGE, "Workers"))
    assert sorted(documented + spans(others)) == sorted(flags)


def test_the_guide_has_the_same_defaults_of_workers_as_the_help() -> None:
    guide = table(ROOT / "docs/guide/workers.md", "Run workers", "option")
    options = {name: option for option in worker.params for name in option.opts}
    assert [flag for row in guide for flag in spans(row["option"]) if flag not in options] == []
    checked = 0
    for row in guide:
        option = options[spans(row["option"])[0]]
        assert isinstance(option, click.Option)
        if re.fullmatch(r"\d+s?", row["default"]) and option.name != "processes":
            assert f"(default {row['default']})." in str(option.help)
            checked += 1
    assert checked == 4


def test_the_settings_of_queues_are_those_of_the_code() -> None:
    rows = table(PAGE, "Queues", "setting")
    assert defaults(rows, "setting") == structs.asdict(QueueSettings())


def test_every_url_selects_a_store_and_the_defaults_of_its_options_are_right() -> None:
    assert f"`{DEFAULT_URL}`" in table(PAGE, "Connecting", "argument")[0]["default"]
    (row,) = table(PAGE, "Connecting", "URL option")
    plain, explicit = (store_for(f"sqlite:///x.db{end}") for end in ("", f"?synchronous={code_of(row['default'])}"))
    assert isinstance(plain, SqliteStore)
    assert isinstance(explicit, SqliteStore)
    assert plain._synchronous == explicit._synchronous
    for example in names(table(PAGE, "Connecting", "URL"), "URL"):
        store_for(example)


def test_the_environment_variables_are_those_of_the_code() -> None:
    used = {name for path in PACKAGE.rglob("*.py") for name in re.findall(r"JOBMILL_[A-Z_]+", path.read_text())}
    assert set(names(table(PAGE, "Connecting", "environment variable"), "environment variable")) == used


def test_the_fixed_numbers_are_those_of_the_code() -> None:
    for row in table(PAGE, "Fixed numbers", "what"):
        module, _, name = code_of(row["in the code"]).rpartition(".")
        value = getattr(importlib.import_module(f"jobmill.{module}"), name)
        assert float(row["number"].replace(",", "")) == value, row["what"]


def test_the_errors_are_those_of_the_code() -> None:
    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.JobmillError) and value is not errors.JobmillError
    }
    assert set(names(table(PAGE, "Errors", "error"), "error")) == own
    assert own <= set(jobmill.__all__)


# ---------------------------------------------------------------------------------------------------- messages


async def test_refused_calls_raise_the_messages_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example(PAGE, tmp_path, monkeypatch)
    for block in blocks(PAGE):
        if block.language == "python":
            await example.run(block)
    documented = {code_of(row["call"]): code_of(row["message"]) for row in table(PAGE, "Refused values", "call")}
    raised = {}
    for call in documented:
        with pytest.raises(jobmill.JobmillError) as refused:
            await example.evaluate(expression(call))
        raised[call] = str(refused.value)
    assert raised == documented
    await example.close()


def expression(text: str) -> Any:
    """Compile an expression that may await."""
    return compile(text, str(PAGE), "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
