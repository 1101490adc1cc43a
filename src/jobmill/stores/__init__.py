"""Stores: a URL names one, and its module and driver are imported only then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote

from jobmill.errors import InvalidValue, MissingExtra
from jobmill.store import Store
from jobmill.stores.common.url import FILE_ADVICE, scheme_of, without_credentials

DEFAULT_URL = "sqlite:///jobmill.db"
_FORM = "postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://"

POSTGRES = ("postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2")
REDIS = ("redis", "rediss", "valkey", "valkeys", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel")


def store_for(url: str) -> Store:
    """The store that a URL names, not yet opened."""
    scheme = scheme_of(url, _FORM)
    if scheme == "memory":
        if url.partition("://")[2]:
            raise InvalidValue("url", "memory:// with nothing after it", without_credentials(url))
        from jobmill.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        return _sqlite(url)
    if scheme in POSTGRES:
        with _driver("postgresql:// needs asyncpg: pip install 'jobmill[postgres]'", "asyncpg"):
            from jobmill.stores.postgres import PostgresStore
        return PostgresStore(url)
    if scheme in REDIS:
        with _driver("redis:// needs redis and hiredis: pip install 'jobmill[redis]'", "redis", "hiredis"):
            from jobmill.stores.redis import RedisStore
        return RedisStore(url)
    if scheme in ("mongodb", "mongodb+srv"):
        with _driver("mongodb:// needs pymongo: pip install 'jobmill[mongo]'", "pymongo", "bson"):
            from jobmill.stores.mongo import MongoStore
        return MongoStore(url)
    raise InvalidValue("url", _FORM, without_credentials(url), FILE_ADVICE)


@contextlib.contextmanager
def _driver(advice: str, *packages: str) -> Iterator[None]:
    """Raise MissingExtra with this advice where one of these packages is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise MissingExtra(advice) from None


def _sqlite(url: str) -> Store:
    from jobmill.stores.sqlite import SqliteStore

    path, _, query = url[len("sqlite:///") :].partition("?")
    if not url.lower().startswith("sqlite:///") or "#" in url or not path:
        advice = "three slashes, or four; in a path write # as %23 and ? as %3F"
        expected = "sqlite:///relative/path or sqlite:////absolute/path"
        raise InvalidValue("url", expected, without_credentials(url), advice)
    options = {key: values[-1] for key, values in parse_qs(query).items()}
    synchronous = options.pop("synchronous", "FULL").upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise InvalidValue("url", "no option but synchronous=FULL or synchronous=NORMAL", without_credentials(url))
    return SqliteStore(unquote(path), synchronous=synchronous)
