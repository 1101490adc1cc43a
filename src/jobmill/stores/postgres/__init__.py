"""Jobs in PostgreSQL, by way of asyncpg."""

from jobmill.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
