"""Whatever application, workers and clients do, in whichever order: rows and jobs agree, and no worker waits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import asyncpg
import pytest

from jobmill.core.changes import Cancel, Change, Remove, Requeue, Reschedule, Seize
from jobmill.core.durations import to_datetime
from jobmill.core.values import Claimed, after
from jobmill.testing.contract.model_parts import SETTLE
from jobmill.testing.contract.support import readable, wish
from tests.kit.postgres import PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied

pytestmark = pytest.mark.stores("postgres")

T = TypeVar("T")

#: What a worker's call may take although rows are locked; an open transaction stays open for longer.
AT_ONCE_S = 8.0
ROUNDS = 40
#: A transaction that holds a row caught up on it, before a worker claimed or settled its job, and committed after that.
FAILED_BEFORE = (849685003, 184274700)
STEPS = 60
MOST_ROWS = 4
NAMES = ("scan", "sweep")
DELAYS_MS = (0, 0, 700, 2_500)


class Play:
    """An application with two connections, of which one has a transaction open now and then; a worker; a client."""

    def __init__(self, desk: Desk, other: asyncpg.Connection, seed: int) -> None:
        self.desk = desk
        self.other = other
        self.random = Random(seed)
        self.ids: list[str] = []
        self.leases: list[Claimed] = []
        self.edited: set[str] = set()
        #: Rows that the open transaction has locked; None: there is none open.
        self.held: set[str] | None = None
        self.log: list[str] = []

    async def run(self) -> None:
        """So many steps, and whether all agrees after each that leaves no transaction open."""
        await self.desk.sql.execute(f"TRUNCATE {TABLE}")
        await self.insert()
        for _ in range(STEPS):
            step = self.random.choice(self.steps())
            self.log.append(step.__name__)
            await step()
            if self.held is None:
                await self.check()
        if self.held is not None:
            await self.commit()
            await self.check()

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """What may happen now; more often what is there more often."""
        always = [
            *[self.claim] * 3,
            *[self.settle] * 4,
            self.extend,
            self.change,
            self.change,
            self.advance,
            self.purge,
        ]
        own = [*[self.update] * 3, self.update_all, self.edit, self.delete]
        new = [self.insert] * 2 if len(self.ids) < MOST_ROWS else []
        if self.held is None:
            return [*always, *own, *new, self.begin, self.begin]
        held = [*[self.lock] * 2, *[self.update_held] * 3, self.delete_held, self.commit, self.commit, self.rollback]
        return [*always, *own, *new, *held]

    async def check(self) -> None:
        await self.desk.catch_up()
        await self.desk.check(edited=list(self.edited))

    def some(self, *, free: bool = True) -> str | None:
        """A row; of those that nobody else holds."""
        ids = [id for id in self.ids if not free or id not in (self.held or ())]
        return self.random.choice(ids) if ids else None

    def status(self) -> str:
        return self.random.choice(["queued", "queued", "queued", "failed", "failed", "failed", "success", "running"])

    # ------------------------------------------------------------------------------------------------ application

    async def insert(self) -> None:
        due = to_datetime(self.desk.clock() + self.random.choice(DELAYS_MS))
        names = self.random.choices(NAMES, k=self.random.randint(1, 2))
        text = f"INSERT INTO {TABLE} (type, next_run_at) SELECT type, $2 FROM unnest($1::text[]) AS type RETURNING id"
        self.ids += [str(row[0]) for row in await self.desk.sql.fetch(text, names, due)]

    async def update(self) -> None:
        await self.try_to({"status": self.status()})

    async def update_all(self) -> None:
        if self.held is None:
            await _tried(self.desk.sql.execute(f"UPDATE {TABLE} SET status = $1", self.status()))

    async def edit(self) -> None:
        columns = {"type": "sweep", "payload": "[]", "attempts": self.random.randint(0, 5), "last_error": "edited"}
        names = self.random.sample(sorted(columns), self.random.randint(1, 2))
        await self.try_to({name: columns[name] for name in names})

    async def try_to(self, columns: dict[str, Any]) -> None:
        if (id := self.some()) is not None:
            sets = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
            text = f"UPDATE {TABLE} SET {sets} WHERE id = $1"
            if await _tried(self.desk.sql.execute(text, id, *columns.values())) and "status" not in columns:
                self.edited.add(id)

    async def delete(self) -> None:
        if (id := self.some()) is not None:
            await self.desk.sql.execute(f"DELETE FROM {TABLE} WHERE id = $1", id)
            self.ids.remove(id)

    # ------------------------------------------------------------------------------------------------ held rows

    async def begin(self) -> None:
        await self.other.execute("BEGIN")
        self.held = set()

    async def lock(self) -> None:
        await self.hold(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE")

    async def update_held(self) -> None:
        await self.hold(f"UPDATE {TABLE} SET status = $2 WHERE id = $1", self.status())

    async def delete_held(self) -> None:
        await self.hold(f"DELETE FROM {TABLE} WHERE id = $1")

    async def hold(self, text: str, *values: object) -> None:
        assert self.held is not None
        if (id := self.some(free=False)) is not None:
            await self.other.execute("SAVEPOINT step")
            done = await _tried(self.other.execute(text, id, *values))
            await self.other.execute("RELEASE step" if done else "ROLLBACK TO step")
            self.held.add(id)

    async def commit(self, word: str = "COMMIT") -> None:
        await self.other.execute(word)
        self.held = None
        there = {str(row[0]) for row in await self.desk.sql.fetch(f"SELECT id FROM {TABLE}")}
        self.ids = [id for id in self.ids if id in there]

    async def rollback(self) -> None:
        await self.commit("ROLLBACK")

    # ------------------------------------------------------------------------------------------------ worker, client

    async def claim(self) -> None:
        # Else this worker might not look back at what was queued by the server's clock, which is behind its own.
        await self.desk.sql.execute("INSERT INTO jobmill.rewinds DEFAULT VALUES")
        answer = await _at_once(self.desk.store.exchange([], wish(2, queues=("default",), names=NAMES, lease_ms=6_000)))
        self.leases += readable(answer.claimed)

    async def settle(self) -> None:
        chosen = {one.lease.id: one for one in self.random.choices(self.leases[-4:], k=2)} if self.leases else {}
        settlements = [
            SETTLE[self.random.choice(sorted(SETTLE))](one, self.random.choice(DELAYS_MS)) for one in chosen.values()
        ]
        claim = wish(1, queues=("default",), names=NAMES, lease_ms=6_000) if self.random.random() < 0.5 else None
        answer = await _at_once(self.desk.store.exchange(settlements, claim))
        self.leases += readable(answer.claimed)

    async def extend(self) -> None:
        await _at_once(self.desk.store.extend([one.lease for one in self.leases[-3:]], 6_000))

    async def change(self) -> None:
        delay = after(self.random.choice(DELAYS_MS))
        seize = Seize(token=secrets.token_hex(8), worker="by hand", lease_ms=6_000)
        wanted: list[Change] = [Cancel(), Requeue(delay), Requeue(delay), Reschedule(delay), Remove(), seize]
        if (id := self.some()) is not None:
            await self.desk.store.change([id], self.random.choice(wanted))

    async def advance(self) -> None:
        self.desk.clock.advance(self.random.choice([0.001, 1, 3, 7]))

    async def purge(self) -> None:
        await _at_once(self.desk.catch_up())


async def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """What a worker asks of the store, which must not wait for the application."""
    async with asyncio.timeout(AT_ONCE_S):
        return await call


async def _tried(call: Coroutine[Any, Any, object]) -> bool:
    """Whether it was allowed. What is refused is refused with a reason, never with a deadlock or a broken statement."""
    try:
        await call
    except (asyncpg.InvalidParameterValueError, asyncpg.ObjectInUseError):
        return False
    return True


@pytest.mark.slow
async def test_rows_and_jobs_agree_after_whatever_happens(
    postgres_servers: PostgresServers, postgres_name: str
) -> None:
    url = await emptied(postgres_servers[postgres_name])
    first = secrets.randbelow(10**9)
    async with desk(url) as made, connected(url) as other:
        await made.jobs.open()
        for seed in (*FAILED_BEFORE, *range(first, first + ROUNDS)):
            play = Play(made, other, seed)
            try:
                await play.run()
            except BaseException as error:
                error.add_note(f"seed {seed}: {' '.join(play.log)}")
                raise
