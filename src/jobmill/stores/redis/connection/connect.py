"""Making connections: redis-py does addresses, TLS, passwords and sentinels; we take the connected stream over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.errors import translated_errors
from jobmill.stores.redis.connection.pipelined import PipelinedConnection
from jobmill.stores.redis.url import Address, RedisUrl

CONNECT_SECONDS = 5.0
# A sentinel that does not answer leaves time to ask the others.
SENTINEL_SECONDS = 1.0

# A host that vanished is noticed within 45 s even where no command with a deadline is in flight.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


async def connect(url: RedisUrl, address: Address | None, name: str) -> PipelinedConnection:
    """A connection to this node of a cluster; or (None) to the one server, or primary, of the URL."""
    with translated_errors(url, CONNECT_SECONDS):
        async with asyncio.timeout(CONNECT_SECONDS):
            if address is None and url.hosts:
                address = await _primary(url) if url.kind == "sentinel" else url.hosts[0]
            writer = await _connected(url, address, name)
    return PipelinedConnection(writer, url.text, address.host if address is not None else "")


def connection_name(name: str) -> str:
    """A name as a server accepts it."""
    return "".join(letter if "!" <= letter <= "~" else "_" for letter in name)


async def _connected(url: RedisUrl, address: Address | None, name: str) -> asyncio.StreamWriter:
    options: dict[str, Any] = {**url.options, "client_name": connection_name(name)}
    # With version 3 of the protocol a server sends messages that nobody asked for.
    options |= {"protocol": 2, "socket_timeout": None}
    if address is not None:
        options |= {"host": address.host, "port": address.port}
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    connection: AbstractConnection = options.pop("connection_class")(**options)
    # Servers before 7.2 have no CLIENT SETINFO, and refuse an ACL that names it.
    for field in ("driver_info", "lib_name", "lib_version"):
        setattr(connection, field, None)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        return take_stream(connection)
    except BaseException:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
        raise


def take_stream(connection: AbstractConnection) -> asyncio.StreamWriter:
    """Take the stream from a connection of redis-py, which has no public way to it. A test fails where it moves."""
    writer = getattr(connection, "_writer", None)
    if not isinstance(writer, asyncio.StreamWriter):
        raise StoreError(
            f"redis-py {redis.__version__} does not keep its stream where Jobmill expects it (_writer): "
            "install another version of redis, or a newer Jobmill"
        )
    # Otherwise redis-py closes the stream when its connection is garbage-collected.
    connection._reader = connection._writer = None
    return writer


async def _primary(url: RedisUrl) -> Address:
    """The server that takes writes, according to the sentinels."""
    options: dict[str, Any] = {**url.sentinel_options, "socket_timeout": SENTINEL_SECONDS, "protocol": 2}
    options |= {"socket_connect_timeout": SENTINEL_SECONDS, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(url.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        return Address(*await sentinel.discover_master(url.service))
    except MasterNotFoundError as error:
        raise StoreUnavailable(f"the sentinels of {url.text} know of no primary that works (a failover?)") from error
    finally:
        for one in sentinel.sentinels:
            with contextlib.suppress(RedisError, OSError):
                await one.aclose()
