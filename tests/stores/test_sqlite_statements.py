"""The SQL files of the SQLite store: each statement has one name, and the code uses it."""

from __future__ import annotations

import re

import pytest

from jobmill.stores.sqlite.statements import HERE, sql, sql_rows

pytestmark = pytest.mark.stores("sqlite")

SMALL = re.findall(r"^-- name: (\w+)$", (HERE / "sql/small.sql").read_text(), re.MULTILINE)
LONG = [file.stem for file in (HERE / "sql").glob("*.sql") if file.stem != "small"]


def test_every_statement_has_one_name() -> None:
    assert len(SMALL) > 30
    assert sorted({*SMALL, *LONG}) == sorted(SMALL + LONG)


def test_the_code_uses_every_statement() -> None:
    code = "\n".join(file.read_text() for file in HERE.rglob("*.py"))
    assert [name for name in [*SMALL, *LONG] if name != "job" and f'"{name}"' not in code] == []


def test_statements_come_without_comments() -> None:
    assert all("--" not in sql(name) for name in [*SMALL, *LONG])
    assert sql("progress") == "UPDATE jobmill_jobs SET updated_ms = ?2, progress = ?3 WHERE seq = ?1"


def test_a_statement_about_rows_has_parameters_for_each() -> None:
    assert sql_rows("log", 2).endswith("VALUES (?1, ?2, ?3, ?4, ?5, ?6), (?7, ?8, ?9, ?10, ?11, ?12)")
