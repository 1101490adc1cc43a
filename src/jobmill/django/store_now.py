"""Which store an entry of TASKS uses now: during tests that of their database, and never the real one."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from msgspec import Struct

from jobmill.django.database import is_same_database, url_of_database
from jobmill.django.interface import task_backends
from jobmill.stores.common.url import without_credentials

MEMORY = "memory://"
#: What a test runner, or a fixture that starts a server, changes in an entry of DATABASES.
_SEEN = ("NAME", "HOST", "PORT", "USER", "PASSWORD")
_NO_OPTIONS: dict[str, Any] = {}


class StoreNow(Struct):
    """The store, and the settings that it follows from."""

    options: dict[str, Any]
    seen: tuple[Any, ...]
    url: str
    #: Why no test may use it.
    refusal: str | None
    #: "join" or "on_commit", where the settings do not say it.
    mode: str | None = None


#: By the name in TASKS.
_found: dict[str, StoreNow] = {}
#: By the name in DATABASES: the real name of the database. Test runners change the settings in place.
_configured: dict[str, str] = {}


def remember_databases() -> None:
    """Remember the real databases, before a test runner replaces them."""
    for name, given in connections.settings.items():
        _configured.setdefault(name, str(given["NAME"]))


def forget_found() -> None:
    """Find all stores again."""
    _found.clear()


def is_testing() -> bool:
    """Whether a test runner of Django, or pytest-django, runs tests in this process."""
    utils: Any = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


def store_now(alias: str) -> StoreNow:
    """The store of an entry of TASKS. A test runner may change the settings, so they are compared."""
    options = task_backends.settings[alias].get("OPTIONS", _NO_OPTIONS)
    database = connections.settings.get(options.get("database", "default"), _NO_OPTIONS)
    seen = (*map(database.get, _SEEN), os.environ.get("JOBMILL_URL"), is_testing())
    found = _found.get(alias)
    if found is None or found.options is not options or found.seen != seen:
        url = _url(alias, options)
        found = _found[alias] = StoreNow(options, seen, url, _refusal(alias, options, url))
    return found


def _url(alias: str, options: dict[str, Any]) -> str:
    if is_testing() and (url := options.get("test_url")):
        return str(url)
    database = options.get("database", "default")
    url = options.get("url") or url_of_database(database) or os.environ.get("JOBMILL_URL")
    if not url:
        raise ImproperlyConfigured(
            f"Jobmill has no store for DATABASES[{database!r}]: give OPTIONS['url'] of TASKS[{alias!r}], "
            "or set JOBMILL_URL"
        )
    return _in_test_database(str(url))


def _in_test_database(url: str) -> str:
    """The same URL, in the database of the tests if it names one that they have replaced."""
    for name in _replaced():
        with contextlib.suppress(ImproperlyConfigured):
            if is_same_database(url, url_of_database(name, _configured[name])):
                instead, parts = url_of_database(name) or MEMORY, urlsplit(url)
                query = f"?{parts.query}" if parts.query else ""
                return (
                    MEMORY if instead == MEMORY else f"{parts.scheme}://{parts.netloc}{urlsplit(instead).path}{query}"
                )
    return url


def _replaced() -> list[str]:
    """The entries of DATABASES for which a test runner has made a database."""
    settings = connections.settings
    return [name for name, real in _configured.items() if name in settings and str(settings[name]["NAME"]) != real]


def _refusal(alias: str, options: dict[str, Any], url: str) -> str | None:
    if not is_testing() or url == MEMORY or "test_url" in options:
        return None
    for name in _replaced():
        with contextlib.suppress(ImproperlyConfigured):
            if is_same_database(url, url_of_database(name)):
                return None
    database = options.get("database", "default")
    if options.get("url") or url_of_database(database) is None:
        why = "it is in no database that was made for the tests"
        advice = "use the test kit"
    else:
        why = f"the tests have no database in place of DATABASES[{database!r}]"
        advice = f"name it in the test class (databases = {{{database!r}, ...}}), use the test kit"
    where = f"TASKS[{alias!r}] ({without_credentials(url)})"
    return (
        f"a test would use the real store of {where}: {why}; {advice}, or give a store for tests as OPTIONS['test_url']"
    )
