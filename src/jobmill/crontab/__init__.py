"""The crontab: runs documents of the user's own collection or table as jobs, by a date field.

    crontab.py      the scheduler, which does not know any database
    store.py        the port: three methods
    stores/         memory, MongoDB, SQLite, PostgreSQL, Redis

Each public name is imported when it is first used, and a driver only with its store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobmill.errors import MissingExtra

if TYPE_CHECKING:
    from jobmill.crontab.crontab import Crontab
    from jobmill.crontab.job import Changes, CrontabJob, Ending, LockLost
    from jobmill.crontab.store import BatchCrontabStore, CrontabStore
    from jobmill.crontab.stores.memory import MemoryCrontab
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

_HOME_OF = {
    "BatchCrontabStore": "store",
    "Changes": "job",
    "Crontab": "crontab",
    "CrontabJob": "job",
    "CrontabStore": "store",
    "Ending": "job",
    "LockLost": "job",
    "MemoryCrontab": "stores.memory",
    "MongoCrontab": "stores.mongo",
    "PostgresCrontab": "stores.postgres",
    "RedisCrontab": "stores.redis",
    "SqliteCrontab": "stores.sqlite",
}
#: The packages that a store imports, and the extra that installs them.
_EXTRAS = {
    "MongoCrontab": (("pymongo", "bson"), "mongo"),
    "PostgresCrontab": (("asyncpg",), "postgres"),
    "RedisCrontab": (("redis", "hiredis"), "redis"),
}


def __getattr__(name: str) -> Any:
    """Import a public name; MissingExtra if the driver of a store is not installed."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobmill.crontab' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"jobmill.crontab.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        packages, extra = _EXTRAS.get(name, ((), ""))
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingExtra(f"{name} needs {packages[0]}: pip install 'jobmill[{extra}]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The exported names."""
    return sorted({*globals(), *__all__})
