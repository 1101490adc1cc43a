"""Where a store is: what its URL says to us, and what is left of it for the driver."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from jobmill.core.limits import check_int
from jobmill.errors import InvalidValue

SCHEMA = "jobmill"
POOL = 10


class Place(Struct, frozen=True, kw_only=True):
    """A database, a schema in it, and how many connections we may have there."""

    url: str
    schema: str
    pool: int

    @staticmethod
    def read(url: str, *, schema: str | None = None, pool: int | None = None) -> Place:
        """From `postgresql://user@host/database?schema=jobmill&pool=10`; other options are the driver's."""
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres"):
            raise InvalidValue("url", "postgresql://user@host/database", _without_password(url))
        rest: list[tuple[str, str]] = []
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key == "schema":
                schema = schema or value
            elif key == "pool":
                pool = pool or (int(value) if value.isascii() and value.isdigit() else -1)
            else:
                rest.append((key, value))
        left = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
        return Place(url=left, schema=schema or SCHEMA, pool=check_int(pool or POOL, "pool", 2, 1_000))

    def words(self) -> str:
        """Where it is, for people."""
        return f"{_without_password(self.url)}, schema {self.schema}"


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    user = credentials.partition(":")[0]
    return f"{scheme}{separator}{user}{at}{host}"
