"""No password reaches a message, a repr or a log, whatever the URL is; and every refusal is an error of ours."""

from __future__ import annotations

import itertools
import random
import re
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

import jobmill
from jobmill.store import Store
from jobmill.stores import POSTGRES, REDIS
from jobmill.stores.common.url import without_credentials
from jobmill.stores.mongo import MongoStore
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.redis import RedisStore

SCHEMES = (*POSTGRES, *REDIS, "mongodb", "mongodb+srv", "sqlite", "memory")
ODD_SCHEMES = ("mysql", "valkey+x", "Redis", "http", "", "a b")
#: Between two parts that must not be shown.
SEPARATORS = (
    "",
    "/",
    "?",
    "#",
    "@",
    ":",
    "%",
    "%2F",
    "[",
    "]",
    "//",
    "&",
    "=",
    " ",
    "\n",
    ",",
    "/@",
    "?@",
    "#@",
    "é",
    "%zz",
)
USERS = ("ada", "", "a%40b", "a/b")
HOSTS = ("127.0.0.1", "127.0.0.1:1", "[::1]", "h1:1,h2:2", "", "h:port", "[", "h:99999")
ENDS = (
    "/db",
    "",
    "/",
    "/0",
    "/db?",
    "/db?schema=x&pool=3",
    "/db#x",
    "/db?password={password}",
    "/0?nonsense=1",
    "/db?x@y",
)
PARTS = ("Zs3c", "rQ7x")
#: Between the scheme and the user: as it should be, and as people mistype it.
STARTS = ("://", "://", "://", ":", ":/", ":///", "//", ":\\\\", "")
AROUND = ("{}", "{}", "{}", '"{}"', "'{}'", " {}")


def odd_urls(count: int) -> list[str]:
    """URLs that differ in every part, always the same."""
    every = list(itertools.product((*SCHEMES, *ODD_SCHEMES), STARTS, USERS, SEPARATORS, HOSTS, ENDS))
    chosen = random.Random(1).sample(every, count)
    urls = []
    for number, (scheme, start, user, separator, host, end) in enumerate(chosen):
        if (scheme, start) == ("sqlite", ":///"):
            continue  # all of it is the path of a file
        password = separator.join(PARTS)
        url = f"{scheme}{start}{user}:{password}@{host}{end.format(password=password)}"
        urls.append(AROUND[number % len(AROUND)].format(url))
    return urls


def texts(error: BaseException) -> str:
    """All that a log, a crash report or a debugger shows of an error and its causes."""
    shown = "".join(traceback.format_exception(error))
    current: BaseException | None = error
    while current is not None:
        shown += repr(current) + repr(vars(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return shown


@pytest.mark.parametrize("url", odd_urls(1000))
def test_no_part_of_a_password_is_shown(url: str) -> None:
    try:
        jobs = jobmill.connect(url)
    except jobmill.JobmillError as error:
        shown = texts(error)
    else:
        shown = f"{jobs!r} {jobs.store!r} {jobs.store.address} {vars(jobs.store).get('url', '')!r}"
    assert not [part for part in PARTS if part in shown], shown


@pytest.mark.parametrize("start", [start for start in STARTS if "://" not in start])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_url_without_two_slashes_is_refused(scheme: str, start: str) -> None:
    with pytest.raises(jobmill.InvalidValue) as caught:
        jobmill.connect(f"{scheme}{start}ada:{PARTS[0]}@h/db")
    assert caught.value.field == "url"
    assert PARTS[0] not in texts(caught.value)


@pytest.mark.parametrize("url", ["memory", "memory:", "memory:/", "memory:///", "memory://ada:Zs3c@h", "memory://?x=1"])
def test_nothing_follows_memory(url: str) -> None:
    with pytest.raises(jobmill.InvalidValue, match="^url: expected .*memory://") as caught:
        jobmill.connect(url)
    assert "Zs3c" not in texts(caught.value)


@pytest.mark.parametrize(
    ("scheme", "store"), [("postgresql", PostgresStore), ("redis", RedisStore), ("mongodb", MongoStore)]
)
def test_a_store_refuses_such_a_url_too(scheme: str, store: Callable[[str], Store]) -> None:
    with pytest.raises(jobmill.InvalidValue, match=f"^url: expected .*, got '{scheme}:…'; write :// after the scheme"):
        store(f"{scheme}:ada:{PARTS[0]}@h/db")


@pytest.mark.parametrize("start", [":", ":/", ":///"])
async def test_the_default_server_does_not_get_a_password_as_a_database(
    start: str, migrated_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = urlsplit(migrated_url)
    for name, value in (("HOST", server.hostname), ("PORT", server.port), ("USER", server.username)):
        monkeypatch.setenv(f"PG{name}", str(value))
    async with jobmill.connect(f"postgresql:///{server.path[1:]}") as jobs:
        await jobs.enqueue("send", {})  # the server answers
    with pytest.raises(jobmill.InvalidValue) as caught:
        async with jobmill.connect(f"postgresql{start}ada:{PARTS[0]}@h/db") as jobs:
            await jobs.enqueue("send", {})
    assert PARTS[0] not in texts(caught.value) + caplog.text


def test_a_database_of_the_default_server_is_shown() -> None:
    assert jobmill.connect("postgresql:///shop").store.address == "postgresql:///shop, schema jobmill"


def test_a_url_and_a_store_together_do_not_show_the_url() -> None:
    with pytest.raises(jobmill.InvalidValue) as caught:
        jobmill.connect("postgresql://ada:Zs3c@h/db", store=jobmill.connect("memory://").store)
    assert "Zs3c" not in repr(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2"])
def test_urls_of_sqlalchemy_mean_postgresql(scheme: str) -> None:
    jobs = jobmill.connect(f"{scheme}://ada:secret@h/db")
    assert jobs.store.name == "postgres"
    assert jobs.store.address == "postgresql://ada@h/db, schema jobmill"


@pytest.mark.parametrize(("scheme", "meant"), [("valkey", "redis"), ("valkeys", "rediss")])
def test_urls_of_valkey_mean_redis(scheme: str, meant: str) -> None:
    store = jobmill.connect(f"{scheme}://ada:secret@h:1/2").store
    assert store.name == "redis"
    assert store.address == jobmill.connect(f"{meant}://ada:secret@h:1/2").store.address.replace(meant, scheme)


@pytest.mark.parametrize("character", "/?#")
@pytest.mark.parametrize("scheme", ["postgresql", "redis", "mongodb"])
def test_a_character_that_must_be_escaped_is_named(scheme: str, character: str) -> None:
    with pytest.raises(jobmill.InvalidValue, match=re.escape(f"{character} as %")):
        jobmill.connect(f"{scheme}://ada:se{character}cret@h/db")


@pytest.mark.parametrize("separator", ["@", ":", "%", "%zz"])
def test_a_password_that_pymongo_refuses_must_be_escaped(separator: str) -> None:
    with pytest.raises(
        jobmill.InvalidValue, match="^url: expected mongodb://user.* got 'mongodb://ada@h/db'"
    ) as caught:
        jobmill.connect(f"mongodb://ada:{separator.join(PARTS)}@h/db")
    assert caught.value.advice.endswith("% as %25, : as %3A and @ as %40")
    assert not [part for part in PARTS if part in texts(caught.value)]


def test_a_password_without_a_user_is_refused() -> None:
    with pytest.raises(jobmill.InvalidValue, match="^url: expected mongodb://user.* got 'mongodb://@h/db'; .*username"):
        jobmill.connect("mongodb://:Zs3c@h/db")


@pytest.mark.parametrize("scheme", [*SCHEMES, "http"])
@pytest.mark.parametrize(
    ("form", "advice"),
    [
        ('"{}"', "it is in quotes; remove them"),
        ("'{}'", "it is in quotes; remove them"),
        ("“{}”", "it is in quotes; remove them"),
        ("`{}`", "it is in quotes; remove them"),
        (" {}", "it begins with a blank; remove it"),
        ("\n{}", "it begins with a blank; remove it"),
        (' "{}"', "it begins with a blank; remove it"),
        ("\N{NO-BREAK SPACE}{}", "it begins with a blank; remove it"),
    ],
)
def test_quotes_and_blanks_are_named(scheme: str, form: str, advice: str) -> None:
    with pytest.raises(jobmill.InvalidValue) as caught:
        jobmill.connect(form.format(f"{scheme}://ada:{PARTS[0]}@h/db"))
    assert (caught.value.field, caught.value.advice) == ("url", advice)
    assert PARTS[0] not in texts(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jobs.db", "jobs.db"),
        ("mysql://ada:secret@h/db", "mysql://ada@h/db"),
        ("redis://:secret", "redis://…"),
        ("redis://:secret@h/0#secret", "redis://@h/0"),
        ("ada:secret@h/db", "ada:…"),
        ("host=h password=secret", "…"),
        ("postgresql://ada:se/cret@h/db", "postgresql://…"),
    ],
)
def test_what_a_message_shows_of_a_url(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize(
    ("scheme", "separator"),
    [
        *itertools.product(["postgresql", "redis"], ["%2F", "%40", "%25", "%", "%zz", ":", "é"]),
        *itertools.product(["mongodb"], ["%", "%zz", ":"]),  # pymongo refuses them before it connects
    ],
)
async def test_a_server_that_is_not_there_does_not_show_the_password(
    scheme: str, separator: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(jobmill.JobmillError) as caught:
        async with jobmill.connect(f"{scheme}://ada:{separator.join(PARTS)}@127.0.0.1:1/0") as jobs:
            await jobs.enqueue("send", {})
    shown = texts(caught.value) + caplog.text
    assert not [part for part in PARTS if part in shown], shown
