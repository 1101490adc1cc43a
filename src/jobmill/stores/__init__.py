"""Stores: a URL names one, and its module and driver are imported only then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlsplit

from jobmill.errors import InvalidValue, MissingExtra
from jobmill.store import Store

DEFAULT_URL = "sqlite:///jobmill.db"

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel")


def store_for(url: str) -> Store:
    """The store that a URL names, not yet opened."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        from jobmill.stores.memory import MemoryStore

        return MemoryStore()
    if parts.scheme == "sqlite":
        return _sqlite(url)
    if parts.scheme in ("postgresql", "postgres"):
        with _driver("postgresql:// needs asyncpg: pip install 'jobmill[postgres]'", "asyncpg"):
            from jobmill.stores.postgres import PostgresStore
        return PostgresStore(url)
    if parts.scheme in REDIS:
        with _driver("redis:// needs redis and hiredis: pip install 'jobmill[redis]'", "redis", "hiredis"):
            from jobmill.stores.redis import RedisStore
        return RedisStore(url)
    if parts.scheme in ("mongodb", "mongodb+srv"):
        with _driver("mongodb:// needs pymongo: pip install 'jobmill[mongo]'", "pymongo", "bson"):
            from jobmill.stores.mongo import MongoStore
        return MongoStore(url)
    advice = "for a file write sqlite:///jobs.db (absolute: sqlite:////var/jobs.db)"
    raise InvalidValue("url", "postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://", url, advice)


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

    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise InvalidValue("url", "sqlite:///relative/path or sqlite:////absolute/path", url, "three slashes, or four")
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    synchronous = options.pop("synchronous", "FULL").upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise InvalidValue("url", "no option but synchronous=FULL or synchronous=NORMAL", url)
    return SqliteStore(path, synchronous=synchronous)
