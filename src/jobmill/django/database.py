"""The URL of a database of Django, so that jobs can be beside the tables of the application."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

#: Options of psycopg that asyncpg knows under the same names; the others concern Django only.
_SSL = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")
#: Names of this machine.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ADVICE = 'give OPTIONS["url"] of this entry of TASKS'


def url_of_database(alias: str, name: str | None = None) -> str | None:
    """The URL of the store in this database, or in the one of this name on the same server.

    None if Jobmill has no store for databases of this kind.
    """
    connection: Any = connections[alias]
    given = connection.settings_dict if name is None else {**connection.settings_dict, "NAME": name}
    if connection.vendor == "sqlite":
        # A database in the memory of this process, as tests have it: the jobs are there too.
        is_in_memory = connection.creation.is_in_memory_db(given["NAME"])
        return "memory://" if is_in_memory else _sqlite(str(given["NAME"]), alias)
    if connection.vendor == "postgresql":
        return _postgres(given, alias)
    return None


def _sqlite(name: str, alias: str) -> str:
    if name.startswith("file:"):
        raise ImproperlyConfigured(f"DATABASES[{alias!r}] names its file with a URI: {_ADVICE}")
    return f"sqlite:///{quote(os.path.abspath(name))}"


def _postgres(given: dict[str, Any], alias: str) -> str:
    options = given.get("OPTIONS") or {}
    if not given["NAME"] or "service" in options:
        raise ImproperlyConfigured(f"DATABASES[{alias!r}] does not name its database: {_ADVICE}")
    user, password = str(given["USER"]), str(given["PASSWORD"])
    host, port = str(given["HOST"]), str(given["PORT"])
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = {name: str(options[name]) for name in _SSL if name in options}
    if host.startswith("/"):  # the folder of a socket
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    server = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    where = f"{login}@{server}" if login else server
    return f"postgresql://{where}/{quote(str(given['NAME']), safe='')}" + (f"?{urlencode(query)}" if query else "")


@functools.lru_cache(maxsize=64)
def is_same_database(url: str, other: str | None) -> bool:
    """Whether two URLs name the same database, as far as their texts say so."""
    return other is not None and _named(url) is not None and _named(url) == _named(other)


def differ_in_host(url: str, other: str) -> bool:
    """Whether two URLs of PostgreSQL have the same port and database, but different hosts."""
    one, two = _named(url), _named(other)
    return one is not None and two is not None and one != two and one[0] == two[0] != "sqlite" and one[2:] == two[2:]


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    named = _named(url)
    return Path(named[1]) if named is not None and named[0] == "sqlite" else None


def _named(url: str) -> tuple[str, ...] | None:
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        return "sqlite", str(Path(unquote(parts.path)[1:]).resolve())
    if kind not in ("postgres", "postgresql"):
        return None
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    host = parts.hostname or query.get("host", "")
    if host in _LOOPBACK:
        host = "localhost"
    return "postgresql", host, str(parts.port or query.get("port", 5432)), unquote(parts.path)


def uses_psycopg3() -> bool:
    """Whether Django uses psycopg 3 for PostgreSQL, in whose transactions Jobmill can enqueue."""
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)
