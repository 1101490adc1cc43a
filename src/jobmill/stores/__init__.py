"""Stores: a URL names one, and its module and driver are imported only then."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote

from jobmill.errors import InvalidValue, MissingExtra
from jobmill.store import Store
from jobmill.stores.common.url import without_credentials

DEFAULT_URL = "sqlite:///jobmill.db"

POSTGRES = ("postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2")
REDIS = ("redis", "rediss", "valkey", "valkeys", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel")


def store_for(url: str) -> Store:
    """The store that a URL names, not yet opened."""
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        from jobmill.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        return _sqlite(url)
    if scheme in POSTGRES:
        return _postgres(url)
    if scheme in REDIS:
        return _redis(url)
    if scheme in ("mongodb", "mongodb+srv"):
        return _mongo(url)
    advice = "for a file write sqlite:///jobs.db (absolute: sqlite:////var/jobs.db)"
    expected = "postgresql://…, mongodb://…, redis://…, sqlite:///path or memory://"
    raise InvalidValue("url", expected, without_credentials(url), advice)


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
