"""Odd values on PostgreSQL: kept as they are or refused in clear words, and never part of the SQL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Pin, Release, Remove, Requeue
from jobmill.core.job import Job, Progress
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence, recurrence
from jobmill.core.values import EVERYTHING, Broken, Claimed, Filter, Lease, NewJob, QueueChange, Receipt, Report
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.postgres import PostgresStore, enqueue
from jobmill.testing.contract.support import (
    claim_one,
    enqueue_one,
    find_all,
    look,
    new,
    put,
    put_one,
    settle,
    started,
    succeed,
    wish,
)
from tests.kit.postgres import PostgresServers, connected
from tests.stores.postgres_callers import CALLERS
from tests.stores_under_test import emptied_postgres

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def store(postgres_servers: PostgresServers) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(await emptied_postgres(postgres_servers))
    await store.open()
    yield store
    await store.close()


# ---------------------------------------------------------------------------------------------------- JSON

#: As they may stand in a payload or a result, byte for byte.
JSON = [
    b'"\\u0000"',
    b'{"\\u0000":"a\\u0000b","\\\\u0000":"\\\\\\u0000"}',
    b'{"b":1.50,"a":1.0e+2,"a":0.1,"":-0.0}',
    b"[18446744073709551615,-9223372036854775808,123456789012345678901234567890,1e400,-1E-999]",
    '"o\'brien \\\\ % %s $1 $$ {x} {} :p1 ::text -- /* \N{PILE OF POO} \u2028 \uffff"'.encode(),
    b'{ "spaced" : [ null , true ] }',
    b"null",
    b'""',
]


@pytest.mark.parametrize("raw", JSON)
async def test_payload_and_result_are_kept_byte_for_byte(store: PostgresStore, raw: bytes) -> None:
    one = NewJob(id="one", name="send", queue="mail", payload_json=raw)
    claimed = await started(store, one)
    assert bytes(claimed.job.payload_json) == raw
    assert bytes((await look(store, "one")).payload_json) == raw
    done = decide(claimed, Succeeded(raw), DEFAULT_POLICY, store.now())
    assert await settle(store, done) == ["done"]
    job = await look(store, "one")
    assert (bytes(job.payload_json), bytes(job.result_json)) == (raw, raw)
    # And back among the live ones.
    assert (await store.change(["one"], Requeue())).ids == ["one"]
    assert bytes((await claim_one(store)).job.payload_json) == raw


@pytest.mark.parametrize("raw", JSON)
@pytest.mark.parametrize("kind", ["psycopg", "session", "async session of asyncpg"])
async def test_a_payload_within_is_kept_byte_for_byte(
    store: PostgresStore, postgres_servers: PostgresServers, raw: bytes, kind: str
) -> None:
    async with CALLERS[kind](await emptied_postgres(postgres_servers)) as caller:
        await caller.begin()
        await store.enqueue_within(caller.within, [NewJob(id="one", name="send", queue="mail", payload_json=raw)])
        await caller.commit()
    assert bytes((await look(store, "one")).payload_json) == raw


@pytest.mark.parametrize("raw", [b'"\\ud800 \\udc00\\ud800"', b'{"a":"\\udfff"}'])
async def test_halves_of_characters_fail_their_job_alone(store: PostgresStore, raw: bytes) -> None:
    """They are legal JSON, which the core refuses: another program may have written them."""
    await put(store, NewJob(id="half", name="send", queue="mail", payload_json=raw), new("whole"))
    assert "cannot be read: payload" in str((await look(store, "half")).deferred_error)
    half, whole = (await store.exchange([], wish())).claimed
    assert isinstance(half, Broken)
    assert half.why.startswith("payload: ")
    assert isinstance(whole, Claimed)


async def test_large_payloads_and_results(store: PostgresStore) -> None:
    large = b'"' + b"\xc3\xa9" * (99 * 1024 * 1024 // 20) + b'"'
    claimed = await started(store, NewJob(id="large", name="send", queue="mail", payload_json=large))
    assert bytes(claimed.job.payload_json) == large
    assert await settle(store, decide(claimed, Succeeded(large), DEFAULT_POLICY, store.now())) == ["done"]
    job = await look(store, "large")
    assert (bytes(job.payload_json), bytes(job.result_json)) == (large, large)


async def test_more_than_one_statement_takes(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "MAX_BYTES", 100)
    many = [new(f"{number:02}x", payload="x" * (number * 7)) for number in range(20)]
    await put(store, *many)
    assert [job.id for job in (await store.find(EVERYTHING)).jobs] == [one.id for one in reversed(many)]
    # All or nothing.
    with pytest.raises(StoreError):
        await store.enqueue([new("one", payload="x" * 90), new("bad\x00", payload="x" * 90)])
    assert await store.get(["one"]) == [None]


# ---------------------------------------------------------------------------------------------------- texts

SIGNS = st.one_of(
    st.characters(exclude_categories=["Cc", "Cs"]),
    st.sampled_from("'\"\\%$:{}[]();,-/*_ \N{PILE OF POO}\u0301"),
)
#: What the core lets pass, in ids, keys and tenants; without blanks in names and queues.
TEXTS = st.text(SIGNS, min_size=1, max_size=20).filter(lambda text: text.strip())
WORDS = st.text(SIGNS, min_size=1, max_size=20).map(lambda text: "".join(text.split())).filter(bool)
#: What may stand in errors, log lines and messages.
LINES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)


@st.composite
def odd_jobs(draw: st.DrawFn) -> NewJob:
    return new(
        draw(TEXTS.map(lambda text: f"{text}x")),
        name=draw(WORDS),
        queue=draw(WORDS.map(lambda text: text.replace(":", ";"))),
        key=draw(TEXTS),
        tenant=draw(TEXTS),
        payload={draw(LINES): draw(LINES)},
        recurrence=draw(st.none() | TEXTS.map(lambda text: recurrence(key=text, every_ms=1_000))),
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=odd_jobs(), error=LINES, line=LINES, worker=WORDS)
async def test_a_life_with_odd_texts(store: PostgresStore, one: NewJob, error: str, line: str, worker: str) -> None:
    await store.configure(one.queue, QueueChange(feed=True))
    assert await enqueue_one(store, one) == Receipt(one.id, "created")
    assert (await enqueue_one(store, new("other", name=one.name, queue=one.queue, key=one.unique_key))).id == one.id
    waiting = await look(store, one.id)
    assert said(waiting) == (one.id, one.name, one.queue, one.unique_key, one.tenant, one.payload_json)
    for filter in filters(one):
        assert await find_all(store, filter) == [one.id]
        assert [count.count for count in await store.count(filter)] == [1]
    assert [(stats.queue, stats.name) for stats in await store.stats(one.queue, one.name)] == [(one.queue, one.name)]
    assert (await store.find(EVERYTHING, f"<{one.id}")).jobs == []
    (claimed,) = (await store.exchange([], wish(queues=[one.queue], names=[one.name], worker=worker))).claimed
    assert isinstance(claimed, Claimed)
    assert claimed.job.worker == worker
    assert await store.report([Report(lease=claimed.lease, progress=Progress(1, line), lines=(line, "x"))]) == []
    assert [logged.text for logged in await store.logs(one.id)] == [line, "x"]
    assert await store.extend([claimed.lease], 1_000) == []
    errored = decide(
        claimed, Errored(error=error, error_type=worker, traceback=line, delay_ms=0), DEFAULT_POLICY, store.now()
    )
    assert await settle(store, errored) == ["done"]
    after = await look(store, one.id)
    (attempt,) = after.attempts
    assert (after.error, attempt.traceback, attempt.error_type, attempt.worker) == (error, line, worker, worker)
    assert await find_all(store, Filter(error_type=worker)) == [one.id]
    assert (await store.change([one.id], Hold(who=one.tenant, note=one.unique_key))).ids == [one.id]
    held = (await look(store, one.id)).held
    assert held is not None
    assert (held.who, held.note) == (one.tenant, one.unique_key)
    if one.recurrence is not None:
        await restated(store, one, one.recurrence)
    assert (await store.change([one.id], Release())).ids == [one.id]
    assert (await store.change(filters(one)[0], Cancel())).ids == [one.id]
    assert said(await look(store, one.id)) == said(waiting)
    assert [event.job_id for event in await store.events(one.queue)] == [one.id] * len(await store.events(one.queue))
    assert (await store.change([one.id], Remove())).ids == [one.id]
    assert await store.events(one.queue, limit=1) != []
    async with connected(store.context.url.url) as connection:
        await connection.execute("DELETE FROM jobmill.queues; DELETE FROM jobmill.events")
    assert await store.count(EVERYTHING) == []


async def restated(store: PostgresStore, one: NewJob, stated: Recurrence) -> None:
    """The rule of a held job is updated, pinned, and stated again."""
    again = structs.replace(one, id="again", recurrence=structs.replace(stated, every_ms=7))
    assert await enqueue_one(store, again) == Receipt(one.id, "updated")
    assert (await store.change([one.id], Pin(structs.replace(stated, every_ms=5)))).ids == [one.id]
    for declared in (True, False):
        rule = structs.replace(stated, declared=declared)
        assert await enqueue_one(store, structs.replace(again, recurrence=rule)) == Receipt(one.id, "pinned")
        job = await look(store, one.id)
        assert job.recurrence is not None
        assert job.held is not None
        assert (job.recurrence.every_ms, job.recurrence.key) == (5, stated.key)
        assert (job.recurrence.stated, job.recurrence.declared) == (stated, declared)


def said(job: Job) -> tuple[object, ...]:
    return job.id, job.name, job.queue, job.unique_key, job.tenant, bytes(job.payload_json)


def filters(one: NewJob) -> list[Filter]:
    return [
        Filter(queue=one.queue),
        Filter(name=one.name),
        Filter(tenant=one.tenant),
        Filter(unique_key=one.unique_key),
        Filter(name_prefix=one.name),
        Filter(payload=msgspec.json.decode(one.payload_json)),
        Filter(queue=one.queue, name=one.name, tenant=one.tenant, unique_key=one.unique_key),
    ]


# ---------------------------------------------------------------------------------------------------- nowhere

#: Texts that PostgreSQL cannot hold, and numbers.
NOT_HELD = ["a\x00b", "\x00", "\ud800", "x\udfff"]

LOOKS: dict[str, Callable[[PostgresStore, str], Awaitable[Any]]] = {
    "get": lambda store, text: store.get([text]),
    "logs": lambda store, text: store.logs(text),
    "events": lambda store, text: store.events(text),
    "settings": lambda store, text: store.settings([text]),
    "find queue": lambda store, text: store.find(Filter(queue=text)),
    "find name": lambda store, text: store.find(Filter(name=text)),
    "find tenant": lambda store, text: store.find(Filter(tenant=text)),
    "find key": lambda store, text: store.find(Filter(unique_key=text)),
    "count": lambda store, text: store.count(Filter(queue=text)),
    "stats queue": lambda store, text: store.stats(text),
    "stats name": lambda store, text: store.stats(None, text),
    "cursor": lambda store, text: store.find(EVERYTHING, text),
    "older": lambda store, text: store.find(EVERYTHING, f"<{text}"),
    "after": lambda store, text: store.events("mail", text),
    "cancel": lambda store, text: store.change([text], Cancel()),
    "cancel by filter": lambda store, text: store.change(Filter(name=text), Cancel()),
    "extend": lambda store, text: store.extend([Lease(text, "token", "mail", "send", 0)], 1_000),
    "claim": lambda store, text: store.exchange([], wish(queues=[text], names=[text])),
    "configure": lambda store, text: store.configure(text, QueueChange(paused=True)),
    "enqueue": lambda store, text: store.enqueue([new(text)]),
    "enqueue key": lambda store, text: store.enqueue([new(key=text)]),
}


async def tried(call: Awaitable[Any]) -> Any:
    """Its answer, or what it says in our words."""
    try:
        return await call
    except InvalidValue as error:
        return error
    except StoreError as error:
        return re.fullmatch("PostgreSQL cannot hold this value: .*", str(error), re.DOTALL) or pytest.fail(str(error))


@pytest.mark.parametrize("verb", LOOKS)
async def test_what_no_job_can_have(store: PostgresStore, verb: str) -> None:
    """Nothing is there, or it is said in our own words; and the connection goes on."""
    await put_one(store, new("there"))
    for text in NOT_HELD:
        answer = await tried(LOOKS[verb](store, text))
        assert "there" not in repr(answer).replace("there is no such job", "")
    assert await find_all(store, EVERYTHING) == ["there"]


# ---------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    "schema", ["My Jobs", 'a"b', "50% of :p1 %s", "select", "ünïcode-\N{PILE OF POO};--", "x" * 63]
)
async def test_a_schema_whose_name_needs_quotes(postgres_url: str, schema: str) -> None:
    store = PostgresStore(postgres_url, schema=schema)
    assert await store.migrate() != []
    assert await store.migrate() == []
    await store.open()
    await store.configure("mail", QueueChange(feed=True, running_limit=5))
    ids = [await put_one(store)]
    for kind in ("asyncpg", "psycopg", "session", "async session of asyncpg"):
        async with CALLERS[kind](postgres_url) as caller:
            await caller.begin()
            ids += [receipt.id for receipt in await store.enqueue_within(caller.within, [new()])]
            await caller.commit()
    async with connected(postgres_url) as connection:
        quoted = '"' + schema.replace('"', '""') + '"'
        ids.append(str(await connection.fetchval(f"SELECT {quoted}.enqueue('send', queue => 'mail')")))
    assert sorted(await find_all(store, EVERYTHING)) == sorted(ids)
    assert len(await store.events("mail")) == len(ids)
    claimed = await claim_one(store)
    assert await settle(store, succeed(claimed)) == ["done"]
    waiting = asyncio.create_task(store.wait_for_work(["mail"], store.now() + 5_000))
    await store.purge()
    await waiting
    await store.close()
