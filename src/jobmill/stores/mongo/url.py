"""The URL of a store: its options for Jobmill, and the rest for pymongo."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from msgspec import Struct
from pymongo.errors import InvalidURI, PyMongoError
from pymongo.uri_parser import parse_userinfo, split_options

from jobmill.core.durations import to_ms
from jobmill.core.job import DAY_MS, JobOptions
from jobmill.core.limits import check_name, check_queue
from jobmill.errors import InvalidValue
from jobmill.stores.common.url import ESCAPES, split_url, without_credentials

COLLECTION = "monque_jobs"
#: The queue of documents that name none: those of Monque, which has no queues.
QUEUE = "default"
LOCK_TIMEOUT = "30m"
#: Monque's rule of retries, which no document has: the number of attempts, and the delay that doubles with each error.
MAX_RETRIES = "10"
BASE_RETRY_INTERVAL = "1s"

Indexes: TypeAlias = Literal["monque", "lean", "none"]

_FORM = "mongodb://user:password@host:27017/database, or mongodb+srv://…"
_OURS = {"collection", "queue", "indexes", "monque", "lock_timeout", "recover_foreign"}
_OURS |= {"max_retries", "base_retry_interval"}
#: Options of pymongo that this store must decide itself.
_DECIDED = {
    name.lower()
    for name in ("w", "wTimeoutMS", "journal", "fsync", "readPreference", "readConcernLevel", "retryWrites")
} | {"uuidrepresentation", "tz_aware", "document_class", "datetime_conversion", "unicode_decode_error_handler"}
_NOT_IN_DATABASES = re.compile(r'[/\\. "$*<>:|?\x00]')


class MongoUrl(Struct, frozen=True, kw_only=True):
    """A database of a server or replica set, the collection in it, and how it is shared with Monque."""

    #: For pymongo: without the options of Jobmill.
    driver_url: str
    #: For messages: without password and options.
    shown: str
    database: str
    collection: str
    queue: str
    indexes: Indexes
    #: Whether every Monque here is of the second generation, which knows timezones.
    has_timezones: bool
    #: After this time without a heartbeat a claim of Monque is stale.
    lock_timeout_ms: int
    recover_foreign: bool
    #: The options of jobs that Monque enqueued.
    foreign_options: JobOptions

    @staticmethod
    def read(url: str) -> MongoUrl:
        """From `mongodb://host/db?collection=monque_jobs&indexes=lean&…`; other options are pymongo's."""
        parts = split_url(url, _FORM)
        if parts.scheme not in ("mongodb", "mongodb+srv"):
            raise InvalidValue("url", _FORM, without_credentials(url))
        database = unquote(parts.path[1:])
        if not parts.netloc.rpartition("@")[2] or not database or _NOT_IN_DATABASES.search(database):
            raise InvalidValue("url", _FORM, without_credentials(url), "the name of the database is part of it")
        credentials, at, hosts = parts.netloc.rpartition("@")
        user = credentials.partition(":")[0]
        try:
            if at:
                parse_userinfo(credentials)
        except InvalidURI as error:
            raise InvalidValue("url", _FORM, without_credentials(url), ESCAPES if user else str(error)) from None
        ours, rest = _split_options(parts.query)
        query = f"?{urlencode(rest)}" if rest else ""
        _check_driver_options(query[1:], url)
        return MongoUrl(
            driver_url=f"{parts.scheme}://{parts.netloc}/{quote(database)}{query}",
            shown=f"{parts.scheme}://{user}{at}{hosts}/{database}",
            database=database,
            collection=_collection(ours.get("collection", COLLECTION)),
            queue=check_queue(ours.get("queue", QUEUE)),
            indexes=_indexes(ours.get("indexes", "lean")),
            has_timezones=_generation(ours.get("monque", "1")) == 2,
            lock_timeout_ms=to_ms(ours.get("lock_timeout", LOCK_TIMEOUT), "lock_timeout"),
            recover_foreign=_is_true(ours.get("recover_foreign", "true"), "recover_foreign"),
            foreign_options=_foreign_options(
                ours.get("max_retries", MAX_RETRIES), ours.get("base_retry_interval", BASE_RETRY_INTERVAL)
            ),
        )

    @property
    def address(self) -> str:
        """Where the jobs are: the URL without secrets, and the collection."""
        return f"{self.shown}, collection {self.collection}"

    def __repr__(self) -> str:
        """Without secrets."""
        return f"MongoUrl({self.address!r})"


def _split_options(query: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Options of Jobmill, and those of pymongo, of which some may be given more than once."""
    ours: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() in _DECIDED:
            raise InvalidValue("url", "no option that Jobmill decides itself", name, f"leave {name} out")
        if name in _OURS:
            ours[name] = value
        else:
            rest.append((name, value))
    return ours, rest


def _check_driver_options(query: str, url: str) -> None:
    """Let pymongo check its options here: its client only warns about unknown ones."""
    try:
        if query:
            split_options(query, validate=True, warn=False)
    except (PyMongoError, ValueError, TypeError) as error:
        raise InvalidValue(
            "url", "options that Jobmill or pymongo has", without_credentials(url), str(error)
        ) from error


def _collection(name: str) -> str:
    if "$" in name or name.startswith("system."):
        raise InvalidValue("collection", 'a name without "$" that does not begin with "system."', name)
    return check_name(name, "collection")


def _indexes(given: str) -> Indexes:
    if given not in get_args(Indexes):
        raise InvalidValue("indexes", "monque, lean or none", given)
    return cast("Indexes", given)


def _generation(given: str) -> int:
    if given not in ("1", "2"):
        raise InvalidValue("monque", "the generation of Monque, 1 or 2", given)
    return int(given)


def _foreign_options(max_retries: str, base: str) -> JobOptions:
    if not re.fullmatch("[0-9]{1,9}", max_retries) or int(max_retries) < 1:
        raise InvalidValue("max_retries", "a number of attempts, 1 or more", max_retries)
    # Monque waits twice the interval after the first error.
    delay_ms = 2 * to_ms(base, "base_retry_interval", least=1)
    backoff = {"type": "exponential", "delay_ms": delay_ms, "cap_ms": DAY_MS}
    return msgspec.convert({"max_attempts": int(max_retries), "backoff": backoff}, JobOptions)


def _is_true(given: str, field: str) -> bool:
    if given not in ("true", "false"):
        raise InvalidValue(field, "true or false", given)
    return given == "true"
