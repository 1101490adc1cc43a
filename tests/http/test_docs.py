"""docs/http.md: its tables name exactly the options, arguments, responses and counts of the code."""

from __future__ import annotations

import inspect
import re

import click

from jobmill import Tick
from jobmill.cli.http import http
from jobmill.core.durations import Duration
from jobmill.http import TickEndpoint, responses
from tests.docs.pages import ROOT, code_of, table

PAGE = ROOT / "docs/http.md"


def test_the_docs_list_the_options_of_the_command() -> None:
    options = {name: option for option in http.params for name in option.opts}
    told = {code_of(row["option"]): row["default"] for row in table(PAGE, "Serve it", "option")}
    assert {*told, "--quiet", "-q", "--url", "target"} == options.keys()
    for name, default in told.items():
        option = options[name]
        assert isinstance(option, click.Option)
        assert default.strip("`") in str(option.help), name
        if not default.startswith("`"):
            assert str(option.default) == default, name


def test_the_docs_list_the_arguments_of_the_endpoint() -> None:
    rows = table(PAGE, "In your own app", "argument")
    parameters = inspect.signature(TickEndpoint).parameters
    assert [code_of(row["argument"]) for row in rows] == list(parameters)
    for row, parameter in zip(rows[1:], list(parameters.values())[1:], strict=True):
        told: Duration | None = eval(code_of(row["default"]))
        assert told == parameter.default, parameter.name


def test_the_docs_list_the_status_codes() -> None:
    told = {int(one) for row in table(PAGE, "Responses", "status") for one in re.findall(r"\d+", row["status"])}
    known = {one.status for one in vars(responses).values() if isinstance(one, responses.TickResponse)}
    assert told == known | {responses.ticked(Tick()).status}


def test_the_docs_list_the_counts() -> None:
    told = [code_of(row["count"]) for row in table(PAGE, "Responses", "count")]
    assert told == list(Tick.__struct_fields__)
    assert list(responses.ticked(Tick()).body) == ["ok", *told]
