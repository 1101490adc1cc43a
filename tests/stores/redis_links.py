"""What tests of the Redis store's connections share."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from jobmill.stores.redis.connection.client import Link
from jobmill.stores.redis.url import Place


@contextlib.asynccontextmanager
async def linked(url: str) -> AsyncIterator[Link]:
    """A link, closed at the end of the block."""
    link = Link(Place.read(url))
    try:
        yield link
    finally:
        await link.close()


async def clients(link: Link, name: str) -> list[dict[str, str]]:
    """The connections of this name, as CLIENT LIST has them."""
    found = [
        dict(field.partition("=")[::2] for field in line.split(" "))
        for text in await link.everywhere("CLIENT", "LIST")
        for line in text.decode().splitlines()
    ]
    return [one for one in found if one["name"] == name]


def main_name(link: Link) -> str:
    """Of the connections that all calls share."""
    return f"{link.place.prefix}:jobmill"


def own(url: str) -> str:
    """The same place under a prefix that nobody else has: a connection's name tells whose it is."""
    separator = "&" if urlsplit(url).query else "?"
    return f"{url}{separator}prefix=t{uuid.uuid4().hex[:12]}"
