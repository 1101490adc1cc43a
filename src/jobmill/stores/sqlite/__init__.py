"""The store on a SQLite file."""

from jobmill.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
