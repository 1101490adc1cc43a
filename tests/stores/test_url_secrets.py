"""No password reaches a message, a repr or a log, whatever the URL is; and every refusal is an error of ours."""

from __future__ import annotations

import itertools
import random
import re
import traceback

import pytest

import jobmill
from jobmill.stores import POSTGRES, REDIS
from jobmill.stores.common.url import without_credentials

SCHEMES = (*POSTGRES, *REDIS, "mongodb", "mongodb+srv", "sqlite", "mysql", "valkey+x", "Redis", "http", "", "a b")
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


def odd_urls(count: int) -> list[str]:
    """URLs that differ in every part, always the same."""
    every = list(itertools.product(SCHEMES, USERS, SEPARATORS, HOSTS, ENDS))
    chosen = random.Random(1).sample(every, count)
    urls = []
    for scheme, user, separator, host, end in chosen:
        password = separator.join(PARTS)
        urls.append(f"{scheme}://{user}:{password}@{host}{end.format(password=password)}")
    return urls


def texts(error: BaseException) -> str:
    """All that a log, a crash report or a debugger shows of an error and its causes."""
    shown = "".join(traceback.format_exception(error))
    current: BaseException | None = error
    while current is not None:
        shown += repr(current) + repr(vars(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return shown


@pytest.mark.parametrize("url", odd_urls(600))
def test_no_part_of_a_password_is_shown(url: str) -> None:
    try:
        jobs = jobmill.connect(url)
    except jobmill.JobmillError as error:
        shown = texts(error)
    else:
        shown = f"{jobs!r} {jobs.store!r} {jobs.store.address} {vars(jobs.store).get('url', '')!r}"
    assert not [part for part in PARTS if part in shown], shown


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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jobs.db", "jobs.db"),
        ("mysql://ada:secret@h/db", "mysql://ada@h/db"),
        ("redis://:secret", "redis://…"),
        ("redis://:secret@h/0#secret", "redis://@h/0"),
        ("ada:secret@h/db", "ada://…"),
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
