"""The connections to the file: opening them, the threads that use them, and SQLite's errors as ours."""

from jobmill.stores.sqlite.connection.connect import BUSY_SECONDS, begin, connect, translated, translated_errors

__all__ = ["BUSY_SECONDS", "begin", "connect", "translated", "translated_errors"]
