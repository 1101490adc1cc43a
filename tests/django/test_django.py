"""Runs the files cases_*.py with Django's own test runner, on each database that Django and Jobmill share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))


def database_settings(url: str) -> dict[str, Any]:
    """The URL of a store as an entry of DATABASES."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        file = unquote(parts.path)[1:]
        given = {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "TEST": {"NAME": f"{file}-test"}}
        return {**given, "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or query.get("user", ""),
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
    }


def store_url_of(settings: dict[str, Any]) -> str:
    """The reverse: the URL of a store in the database of an entry of DATABASES."""
    if settings["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{quote(settings['NAME'])}"
    login = quote(settings["USER"], safe="") + (f":{settings['PASSWORD']}" if settings["PASSWORD"] else "")
    host, query = settings["HOST"], ""
    if host.startswith("/"):
        host, query = "", "?" + urlencode({"host": host, "port": settings["PORT"]})
    port = f":{settings['PORT']}" if host and settings["PORT"] else ""
    return f"postgresql://{login}@{host}{port}/{settings['NAME']}{query}"


@pytest.mark.slow
@pytest.mark.stores("sqlite", "postgres")
@pytest.mark.parametrize("cases", CASES)
def test_cases(cases: str, store_name: str, store_url: str) -> None:
    environment = {
        **os.environ,
        "JOBMILL_TEST_DJANGO": json.dumps(database_settings(store_url)),
        "DJANGO_SETTINGS_MODULE": "tests.django.settings",
    }
    # The second warning is a mistake of early Python 3.12; see pyproject.toml.
    warnings = ["-W", "error", "-W", "ignore:Binding:DeprecationWarning"]
    command = [sys.executable, *warnings, "-m", "django", "test", f"tests.django.{cases}", "--noinput"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\nOK" in ended.stderr, ended.stderr
