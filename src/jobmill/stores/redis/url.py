"""The URL of a Redis store: our own options, and the rest for redis-py."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode

from msgspec import Struct
from redis.asyncio.connection import Connection, parse_url
from redis.crc import key_slot
from redis.exceptions import RedisError

from jobmill.core.limits import check_name
from jobmill.errors import InvalidValue
from jobmill.stores.common.url import HOST, split_url, without_credentials

PREFIX = "bull"
LAYOUTS = ("6", "5")
Kind: TypeAlias = Literal["single", "sentinel", "cluster"]

_KINDS: dict[str, Kind] = {
    "redis": "single",
    "rediss": "single",
    "valkey": "single",
    "valkeys": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_FORMS: dict[Kind, str] = {
    "single": "redis://user:password@host:6379/0, rediss://… for TLS, or unix:///path/of/socket?db=0",
    "sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
    "cluster": "redis+cluster://host1:6379,host2:6379, without a database: a cluster has one",
}
_PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
# Only the text between the first brace and the next closing one counts.
_TAG = re.compile(r"[^{]*\{[^}]+\}.*", re.DOTALL)

#: Options of redis-py that would do nothing here, or break what this store relies on.
_DECIDED = {
    *("protocol", "decode_responses", "encoding", "encoding_errors", "client_name", "socket_timeout", "timeout"),
    *("max_connections", "health_check_interval", "retry_on_timeout", "retry_on_error", "legacy_responses"),
    *("host", "port", "path", "connection_class"),
}
_SENTINEL = ("username", "password")


class Address(NamedTuple):
    """A server's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        """As in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisUrl(Struct, frozen=True, kw_only=True):
    """One server, or several that know each other, and the prefix of the queues there."""

    kind: Kind
    #: For messages: without password and options.
    text: str
    prefix: str
    #: 6, or 5 for queues that BullMQ 5 shares: it keeps the waiting jobs of a paused queue in another list.
    layout: int
    #: The server, the sentinels, or some nodes of the cluster. Empty for a unix socket.
    hosts: tuple[Address, ...]
    #: The name under which the sentinels know the servers.
    service: str
    #: Arguments for redis-py's connections, without host and port, and their class (`connection_class`).
    options: dict[str, Any]
    #: Arguments for redis-py's connections to sentinels.
    sentinel_options: dict[str, str]

    @staticmethod
    def read(url: str) -> RedisUrl:
        """From `redis://user:password@host:6379/0?prefix=bull&layout=6`; all other options are redis-py's."""
        parts = split_url(url, _FORMS["single"])
        if parts.scheme not in _KINDS:
            raise InvalidValue("url", " or ".join(f"{scheme}://…" for scheme in _KINDS), without_credentials(url))
        kind = _KINDS[parts.scheme]
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in given:
            if name in _DECIDED:
                raise InvalidValue(
                    "url", "options without those that Jobmill decides itself", name, f"leave {name} out"
                )
        prefix = check_name(given.pop("prefix", PREFIX), "prefix")
        layout = given.pop("layout", LAYOUTS[0])
        if layout not in LAYOUTS:
            raise InvalidValue("layout", "6, or 5 for queues that BullMQ 5 shares", layout)
        sentinel_options = {name: given.pop(f"sentinel_{name}") for name in _SENTINEL if f"sentinel_{name}" in given}
        if sentinel_options and kind != "sentinel":
            raise InvalidValue("url", "sentinel_… with redis+sentinel:// only", without_credentials(url))
        credentials, at, netloc = parts.netloc.rpartition("@")
        hosts = () if parts.scheme == "unix" else _hosts(kind, netloc, url)
        service, path = _split_path(kind, parts, url)
        scheme = parts.scheme.partition("+")[0].replace("valkey", "redis")
        options = _options(f"{scheme}://{credentials}{at}{path}?{urlencode(given)}", url)
        if kind == "cluster" and options["db"]:
            raise InvalidValue("url", _FORMS[kind], f"db={options['db']}")
        user = unquote(credentials.partition(":")[0])
        if scheme == "unix":
            server = f"{path}, db {options['db']}"
        else:
            ends = [] if kind == "cluster" else [service, str(options["db"])]
            server = "/".join([",".join(map(str, hosts)), *filter(None, ends)])
        return RedisUrl(
            kind=kind,
            text=f"{parts.scheme}://{user}{'@' if user else ''}{server}",
            prefix=prefix,
            layout=int(layout),
            hosts=hosts,
            service=service,
            options=options,
            sentinel_options=sentinel_options,
        )

    @property
    def address(self) -> str:
        """Where the jobs are, without secrets."""
        return f"{self.text}, prefix {self.prefix}"

    def check_queue(self, queue: str) -> None:
        """Refuse a queue whose keys would be spread over several nodes of a cluster."""
        if self.kind == "cluster" and not _TAG.fullmatch(f"{self.prefix}:{queue}"):
            raise InvalidValue(
                "queue",
                "a queue name or prefix with a hash tag, such as {mail}, on Redis Cluster",
                queue,
                "all keys of a queue must be on one node; write the braces into the queue's name here and in Node, "
                "or ?prefix={bull} in the URL",
            )

    def __repr__(self) -> str:
        """Without secrets."""
        return f"RedisUrl({self.address!r})"


def slot_of(key: str) -> int:
    """Which of the 16,384 slots of a cluster a key is in."""
    return key_slot(key.encode())


def _hosts(kind: Kind, netloc: str, url: str) -> tuple[Address, ...]:
    found = []
    for text in netloc.split(","):
        match = HOST.fullmatch(text)
        port = int(match[2] or _PORTS[kind]) if match else 0
        if match is None or not 0 < port < 65_536:
            raise InvalidValue("url", _FORMS[kind], without_credentials(url))
        found.append(Address(match[1].strip("[]") or "localhost", port))
    if kind == "single" and len(found) > 1:
        raise InvalidValue(
            "url", _FORMS[kind], without_credentials(url), "several: redis+sentinel://… or redis+cluster://…"
        )
    return tuple(found)


def _split_path(kind: Kind, parts: SplitResult, url: str) -> tuple[str, str]:
    """The service of sentinels, and what redis-py reads the database or the socket from."""
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise InvalidValue("url", _FORMS[kind], without_credentials(url))
        return "", parts.path
    names = [unquote(name) for name in parts.path.split("/")[1:]]
    if names and names[-1] == "":
        names.pop()
    service = names.pop(0) if kind == "sentinel" and names else ""
    db = names.pop(0) if kind != "cluster" and names else "0"
    if names or (kind == "sentinel" and not service) or not (db.isascii() and db.isdigit()):
        raise InvalidValue("url", _FORMS[kind], without_credentials(url))
    return service, f"/{db}"


def _options(url: str, whole: str) -> dict[str, Any]:
    """What redis-py reads from a URL; tried out, so that what it does not know is refused here."""
    try:
        options: dict[str, Any] = {"db": 0, "connection_class": Connection, **parse_url(url)}
        options["connection_class"](**{name: value for name, value in options.items() if name != "connection_class"})
    except (TypeError, ValueError, RedisError) as error:
        raise InvalidValue(
            "url", "options that redis-py's connections have", without_credentials(whole), str(error)
        ) from error
    return options
