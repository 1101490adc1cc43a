"""What tests of the Redis store's connections share."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.pipelined import Word, pack
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.url import RedisUrl


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[RedisClient]:
    """A client, closed at the end of the block."""
    client = RedisClient(RedisUrl.read(url))
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisContext]:
    """What verbs work with, closed at the end of the block."""
    context = RedisContext(url)
    try:
        yield context
    finally:
        await context.client.close()


async def everywhere(client: RedisClient, *command: Word) -> list[Any]:
    """The replies of all primaries."""
    connections = client.here()
    return [await (await connections.at(one)).send(pack(command)) for one in await connections.primaries()]


async def clients(client: RedisClient, name: str) -> list[dict[str, str]]:
    """The connections of this name, as CLIENT LIST has them."""
    found = [
        dict(field.partition("=")[::2] for field in line.split(" "))
        for text in await everywhere(client, "CLIENT", "LIST")
        for line in text.decode().splitlines()
    ]
    return [one for one in found if one["name"] == name]


def main_name(client: RedisClient) -> str:
    """The name of the connections that all calls share."""
    return f"{client.url.prefix}:jobmill"


def own(url: str) -> str:
    """The same server under a prefix that nobody else has: the prefix is part of a connection's name."""
    separator = "&" if urlsplit(url).query else "?"
    return f"{url}{separator}prefix=t{uuid.uuid4().hex[:12]}"
