"""The URL of a store: which parts are ours, and what the driver gets."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from jobmill.core.limits import check_int
from jobmill.errors import InvalidValue
from jobmill.stores.common.url import split_url, without_credentials

SCHEMA = "jobmill"
POOL_SIZE = 10
_FORM = "postgresql://user:password@host:5432/database"
# Options of the driver that say which database is meant.
_LOCATING = ("host", "port", "dbname", "database", "service")


class PostgresUrl(Struct, frozen=True, kw_only=True):
    """A database, a schema in it, and the maximum number of connections in the pool."""

    #: Without our own options, for the driver.
    url: str
    schema: str
    pool_size: int

    @staticmethod
    def parse(url: str, *, schema: str | None = None, pool_size: int | None = None) -> PostgresUrl:
        """Read `postgresql://user@host/database?schema=jobmill&pool=10`; other options are the driver's."""
        parts = split_url(url, _FORM)
        if parts.scheme.partition("+")[0] not in ("postgresql", "postgres"):
            raise InvalidValue("url", _FORM, without_credentials(url))
        options: list[tuple[str, str]] = []
        size: object = POOL_SIZE
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key == "schema":
                schema = schema or value
            elif key == "pool":
                size = int(value) if value.isascii() and value.isdigit() else value
            else:
                options.append((key, value))
        # urlunsplit would leave out the slashes of postgresql:///database.
        for_driver = f"postgresql://{parts.netloc}{parts.path}{'?' if options else ''}{urlencode(options)}"
        size = check_int(size if pool_size is None else pool_size, "pool", 2, 1_000)
        return PostgresUrl(url=for_driver, schema=schema or SCHEMA, pool_size=size)

    @property
    def address(self) -> str:
        """The URL without secrets, and the schema."""
        where = [(key, value) for key, value in parse_qsl(urlsplit(self.url).query) if key in _LOCATING]
        options = "?" + urlencode(where, safe="/,:") if where else ""
        return f"{without_credentials(self.url)}{options}, schema {self.schema}"
