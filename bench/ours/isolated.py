"""A no-op handler that other processes find: each of its jobs runs in one of its own. JOBMILL_URL says where."""

from __future__ import annotations

from jobmill.client.client import connect

client = connect()


@client.handler(isolate=True)
def noop() -> None:
    """Do nothing."""
