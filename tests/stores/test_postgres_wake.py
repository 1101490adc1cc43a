"""Waking on PostgreSQL: across processes, by notifications that are few, and again after whatever happened to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmill.stores.postgres import PostgresStore, wake
from jobmill.stores.postgres.wake import WorkNotifications
from jobmill.testing.contract.support import QUEUE, claim_ids, new, put_one, wish
from tests.helpers import until
from tests.kit.postgres import PostgresServer, connected
from tests.kit.proxy import Proxy

pytestmark = pytest.mark.stores("postgres")

ROOT = Path(__file__).parents[2]
FAR_MS = 600_000
#: A sleeper does not come back by itself meanwhile.
SOON_S = 10.0


@pytest.fixture
async def sleeper(proxy: Proxy, migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store that waits for work, and would not find it by polling."""
    monkeypatch.setattr(wake, "POLL_SECONDS", FAR_MS)
    monkeypatch.setattr(wake, "RENEW_SECONDS", FAR_MS)
    monkeypatch.setattr(wake, "NOTED_MS", FAR_MS)
    store = PostgresStore(proxy.url(migrated_url))
    await store.open()
    yield store
    proxy.go_on()
    await store.close()


def waking(store: PostgresStore) -> WorkNotifications:
    return store.context.loops.here().notifications


def has_unsent(store: PostgresStore) -> bool:
    """Whether other processes may still have to be notified."""
    notifier = waking(store)._notifier
    return notifier is not None and not notifier.done()


async def asleep(store: PostgresStore) -> asyncio.Task[None]:
    """Somebody who has looked, found nothing and lain down, and whom others know to sleep."""
    while True:
        assert (await store.exchange([], wish())).claimed == []
        sleeping = asyncio.create_task(store.wait_for_work((QUEUE,), store.now() + FAR_MS))
        # Until it is noted and the last look is over, each sleep ends soon.
        done, _ = await asyncio.wait([sleeping], timeout=0.05)
        if not done and waking(store).noted_until and waking(store).is_listening:
            return sleeping
        await sleeping


async def terminate_listener(url: str) -> None:
    """As an administrator would."""
    async with connected(url) as connection:
        ended = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert len(ended) == 1


# ---------------------------------------------------------------------------------------------------- sleeping


async def test_another_store_wakes_this_one(sleeper: PostgresStore, direct: PostgresStore) -> None:
    for _ in range(5):
        sleeping = await asleep(sleeper)
        id = await put_one(direct)
        async with asyncio.timeout(SOON_S):
            await sleeping
        assert await claim_ids(sleeper) == [id]


async def test_a_job_between_the_look_and_lying_down_is_not_slept_through(
    sleeper: PostgresStore, direct: PostgresStore
) -> None:
    assert (await sleeper.exchange([], wish())).claimed == []
    await put_one(direct)
    async with asyncio.timeout(SOON_S):
        await sleeper.wait_for_work((QUEUE,), sleeper.now() + FAR_MS)


async def test_ones_own_exchange_does_not_end_ones_sleep(sleeper: PostgresStore) -> None:
    sleeping = await asleep(sleeper)
    await put_one(sleeper)
    await sleeping
    assert len(await claim_ids(sleeper)) == 1
    sleeping = await asleep(sleeper)
    done, _ = await asyncio.wait([sleeping], timeout=0.05)
    assert not done
    sleeping.cancel()


async def test_sleeping_again_without_a_look_is_no_hot_loop(sleeper: PostgresStore) -> None:
    sleeping = await asleep(sleeper)
    waking(sleeper).bell.ring([QUEUE])
    await sleeping
    again = asyncio.create_task(sleeper.wait_for_work((QUEUE,), sleeper.now() + FAR_MS))
    done, _ = await asyncio.wait([again], timeout=0.05)
    assert not done
    again.cancel()


async def test_closing_wakes_who_sleeps(sleeper: PostgresStore) -> None:
    sleeping = await asleep(sleeper)
    await sleeper.close()
    async with asyncio.timeout(SOON_S):
        await sleeping


@pytest.mark.slow
async def test_who_sleeps_for_long_is_known_to_sleep_all_the_time(
    sleeper: PostgresStore, direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As minutes are to the usual 15 s.
    monkeypatch.setattr(wake, "NOTED_MS", 4_000)
    monkeypatch.setattr(wake, "RENEW_SECONDS", 1.0)
    ended = asyncio.Event()

    async def worker() -> None:
        while (await sleeper.exchange([], wish())).claimed == []:
            await sleeper.wait_for_work((QUEUE,), sleeper.now() + FAR_MS)
        ended.set()

    working = asyncio.create_task(worker())
    async with connected(direct.context.url.url) as connection:
        await until(lambda: waking(sleeper).noted_until)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            sleepers = await connection.fetchval(
                "SELECT count(*) FROM jobmill.sleepers WHERE until_ms > jobmill.now_ms()"
            )
            assert sleepers == 1
            await asyncio.sleep(0.01)
    monkeypatch.setattr(wake, "RENEW_SECONDS", FAR_MS)
    await asyncio.sleep(0)
    await put_one(direct)
    async with asyncio.timeout(SOON_S):
        await ended.wait()
    await working


async def test_a_ring_while_the_sleep_is_noted_again_is_heard(
    sleeper: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = await asleep(sleeper)
    sleeping.cancel()
    for key in waking(sleeper).noted_until:
        waking(sleeper).noted_until[key] = time.monotonic() - 0.001

    def ring(statement: bytes) -> bool:
        if b"sleepers" in statement:
            waking(sleeper).bell.ring([QUEUE])
        return False

    proxy.drop_answer(ring)
    async with asyncio.timeout(SOON_S):
        await sleeper.wait_for_work((QUEUE,), sleeper.now() + FAR_MS)


# ---------------------------------------------------------------------------------------------------- telling


async def notified(connection: object, heard: list[str]) -> None:
    """Have a connection of the test's own note what sleepers are told."""
    await connection.add_listener("jobmill", lambda *news: heard.append(str(news[3])))  # type: ignore[attr-defined]


async def test_a_burst_is_told_a_few_times_however_many_sleep(
    direct: PostgresStore, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "BETWEEN_SECONDS", 0.1)
    sleepers = [PostgresStore(migrated_url) for _ in range(5)]
    sleeping = [await asleep(store) for store in sleepers]
    async with connected(migrated_url) as connection:
        heard: list[str] = []
        await notified(connection, heard)
        began = time.monotonic()
        for _ in range(300):
            await put_one(direct)
        took = time.monotonic() - began
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*sleeping)
        await until(lambda: not has_unsent(direct))
        await connection.execute("SELECT pg_notify('jobmill', 'end')")
        await until(lambda: "end" in heard)
    told = [queue for queue in heard if queue == QUEUE]
    assert 1 <= len(told) <= took / 0.1 + 2
    for store in sleepers:
        await store.close()


async def test_nobody_is_told_where_nobody_sleeps(direct: PostgresStore, migrated_url: str) -> None:
    async with connected(migrated_url) as connection:
        heard: list[str] = []
        await notified(connection, heard)
        for _ in range(10):
            await put_one(direct)
        await until(lambda: not has_unsent(direct))
        await connection.execute("SELECT pg_notify('jobmill', 'end')")
        await until(lambda: heard)
    assert heard == ["end"]


async def test_sleepers_are_seldom_searched_where_nobody_sleeps(
    direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "BETWEEN_AWAKE_SECONDS", 0.1)
    searches, search = 0, waking(direct)._send_pending

    async def counted() -> bool:
        nonlocal searches
        searches += 1
        return await search()

    monkeypatch.setattr(waking(direct), "_send_pending", counted)
    began = time.monotonic()
    while (took := time.monotonic() - began) < 0.5:
        waking(direct).notify([QUEUE])
        await asyncio.sleep(0.005)
    assert 2 <= searches <= took / 0.1 + 2


async def test_a_worker_falls_asleep_in_the_pause_between_two_searches(
    sleeper: PostgresStore, direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "BETWEEN_AWAKE_SECONDS", 1.0)
    waking(direct).notify([QUEUE])
    await until(lambda: not waking(direct)._pending)
    sleeping = await asleep(sleeper)
    await put_one(direct)
    async with asyncio.timeout(SOON_S):
        await sleeping


async def test_hints_do_not_wait_for_a_search_for_sleepers(
    direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "BETWEEN_AWAKE_SECONDS", 2.0)
    waking(direct).notify([QUEUE])
    await until(lambda: not waking(direct)._pending)
    waking(direct).send_hint("ended", ["a"])
    await until(lambda: not waking(direct)._pending_hints)
    assert has_unsent(direct), "the pause has not ended"


async def test_who_enqueues_does_not_wait_for_the_teller(proxied: PostgresStore, proxy: Proxy) -> None:
    told = asyncio.Event()

    def stall(statement: bytes) -> bool:
        if b".wake(" in statement:
            proxy.stall()
            told.set()
        return False

    proxy.drop_answer(stall)
    async with asyncio.timeout(SOON_S):
        await proxied.enqueue([new()])
        await told.wait()
    assert has_unsent(proxied)
    proxy.go_on()
    await until(lambda: not has_unsent(proxied))


ONLY_ENQUEUES = {
    "closes": """
async def main():
    async with jobmill.connect() as jobs:
        await jobs.enqueue("send", queue="mail")
asyncio.run(main())
""",
    # Without garbage collection: asyncio does not wait for what the collector closes while the loop ends.
    "forgets to close": """
import gc
gc.disable()
async def main():
    await jobmill.connect().enqueue("send", queue="mail")
asyncio.run(main())
""",
    "has no loop": """
jobmill.connect().sync.enqueue("send", queue="mail")
""",
}


@pytest.mark.parametrize("how", ONLY_ENQUEUES)
async def test_who_only_enqueues_and_ends_has_told(how: str, sleeper: PostgresStore, migrated_url: str) -> None:
    sleeping = await asleep(sleeper)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", f"import asyncio, jobmill\n{ONLY_ENQUEUES[how]}"),
        env={**os.environ, "JOBMILL_URL": migrated_url},
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")
    async with asyncio.timeout(SOON_S):
        await sleeping


# ---------------------------------------------------------------------------------------------------- listening


@pytest.mark.slow
async def test_a_listener_that_was_terminated_is_made_again(
    sleeper: PostgresStore, direct: PostgresStore, migrated_url: str
) -> None:
    for _ in range(3):
        sleeping = await asleep(sleeper)
        await terminate_listener(migrated_url)
        # Whatever was enqueued in between was not told: look.
        async with asyncio.timeout(SOON_S):
            await sleeping
        began = time.monotonic()
        sleeping = await asleep(sleeper)
        assert time.monotonic() - began < SOON_S
        await put_one(direct)
        async with asyncio.timeout(SOON_S):
            await sleeping
        assert len(await claim_ids(sleeper)) == 1


@pytest.mark.slow
async def test_a_server_that_crashed_has_forgotten_who_sleeps(own_postgres: PostgresServer) -> None:
    sleeper, teller = PostgresStore(own_postgres.url()), PostgresStore(own_postgres.url())
    await sleeper.migrate()
    sleeping = await asleep(sleeper)
    own_postgres.kill()
    async with asyncio.timeout(SOON_S):
        await sleeping
    own_postgres.start()
    sleeping = await asleep(sleeper)
    await put_one(teller)
    async with asyncio.timeout(SOON_S):
        await sleeping
    await sleeper.close()
    await teller.close()


@pytest.mark.slow
async def test_a_listener_that_went_silent_is_noticed(
    sleeper: PostgresStore,
    direct: PostgresStore,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(wake, "PROBE_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(wake, "PROBE_SECONDS", 0.2)
    sleeping = await asleep(sleeper)
    # All but the listener's connections are made anew.
    proxy.half_open()
    sleeper.context.loops.here().pool.drop_idle()
    async with asyncio.timeout(SOON_S):
        await sleeping
    sleeping = await asleep(sleeper)
    await put_one(direct)
    async with asyncio.timeout(SOON_S):
        await sleeping
    # That is no reason to say that LISTEN does not work.
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.slow
async def test_a_server_without_room_for_a_listener_is_polled_meanwhile(
    proxied: PostgresStore, direct: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.05)
    await proxied.exchange([], wish())
    proxy.refuse()
    async with asyncio.timeout(SOON_S):
        await proxied.wait_for_work((QUEUE,), proxied.now() + FAR_MS)
        await proxied.wait_for_work((QUEUE,), proxied.now() + FAR_MS)
    proxy.accept()
    with contextlib.suppress(TimeoutError):
        await until(lambda: waking(proxied).is_listening)
    assert waking(proxied).is_listening
