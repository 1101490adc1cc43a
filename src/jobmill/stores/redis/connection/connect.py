"""Making connections: redis-py knows addresses, TLS, passwords and sentinels; what it has connected becomes a Line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.errors import failure
from jobmill.stores.redis.connection.pipelined import Line
from jobmill.stores.redis.url import Address, Place

CONNECT_SECONDS = 5.0
# A sentinel that does not answer leaves time to ask the others.
SENTINEL_SECONDS = 1.0

# A host that vanished is noticed within 45 s where nothing is sent that a deadline would end.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


class _HandsOver(AbstractConnection):
    """A connection of redis-py that gives its stream away.

    Nothing public leads to the transport. These two attributes are what all kinds of connections set for the class they
    share, so a subclass is the least private way to them. A test fails when a version of redis-py has them not.
    """

    def hand_over(self) -> asyncio.StreamWriter:
        writer = getattr(self, "_writer", None)
        if not isinstance(writer, asyncio.StreamWriter):
            raise StoreError(
                f"redis-py {redis.__version__} keeps its stream elsewhere than Jobmill looks for it (_writer): "
                "install another version of redis, or a newer Jobmill"
            )
        # Otherwise it would close the stream when it is collected.
        self._reader = self._writer = None
        return writer


class _Tcp(_HandsOver, Connection):
    pass


class _Tls(_HandsOver, SSLConnection):
    pass


class _Unix(_HandsOver, UnixDomainSocketConnection):
    pass


_CLASSES: dict[type[AbstractConnection], type[_HandsOver]] = {
    Connection: _Tcp,
    SSLConnection: _Tls,
    UnixDomainSocketConnection: _Unix,
}


async def connect(place: Place, address: Address | None, name: str) -> Line:
    """A line to this node of a cluster; or (None) to the one server, or primary, that the place names."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if address is None and place.hosts:
                address = await _primary(place) if place.kind == "sentinel" else place.hosts[0]
            writer = await _connected(place, address, name)
    except (RedisError, OSError) as error:
        raise _translated(error, place) from error
    return Line(writer, place.url, address.host if address is not None else "")


async def _connected(place: Place, address: Address | None, name: str) -> asyncio.StreamWriter:
    # A server takes no other characters.
    name = "".join(letter if "!" <= letter <= "~" else "?" for letter in name)
    options: dict[str, Any] = {**place.options, "client_name": name}
    # Version 3 of the protocol lets servers speak unasked, which a Line has no ear for.
    options |= {"protocol": 2, "socket_timeout": None}
    if address is not None:
        options |= {"host": address.host, "port": address.port}
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    connection = _CLASSES[options.pop("connection_class")](**options)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection.hand_over()
    except BaseException:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
        raise


async def _primary(place: Place) -> Address:
    """Which of the servers that sentinels watch takes the writes."""
    options: dict[str, Any] = {**place.sentinel_options, "socket_timeout": SENTINEL_SECONDS, "protocol": 2}
    options |= {"socket_connect_timeout": SENTINEL_SECONDS, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(place.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        return Address(*await sentinel.discover_master(place.service))
    except MasterNotFoundError as error:
        raise StoreUnavailable(f"the sentinels of {place.url} know of no primary that works (a failover?)") from error
    finally:
        for one in sentinel.sentinels:
            with contextlib.suppress(RedisError, OSError):
                await one.aclose()


def _translated(error: RedisError | OSError, place: Place) -> StoreError:
    """An error of redis-py, which takes the code off what the server said."""
    if isinstance(error, TimeoutError):  # ours; redis-py has one of its own
        return StoreUnavailable(f"Redis at {place.url} could not be reached within {CONNECT_SECONDS:g} s")
    if isinstance(error, AuthenticationError):
        return failure(f"{'WRONGPASS' if 'password' in place.options else 'NOAUTH'} {error}", place.url)
    if isinstance(error, NoPermissionError):
        return failure(f"NOPERM {error}", place.url)
    if isinstance(error, ResponseError):
        return failure(str(error), place.url)
    return StoreUnavailable(f"Redis at {place.url} cannot be reached: {error}")
