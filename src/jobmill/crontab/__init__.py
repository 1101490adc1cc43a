"""The crontab: runs documents of the user's own collection or table as jobs, by a date field.

    crontab.py      the scheduler, which does not know any database
    store.py        the port: three methods
    stores/         memory, MongoDB, SQLite, PostgreSQL, Redis

A store is imported when it is first used, because its driver may be missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobmill.crontab.crontab import Crontab
from jobmill.crontab.job import Changes, CrontabJob, Ending, LockLost
from jobmill.crontab.store import BatchCrontabStore, CrontabStore
from jobmill.crontab.stores.memory import MemoryCrontab
from jobmill.errors import MissingExtra

if TYPE_CHECKING:
    from jobmill.crontab.stores.mongo import MongoCrontab
    from jobmill.crontab.stores.postgres import PostgresCrontab
    from jobmill.crontab.stores.redis import RedisCrontab
    from jobmill.crontab.stores.sqlite import SqliteCrontab

__all__ = [
    "BatchCrontabStore",
    "Changes",
    "Crontab",
    "CrontabJob",
    "CrontabStore",
    "Ending",
    "LockLost",
    "MemoryCrontab",
    "MongoCrontab",
    "PostgresCrontab",
    "RedisCrontab",
    "SqliteCrontab",
]

#: The module of a store, which is also the name of the extra that installs the packages of its driver.
_STORES = {
    "MongoCrontab": ("mongo", ("pymongo", "bson")),
    "PostgresCrontab": ("postgres", ("asyncpg",)),
    "RedisCrontab": ("redis", ("redis", "hiredis")),
    "SqliteCrontab": ("sqlite", ()),
}


def __getattr__(name: str) -> Any:
    """Import a store; MissingExtra if its driver is not installed."""
    if name not in _STORES:
        raise AttributeError(f"module 'jobmill.crontab' has no attribute {name!r}")
    module, packages = _STORES[name]
    try:
        value = getattr(import_module(f"jobmill.crontab.stores.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingExtra(f"{name} needs {packages[0]}: pip install 'jobmill[{module}]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The exported names."""
    return sorted({*globals(), *__all__})
