"""Connections of the PostgreSQL store: every call has a deadline, and what was cut short is thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Reschedule
from jobmill.core.events import Event
from jobmill.core.recurrence import Recurrence
from jobmill.core.usage import Usage
from jobmill.core.values import EVERYTHING, Lease, QueueChange, Report, after
from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.postgres import PostgresStore, read, schema, search, wake
from jobmill.stores.postgres.connection import connector, pool
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.connection.pool import ConnectionPool
from jobmill.testing.contract.support import LEASE_MS, QUEUE, claim_ids, fail, new, put, put_one, started, wish
from tests.helpers import until
from tests.kit.postgres import connected
from tests.kit.proxy import Proxy
from tests.stores.meddling import locked, waiting_for_locks

pytestmark = [pytest.mark.stores("postgres"), pytest.mark.slow]  # most of them wait for a server that does not answer

DEADLINE_S = 0.2
# Beyond the deadline, on a busy machine. The deadlines that are not made shorter here are five seconds and more.
GRACE_S = 4.0
# Two connections may each be given a second. A call in flight would have ten.
CLOSED_WITHIN_S = 8.0

LEASE = Lease("job-0", "token", QUEUE, "send", 0)
EVENT = Event(type="progress", job_id="job-0", name="send", queue=QUEUE, at_ms=0)
USAGE = Usage(
    job_id="job-0",
    name="send",
    queue=QUEUE,
    tenant="global",
    attempt=1,
    outcome="succeeded",
    duration_ms=1.0,
    started_ms=0,
    finished_ms=1,
    worker="worker-1",
)

#: Every verb; in a transaction of several statements where a feed is on.
VERBS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "migrate": lambda store: store.migrate(),
    "enqueue": lambda store: store.enqueue([new()]),
    "enqueue recurring": lambda store: store.enqueue([new(key="k", recurrence=Recurrence(key="k", every_ms=1_000))]),
    "enqueue told": lambda store: store.enqueue([new(queue="told")]),
    "exchange": lambda store: store.exchange([], wish()),
    "exchange told": lambda store: store.exchange([], wish(queues=("told",))),
    "extend": lambda store: store.extend([LEASE], 1_000),
    "report": lambda store: store.report([Report(lease=LEASE, lines=("x",))]),
    "change": lambda store: store.change(["job-0"], Cancel()),
    "change by filter": lambda store: store.change(EVERYTHING, Reschedule(after(5))),
    "purge": lambda store: store.purge(),
    "get": lambda store: store.get(["job-0"]),
    "find": lambda store: store.find(EVERYTHING),
    "count": lambda store: store.count(EVERYTHING),
    "stats": lambda store: store.stats(),
    "logs": lambda store: store.logs("job-0"),
    "configure": lambda store: store.configure("other", QueueChange(running_limit=3)),
    "settings": lambda store: store.settings(),
    "publish": lambda store: store.publish([EVENT]),
    "events": lambda store: store.events(QUEUE),
    "record_usage": lambda store: store.record_usage([USAGE]),
}


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Deadlines short enough to be awaited."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (pool, "CALL_SECONDS"),
            (read, "READ_SECONDS"),
            (search, "READ_SECONDS"),
            (schema, "MIGRATE_SECONDS"),
            (connector, "CONNECT_SECONDS"),
            (wake, "CONNECT_SECONDS"),
            (wake, "LAST_NOTIFY_SECONDS"),
            (connector, "CLOSE_SECONDS"),
        ):
            patch.setattr(module, name, DEADLINE_S)
        yield


async def is_away(call: Awaitable[Any], said: str = "PostgreSQL") -> None:
    """The call ends by its deadline, and says that trying again later may work."""
    async with asyncio.timeout(DEADLINE_S + GRACE_S):
        with impatient(), pytest.raises(StoreUnavailable, match=said):
            await call


def pool_of(store: PostgresStore) -> ConnectionPool:
    return store.context.loops.here().pool


async def test_the_server_shows_whose_connections_these_are(migrated_url: str) -> None:
    sign = "&" if "?" in migrated_url else "?"
    names = {
        migrated_url: f"jobmill {socket.gethostname()}-{os.getpid()}",
        f"{migrated_url}{sign}application_name=shop": "shop",
    }
    for url, name in names.items():
        connection = await connector.Connector(url).connect()
        assert await connection.fetchval("SHOW application_name") == name
        await connection.close()


# ---------------------------------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("verb", VERBS)
async def test_no_verb_waits_for_a_server_that_does_not_answer(verb: str, proxied: PostgresStore, proxy: Proxy) -> None:
    await proxied.configure("told", QueueChange(feed=True))
    await put(proxied, new(), new(queue="told"))
    assert len(await claim_ids(proxied, 1, queues=("told",))) == 1
    proxy.stall()
    await is_away(VERBS[verb](proxied), r"PostgreSQL did not answer within 0\.2 s|could not be reached within 0\.2 s")
    # The store may be asking for the time beside it, which ends as soon.
    await until(lambda: not pool_of(proxied)._used)
    # What is answered late reaches nobody: the connection is gone.
    accepted = proxy.accepted
    proxy.go_on()
    await VERBS[verb](proxied)
    assert proxy.accepted > accepted


@pytest.mark.parametrize("at", [b"BEGIN", b"exchange", b"events", b"COMMIT"])
async def test_a_transaction_is_cut_short_at_any_point(at: bytes, proxied: PostgresStore, proxy: Proxy) -> None:
    await proxied.configure(QUEUE, QueueChange(feed=True))
    ids = await put(proxied, new(), new())
    # The first one told the store that the feed is on.
    await claim_ids(proxied, 1)

    def stall(statement: bytes) -> bool:
        if at in statement.replace(b"COMMITTED", b""):
            proxy.stall()
        return False

    proxy.drop_answer(stall)
    await is_away(proxied.exchange([], wish(1)))
    proxy.drop_answer(lambda _: False)
    proxy.go_on()
    # It holds nothing any more. If it was committed, the lease is there, though nobody has heard of it.
    jobs = await proxied.get(ids)
    assert [job is not None and job.state == "running" for job in jobs] == [True, at == b"COMMIT"]


@pytest.mark.slow
async def test_a_transaction_whose_client_vanished_holds_nothing_for_long(
    proxied: PostgresStore, proxy: Proxy, direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxied.configure(QUEUE, QueueChange(feed=True))
    first, second = await put(proxied, new(), new())
    assert await claim_ids(proxied, 1) == [first]
    monkeypatch.setattr(connector, "BEGIN", connector.BEGIN.replace("10000", "2000"))

    def stall(statement: bytes) -> bool:
        if b"exchange" in statement:
            proxy.stall()
        return False

    proxy.drop_answer(stall)
    await is_away(proxied.exchange([], wish()))
    assert await claim_ids(direct) == []

    async def found() -> bool:
        return await claim_ids(direct) == [second]

    await until(found, 10)


@pytest.mark.parametrize("verb", ["open", "enqueue", "wait_for_work"])
async def test_connecting_has_a_deadline(verb: str, proxy: Proxy, migrated_url: str) -> None:
    store = PostgresStore(proxy.url(migrated_url))
    proxy.stall()
    with impatient():
        if verb == "wait_for_work":
            async with asyncio.timeout(wake.POLL_SECONDS + GRACE_S):
                await store.wait_for_work([QUEUE], store.now() + 60_000)
        else:
            call = store.open() if verb == "open" else store.enqueue([new()])
            await is_away(call, "could not be reached|did not answer")
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < CLOSED_WITHIN_S


async def test_who_lies_down_is_not_held_up_by_a_stall(proxied: PostgresStore, proxy: Proxy) -> None:
    await proxied.exchange([], wish())
    notifications = proxied.context.loops.here().notifications
    sleeper = asyncio.create_task(proxied.wait_for_work([QUEUE], proxied.now() + 60_000))
    await until(lambda: notifications.is_listening)
    await sleeper
    proxy.stall()
    # It would be noted as sleeping now.
    await is_away(proxied.wait_for_work([QUEUE], proxied.now() + 60_000))


async def test_one_silent_connection_is_enough_to_suspect_the_others(proxied: PostgresStore, proxy: Proxy) -> None:
    await asyncio.gather(*(proxied.get(["x"]) for _ in range(5)))
    assert len(pool_of(proxied).connections()) == 5
    proxy.half_open()
    await is_away(proxied.get(["x"]))
    # Not after five deadlines.
    async with asyncio.timeout(GRACE_S):
        assert await proxied.get(["x"]) == [None]


async def test_what_lay_idle_for_long_is_not_used_again(
    proxy: Proxy, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE_SECONDS", 0.1)
    store = PostgresStore(proxy.url(migrated_url))
    claimed = await started(store)
    await asyncio.gather(*(store.get(["x"]) for _ in range(3)))
    # As a router does that forgets connections, and says nothing; but for the one that is spared for leases.
    await until(lambda: pool_of(store)._idle[-1][0] < time.monotonic() - 0.1)
    proxy.half_open()
    assert await store.get(["x"]) == [None]
    assert len(pool_of(store).connections()) == 1
    await is_away(store.extend([claimed.lease], LEASE_MS))
    assert await store.extend([claimed.lease], LEASE_MS) == []
    await store.close()


async def test_one_server_that_takes_no_writes_is_enough_to_leave_it(direct: PostgresStore) -> None:
    demoted = asyncio.Barrier(4)

    async def demote(connection: Connection) -> None:
        await connection.execute("SET default_transaction_read_only = on")
        await demoted.wait()

    await asyncio.gather(*(pool_of(direct).use(demote) for _ in range(4)))
    with pytest.raises(StoreUnavailable, match=r"accepts no writes now \(is it a standby\?\)"):
        await direct.enqueue([new()])
    # Not four times: the others lead there as well.
    await put_one(direct)


async def test_a_slow_answer_does_not_move_the_clock(proxied: PostgresStore, proxy: Proxy) -> None:
    before = proxied.now() - time.time() * 1000

    def stall(statement: bytes) -> bool:
        if b".exchange" in statement:
            proxy.stall()
            asyncio.get_running_loop().call_later(1.5, proxy.go_on)
        return False

    proxy.drop_answer(stall)
    await proxied.exchange([], wish())
    assert abs(proxied.now() - time.time() * 1000 - before) < 400, "half of the time that the answer took is 750 ms"


# ---------------------------------------------------------------------------------------------------- cut short


async def test_what_nobody_waits_for_is_stopped_at_the_server_as_well(direct: PostgresStore, migrated_url: str) -> None:
    async with locked(migrated_url, "history"):
        looking = asyncio.create_task(direct.get(["x"]))
        async with asyncio.timeout(10):
            await until(lambda: waiting_for_locks(migrated_url))
            looking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looking

            async def nobody() -> bool:
                return await waiting_for_locks(migrated_url) == 0

            await until(nobody)
    assert await direct.get(["x"]) == [None]


async def test_a_cancelled_call_gives_its_place_back(migrated_url: str) -> None:
    store = PostgresStore(migrated_url, pool=2)
    await store.open()
    for _ in range(3):
        async with locked(migrated_url, "history"):
            calls = [asyncio.create_task(store.get(["x"])) for _ in range(2)]

            async def both() -> bool:
                return await waiting_for_locks(migrated_url) == 2

            await until(both)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
    assert await store.get(["x"]) == [None]
    await store.close()


async def test_a_value_that_cannot_be_sent_is_no_reason_to_try_again(direct: PostgresStore) -> None:
    claimed = await started(direct)
    before = pool_of(direct).connections()
    with pytest.raises(StoreError, match="PostgreSQL cannot hold this value") as raised:
        await direct.exchange([structs.replace(fail(claimed), error="half a character: \ud83d")], None)
    # A worker would try again for ever, with all that was finished meanwhile.
    assert not isinstance(raised.value, StoreUnavailable)
    assert pool_of(direct).connections() == before
    assert (await direct.exchange([fail(claimed)], None)).settled == ["done"]


# ---------------------------------------------------------------------------------------------------- closing


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stalled", "well"])
async def test_closing_cuts_off_what_is_in_flight(how: str, proxy: Proxy, migrated_url: str) -> None:
    store = PostgresStore(proxy.url(migrated_url), pool=4)
    await store.open()
    await started(store)
    sleeper = asyncio.create_task(store.wait_for_work([QUEUE], store.now() + 60_000))
    notifications = store.context.loops.here().notifications
    await until(lambda: notifications.is_listening)
    await sleeper
    sleeper = asyncio.create_task(store.wait_for_work([QUEUE], store.now() + 60_000))
    # Something is still to be told; some calls are in flight, some connect, some wait for room.
    await store.enqueue([new()])
    async with locked(migrated_url, "history"):
        held = proxy.held
        if how == "stalled":
            proxy.stall()
        calls = [asyncio.create_task(store.get(["x"])) for _ in range(6)]
        if how == "stalled":
            await until(lambda: proxy.held > held + 3)
        else:
            await until(lambda: waiting_for_locks(migrated_url))
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < CLOSED_WITHIN_S
        async with asyncio.timeout(GRACE_S):
            answers = await asyncio.gather(*calls, return_exceptions=True)
            # It may have been about to be noted as sleeping.
            assert isinstance((await asyncio.gather(sleeper, return_exceptions=True))[0], StoreUnavailable | None)
    assert {(type(answer), str(answer)) for answer in answers} == {(StoreUnavailable, "the store was closed")}
    proxy.go_on()
    # It can be used again.
    assert await store.get(["x"]) == [None]
    await store.close()
    await store.close()
    await until(lambda: not proxy.connections)


async def test_the_isolation_is_ours_whatever_the_database_says(migrated_url: str) -> None:
    async with connected(migrated_url) as connection:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    store = PostgresStore(migrated_url)
    try:
        show = "SHOW transaction_isolation"
        assert await store.context.use(lambda c: c.fetchval(show)) == "read committed"
        assert await store.context.transact(lambda c: c.fetchval(show)) == "read committed"
    finally:
        await store.close()


# ---------------------------------------------------------------------------------------------------- interrupted


@pytest.fixture
async def complaints() -> list[str]:
    """What asyncio has to say about futures that nobody awaited."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: found.append(about["message"]))
    return found


async def test_connecting_may_be_interrupted_at_any_step(
    proxy: Proxy, migrated_url: str, complaints: list[str]
) -> None:
    for steps in range(40):
        connecting = asyncio.create_task(connector.Connector(proxy.url(migrated_url)).connect())
        for _ in range(steps):
            await asyncio.sleep(0)
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await connecting).terminate()
    assert proxy.accepted > 10
    await until(lambda: proxy.connections == 0)
    gc.collect()
    assert complaints == []


async def test_a_connection_may_be_cut_while_its_statement_is_cancelled(
    proxied: PostgresStore, proxy: Proxy, complaints: list[str]
) -> None:
    for steps in range(40):
        begun = asyncio.Event()

        async def sleep(connection: Connection, begun: asyncio.Event = begun) -> None:
            begun.set()
            await connection.execute("SELECT pg_sleep(60)")

        sleeping = asyncio.create_task(proxied.context.use(sleep))
        await begun.wait()
        sleeping.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        proxy.cut()
        with contextlib.suppress(asyncio.CancelledError, StoreUnavailable):
            await sleeping
    await until(lambda: proxy.connections == 0)
    gc.collect()
    assert complaints == []
