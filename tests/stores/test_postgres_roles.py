"""Roles: each may do what it is for, with logins of their own, and is told where its rights end."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest
from msgspec import structs

import jobmill
from jobmill import Client, StoreError
from jobmill.core.audit import AuditEntry, AuditFilter
from jobmill.core.changes import Cancel, Hold, Remove, Requeue, Reschedule
from jobmill.core.events import Event
from jobmill.core.flows import Signal, Step
from jobmill.core.job import Progress
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings
from jobmill.core.recurrence import Recurrence
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.usage import Usage
from jobmill.core.values import EVERYTHING, Claimed, Filter, Lease, Pause, QueueChange, RateLimit, Report, after
from jobmill.harmonyk import Repository, install_jobs_table
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres.codec import new_job_row
from jobmill.stores.postgres.unique_policy import PLAN_TYPES, Plan
from jobmill.testing.contract.announce import card, tally
from jobmill.testing.contract.flows import edges, waits
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    look,
    new,
    put,
    put_one,
    retry,
    settle,
    state_of,
    succeed,
    wish,
)
from jobmill.testing.contract.unique_policy import CANCEL, FOR_A_MINUTE, REPLACE, debounced, keyed
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.measure import best_of
from tests.kit.postgres import Databases, PostgresServers, connected
from tests.stores.postgres_logins import ROLES, as_user, granted, login

pytestmark = pytest.mark.stores("postgres")

Verb = Callable[[PostgresStore], Awaitable[object]]


class Place:
    """A migrated database with roles; its schema has a name of its own, for roles are of the whole server."""

    def __init__(self, server: Databases, url: str) -> None:
        self.server = server
        self.url = url
        self.schema = f"Test {secrets.token_hex(4)}"
        self.owner = PostgresStore(url, schema=self.schema)

    @contextlib.asynccontextmanager
    async def login(self, *roles: str) -> AsyncIterator[str]:
        """The URL of somebody with these roles, without the schema."""
        grants = [f'GRANT "{self.schema}_{role}" TO {{role}}' for role in roles]
        async with login(self.server, self.url, *grants) as name:
            yield as_user(self.url, name)

    @contextlib.asynccontextmanager
    async def store(self, *roles: str) -> AsyncIterator[PostgresStore]:
        """A store that somebody with these roles has opened."""
        async with self.login(*roles) as url:
            store = PostgresStore(url, schema=self.schema)
            await store.open()
            try:
                yield store
            finally:
                await store.close()

    @contextlib.asynccontextmanager
    async def client(self, *roles: str) -> AsyncIterator[Client]:
        async with self.store(*roles) as store, jobmill.connect(store=store) as client:
            yield client


@pytest.fixture
async def place(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Place]:
    server = postgres_servers[postgres_name]
    async with server.database() as url:
        place = Place(server, url)
        await place.owner.migrate()
        await place.owner.open()
        async with granted(url, place.owner.roles_script(), place.schema):
            yield place
            await place.owner.close()


USAGE = Usage(
    job_id="x",
    name="send",
    queue="mail",
    tenant="global",
    attempt=1,
    outcome="succeeded",
    duration_ms=1.0,
    started_ms=1,
    finished_ms=2,
    worker="w",
)
LEASE = Lease("x", "token", "mail", "send", 0)
PUBLISHED = Event(type="paid", job_id="x", name="send", queue="mail", at_ms=1)

LOOKS: dict[str, Verb] = {
    "get": lambda store: store.get(["x"]),
    "lease_ends": lambda store: store.lease_ends(["x"]),
    "find": lambda store: store.find(EVERYTHING),
    "find by payload": lambda store: store.find(Filter(payload={"n": 1})),
    "count": lambda store: store.count(EVERYTHING),
    "count_up_to": lambda store: store.count_up_to(EVERYTHING, 10),
    "depths": lambda store: store.depths(),
    "stats": lambda store: store.stats(),
    "logs": lambda store: store.logs("x"),
    "settings": lambda store: store.settings(),
    "workers": lambda store: store.workers(),
    "tallies": lambda store: store.tallies(0, 1, MINUTE_MS),
    "audit_log": lambda store: store.audit_log(AuditFilter()),
    "dependencies": lambda store: store.dependencies("x"),
    "dependents": lambda store: store.dependents("x"),
    "flows": lambda store: store.flows(),
    "recorded": lambda store: store.recorded("x"),
    "lanes": lambda store: store.lanes("mail"),
}
RUNS: dict[str, Verb] = {
    "exchange": lambda store: store.exchange([], wish()),
    "purge": lambda store: store.purge(),
    "cancel": lambda store: store.change(Filter(states=("waiting",)), Cancel()),
    "requeue": lambda store: store.change(Filter(states=("cancelled",)), Requeue()),
    "reschedule": lambda store: store.change(Filter(states=("waiting",)), Reschedule(after(1))),
    "remove": lambda store: store.change(Filter(states=("waiting",)), Remove()),
    "record_usage": lambda store: store.record_usage([USAGE]),
    "flush_outbox": lambda store: store.flush_outbox(),
    "record_step": lambda store: store.record_step(LEASE, Step(number=0, name="x")),
    "signal": lambda store: store.signal("x", Signal(name="go")),
    "announce": lambda store: store.announce(card(), [tally(store.now(), claimed=1)]),
    "order_stop": lambda store: store.order_stop(["w1"]),
    "audit": lambda store: store.audit([AuditEntry(id="e", who="ada", what="mark")]),
}
PAUSES: dict[str, Verb] = {
    "pause": lambda store: store.configure("mail", QueueChange(paused=True, pause=Pause(who="ada", since_ms=1))),
    "pause a new queue": lambda store: store.configure("new", QueueChange(paused=True)),
    "resume": lambda store: store.configure("mail", QueueChange(paused=False)),
    "pause a lane": lambda store: store.configure_lane("mail", "b", LaneChange(pause=Pause(who="ada"))),
    "resume a lane": lambda store: store.configure_lane("mail", "b", LaneChange(pause=None)),
}
SETS: dict[str, Verb] = {
    "limit": lambda store: store.configure("mail", QueueChange(paused=False, running_limit=3)),
    "feed": lambda store: store.configure("mail", QueueChange(feed=True)),
    "rule of lanes": lambda store: store.configure("mail", QueueChange(lanes=LaneRule(running=5))),
    "limit of a lane": lambda store: store.configure_lane("mail", "b", LaneChange(running=3)),
}


async def refused(store: PostgresStore, verbs: dict[str, Verb]) -> None:
    """Each of them, with a word about roles."""
    for name, verb in verbs.items():
        try:
            await verb(store)
        except StoreError as error:
            assert "permission denied for" in str(error)  # noqa: PT017  (which verb was allowed is worth knowing)
            assert "; see the roles of `jobmill migrate --roles`" in str(error)  # noqa: PT017
        else:
            raise AssertionError(f"{name} was allowed")


async def allowed(store: PostgresStore, verbs: dict[str, Verb]) -> None:
    for verb in verbs.values():
        await verb(store)


# ---------------------------------------------------------------------------------------------------- producer


async def test_a_producer_enqueues_in_every_way_and_no_more(place: Place) -> None:
    await place.owner.configure("told", QueueChange(feed=True))
    async with place.store("producer") as store, connected(as_user_of(store)) as sql:
        plain = await put_one(store)
        again = (await store.enqueue([new(id=plain)]))[0]
        assert (again.id, again.status) == (plain, "exists")
        keyed = await put_one(store, new(key="k"))
        assert (await store.enqueue([new(key="k")]))[0].id == keyed
        every = Recurrence(key="r", every_ms=60_000)
        await put_one(store, new(key="r", recurrence=every))
        await store.enqueue([new(key="r", recurrence=every, payload={"n": 2})])
        told = await put_one(store, new(queue="told"))
        async with sql.transaction():
            within = (await store.enqueue_within(sql, [new()]))[0].id
        by_sql = str(await sql.fetchval(f"SELECT \"{place.schema}\".enqueue('send', queue => 'told')"))
        for id in (plain, keyed, told, within, by_sql):
            assert await state_of(place.owner, id) == "waiting"
        assert [event.job_id for event in await place.owner.events("told")] == [told, by_sql]
        # What became final is looked up, and not enqueued again.
        await place.owner.change([plain], Cancel())
        assert (await store.enqueue([new(id=plain), new()]))[0].status == "exists"
        await allowed(store, {"settings": LOOKS["settings"]})
        await refused(
            store, {name: verb for name, verb in {**LOOKS, **RUNS, **PAUSES, **SETS}.items() if name != "settings"}
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.execute(f'DELETE FROM "{place.schema}".jobs')


async def test_a_producer_enqueues_flows(place: Place) -> None:
    live = await put_one(place.owner, new("live"))
    final = await put_one(place.owner, new("final"))
    await place.owner.change([final], Cancel())
    async with place.store("producer") as store, connected(as_user_of(store)) as sql:
        await store.enqueue([new("a"), waits("b", "a", live, final, if_failed="run", flow="f")])
        async with sql.transaction():
            await store.enqueue_within(sql, [new("c"), waits("d", "c", final, if_failed="run")])
        assert await edges(place.owner, "b") == [("a", "pending"), (live, "pending"), (final, "cancelled")]
        assert await edges(place.owner, "d") == [("c", "pending"), (final, "cancelled")]
        # It cannot change the edges of jobs that are there.
        add = f'SELECT * FROM "{place.schema}".enqueue_edges($1, false, $2, $3, $4, $5, $6)'
        created = (await look(place.owner, "b")).created_ms
        for job in ("a", "b", live):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only new jobs"):
                await sql.fetch(add, created, [], [job], [7], [final], ["run"])
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.execute(f'DELETE FROM "{place.schema}".edges')


async def test_a_producer_enqueues_by_policies_and_changes_only_the_owners_of_keys(place: Place) -> None:
    await put(place.owner, new("waits", key="r", payload="old"), new("cancelled", key="c"), new("other", key="o"))
    await place.owner.change(["waits"], Hold(note="secret"))
    async with place.store("producer") as store, connected(as_user_of(store)) as sql:
        policies = [keyed(REPLACE, key="r", payload="new"), keyed(CANCEL, key="c"), keyed(FOR_A_MINUTE, key="f")]
        assert [receipt.status for receipt in await store.enqueue(policies)] == ["updated", "created", "created"]
        async with sql.transaction():
            receipts = await store.enqueue_within(sql, [debounced(key="f"), keyed(CANCEL, key="c")])
            assert [receipt.status for receipt in receipts] == ["updated", "created"]
        assert (await look(place.owner, "waits")).payload == "new"
        assert await state_of(place.owner, "cancelled") == "cancelled"
        owners = f"SELECT * FROM \"{place.schema}\".key_owners(NULL, NULL, '{{x}}', '{{mail}}', '{{send}}', '{{r}}')"
        assert "secret" not in str(await sql.fetch(owners))
        # A producer that names a job which has another key changes nothing.
        plan = Plan(do="cancel", owner="other", version="0 waiting")
        columns = [[one] for one in (*new_job_row(new("x", key="r")), False, *structs.astuple(plan)[: len(PLAN_TYPES)])]
        numbers = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        text = f'SELECT how FROM "{place.schema}".enqueue_by_policy(NULL, true, false, {numbers})'
        assert await sql.fetchval(text, *columns) == "again"
        assert await state_of(place.owner, "other") == "waiting"
        assert await state_of(place.owner, "x") is None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.execute(f'DELETE FROM "{place.schema}".taken_keys')


def as_user_of(store: PostgresStore) -> str:
    return store.context.url.url


async def test_a_producer_enqueues_into_lanes(place: Place) -> None:
    await rule(place.owner, 1)
    await put(place.owner, laned("first"))
    async with place.store("producer") as store, connected(as_user_of(store)) as sql:
        await put(
            store, laned("held"), laned("later", due=after(60_000)), laned("b", "b"), laned("new", "n", queue="q")
        )
        await store.enqueue([structs.replace(keyed(CANCEL, key="c"), lane="c") for _ in range(2)])
        await put_one(store, laned(lane="r", key="r", recurrence=Recurrence(key="r", every_ms=60_000)))
        async with sql.transaction():
            await store.enqueue_within(sql, [laned("within", "w"), laned("behind", "w")])
    assert set(await claim_ids(place.owner, queues=("mail", "q"))) >= {"first", "b", "new", "within"}
    found = {one.name: (one.running, one.ready, one.later) for one in await place.owner.lanes("mail")}
    assert found == {"a": (1, 1, 1), "b": (1, 0, 0), "c": (1, 0, 0), "r": (1, 0, 0), "w": (1, 1, 0)}


async def test_a_producer_wakes_workers(place: Place) -> None:
    ran: list[int] = []
    async with place.client("worker") as workers, place.client("producer") as web:

        @workers.handler()
        async def send(n: int) -> None:
            ran.append(n)

        async with Worker(workers):
            sleepers = f'SELECT count(*) FROM "{place.schema}".sleepers'
            async with connected(place.url) as sql:
                await until(lambda: sql.fetchval(sleepers))

            async def took() -> float:
                began, before = time.monotonic(), len(ran)
                await web.enqueue("send", {"n": before})
                await until(lambda: len(ran) > before)
                return time.monotonic() - began

            assert await best_of(took, below=3) < 3, "a worker looks by itself after five seconds"


async def test_a_producer_makes_rows_of_the_jobs_table_without_rights_on_it(place: Place) -> None:
    await install_jobs_table(place.owner, "public.jobs")
    async with place.client("producer") as web:
        id = await Repository(web).enqueue("send")
    async with connected(place.url) as sql:
        assert str(await sql.fetchval("SELECT id FROM public.jobs")) == id


async def test_an_application_that_awaits_results_reads_too(place: Place) -> None:
    async with place.client("worker") as workers, place.client("producer", "reader") as web:

        @workers.handler()
        async def double(n: int) -> int:
            return 2 * n

        async with Worker(workers):
            enqueued = await web.enqueue("double", {"n": 21})
            assert await enqueued.result(timeout=timedelta(seconds=10)) == 42


# ---------------------------------------------------------------------------------------------------- the others


async def test_a_reader_looks_and_no_more(place: Place) -> None:
    await put_one(place.owner)
    async with place.store("reader") as store:
        await allowed(store, LOOKS)
        await refused(store, {**RUNS, **PAUSES, **SETS, "enqueue": put_one})


async def test_a_worker_does_all_that_a_job_needs(place: Place) -> None:
    await place.owner.configure("mail", QueueChange(feed=True, running_limit=5))
    async with place.store("worker") as store:
        for outcome in (succeed, fail, retry):
            await put_one(store)
            claimed = await claim_one(store)
            assert await store.extend([claimed.lease], 5_000) == []
            report = Report(lease=claimed.lease, progress=Progress(50), lines=("here",))
            assert await store.report([report]) == []
            assert await settle(store, outcome(claimed)) == ["done"]
        by_policy = [keyed(policy, key=f"{n}") for n, policy in enumerate((REPLACE, CANCEL, FOR_A_MINUTE) * 2)]
        assert {receipt.status for receipt in await store.enqueue(by_policy)} == {"created"}
        await store.publish([PUBLISHED])
        assert await store.events("mail")
        await _run_a_flow(store)
        await put_one(store)
        await allowed(store, {**LOOKS, **RUNS, **PAUSES})
        await refused(store, SETS)
        with pytest.raises(StoreError, match="permission denied for schema"):
            await install_jobs_table(store, "public.jobs")


async def _run_a_flow(store: PostgresStore) -> None:
    await store.change(EVERYTHING, Remove())
    await put(store, new("a"), waits("b", "a"), waits("c", "b"))
    parent = await claim_one(store)
    assert await store.record_step(parent.lease, Step(number=0, name="x"))
    assert await store.signal("a", Signal(name="go")) == "stored"
    assert await settle(store, suspend(parent, new("child"))) == ["done"]
    for id in ("child", "a", "b"):
        claimed = await claim_one(store)
        assert claimed.job.id == id
        assert await settle(store, fail(claimed) if id == "b" else succeed(claimed)) == ["done"]
    assert (await store.change(["b"], Requeue())).ids == ["b"]
    assert (await store.change(["b", "c"], Cancel())).ids == ["b", "c"]
    assert (await store.change(["a", "b", "c"], Remove())).ids == ["a", "b", "c"]
    await store.purge()
    assert await store.flush_outbox() == 0


async def test_a_worker_runs_jobs_of_lanes(place: Place) -> None:
    await rule(place.owner, 1)
    await rule(place.owner, running=2, queue="rated", rate=RateLimit(1, 60_000))
    await place.owner.configure_lane("mail", "b", LaneChange(running=2))
    async with place.store("worker") as store:
        await put(store, *[laned(f"{lane}{n}", lane) for lane in "ab" for n in range(3)])
        for ids in (["a0", "b0", "b1"], ["a1", "b2"], ["a2"]):
            claimed = [one for one in (await store.exchange([], wish())).claimed if isinstance(one, Claimed)]
            assert sorted(one.job.id for one in claimed) == ids
            assert await settle(store, *[succeed(one) for one in claimed]) == ["done"] * len(ids)
        await put(store, *[laned(f"rated-{n}", queue="rated") for n in range(2)])
        assert await claim_ids(store, queues=("rated",)) == ["rated-0"]
        await put(store, laned("paused"), laned("next"))
        await store.configure_lane("mail", "a", LaneChange(pause=Pause(who="ada")))
        assert await claim(store) == []
        assert await store.configure_lane("mail", "b", LaneChange(pause=None)) == LaneSettings(running=2)
        await store.configure_lane("mail", "a", LaneChange(pause=None))
        assert (await store.change(["paused"], Cancel())).ids == ["paused"]
        assert await claim_ids(store) == ["next"]
        await store.purge()
        await store.flush_outbox()
        await refused(store, SETS)
    assert (await place.owner.settings())["mail"].lanes == LaneRule(running=1)
    assert (await place.owner.lanes("mail", ["b"]))[0].settings == LaneSettings(running=2)


async def test_a_worker_counts_what_rate_limits_use(place: Place) -> None:
    await place.owner.configure("mail", QueueChange(rate_limit=RateLimit(1, 60_000)))
    async with place.store("worker") as store:
        await put_one(store)
        await put_one(store)
        assert len((await store.exchange([], wish())).claimed) == 1
        assert (await store.exchange([], wish())).claimed == []


async def test_an_admin_sets_queues_up_besides(place: Place) -> None:
    async with place.store("admin") as store:
        await put_one(store)
        await allowed(store, {**LOOKS, **RUNS, **PAUSES, **SETS})
        async with connected(as_user_of(store)) as sql:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await sql.execute(f'ALTER TABLE "{place.schema}".jobs ADD COLUMN x integer')
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await sql.execute(f'DELETE FROM "{place.schema}".migrations')


async def test_whoever_has_no_role_is_told_so(place: Place) -> None:
    async with place.login() as url:
        store = PostgresStore(url, schema=place.schema)
        with pytest.raises(StoreError, match=r"permission denied for schema .*jobmill migrate --roles"):
            await store.open()
        await store.close()


async def test_who_may_not_create_a_schema_is_told_so(place: Place) -> None:
    async with place.login() as url:
        store = PostgresStore(url, schema=f"{place.schema}_new")
        with pytest.raises(StoreError, match=r"permission denied for database .*GRANT CREATE ON DATABASE"):
            await store.migrate()
        await store.close()


async def test_the_script_takes_back_what_it_no_longer_grants(place: Place) -> None:
    producer = f'"{place.schema}_producer"'
    async with connected(place.url) as sql:
        await sql.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA "{place.schema}" TO {producer}')
        await sql.execute(place.owner.roles_script())
    async with place.store("producer") as store:
        await refused(store, {"find": LOOKS["find"]})


def test_roles_are_named_after_the_schema() -> None:
    long = PostgresStore("postgresql://localhost/x", schema="x" * 63)
    for store, name in ((PostgresStore("postgresql://localhost/x"), "jobmill"), (long, "x" * 54)):
        for role in ROLES:
            assert f'"{name}_{role}"' in store.roles_script()
            assert len(f"{name}_{role}") <= 63
