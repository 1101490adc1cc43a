"""What `jobmill.crontab` exports, and what it imports for that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobmill import crontab
from tests.helpers import without_coverage

DRIVERS = ("pymongo", "asyncpg", "redis", "hiredis", "sqlite3")


def python(code: str) -> str:
    """What a fresh process prints."""
    environment = without_coverage(os.environ)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_every_public_name_can_be_imported() -> None:
    assert crontab.__all__ == sorted(crontab.__all__)
    assert [name for name in crontab.__all__ if getattr(crontab, name).__name__ != name] == []
    assert set(crontab.__all__) <= set(dir(crontab))


def test_other_names_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match="module 'jobmill.crontab' has no attribute 'MysqlCrontab'"):
        _ = crontab.MysqlCrontab


def test_no_driver_is_imported_before_its_store() -> None:
    code = "import sys; from jobmill.crontab import Crontab, MemoryCrontab, LockLost; print(*sys.modules)"
    assert set(python(code).split()).isdisjoint(DRIVERS)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("MongoCrontab", "pymongo", "mongo"),
        ("PostgresCrontab", "asyncpg", "postgres"),
        ("RedisCrontab", "redis", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(name: str, package: str, extra: str) -> None:
    # None in sys.modules is how Python knows that there is no such module.
    code = f"""
import sys
sys.modules["{package}"] = None
from jobmill import MissingExtra
try:
    from jobmill.crontab import {name}
except MissingExtra as error:
    print(error)
"""
    assert python(code) == f"{name} needs {package}: pip install 'jobmill[{extra}]'"
