"""Stores: a URL names one, and its module and driver are imported only then."""

from __future__ import annotations

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
        return _postgres(url)
    if parts.scheme in REDIS:
        return _redis(url)
    if parts.scheme in ("mongodb", "mongodb+srv"):
        return _mongo(url)
    advice = "for a file write sqlite:///jobs.db (absolute: sqlite:////var/jobs.db)"
    raise InvalidValue("url", "postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://", url, advice)


def _postgres(url: str) -> Store:
    try:
        from jobmill.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra("postgresql:// needs asyncpg: pip install 'jobmill[postgres]'") from None
    return PostgresStore(url)


def _redis(url: str) -> Store:
    try:
        from jobmill.stores.redis import RedisStore
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        raise MissingExtra("redis:// needs redis and hiredis: pip install 'jobmill[redis]'") from None
    return RedisStore(url)


def _mongo(url: str) -> Store:
    try:
        from jobmill.stores.mongo import MongoStore
    except ModuleNotFoundError as error:
        if error.name not in ("pymongo", "bson"):
            raise
        raise MissingExtra("mongodb:// needs pymongo: pip install 'jobmill[mongo]'") from None
    return MongoStore(url)


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
