"""The limit: the PostgreSQL store's own statement in a bare loop, nothing else."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import asyncpg

from bench.figures import Ran
from bench.loop import on_uvloop
from bench.peers.about import About
from bench.stopwatch import metering
from jobmill.stores.postgres.claim import MAX_INTEGER, NO_POSITIONS
from jobmill.stores.postgres.connection.connector import READ_COMMITTED
from jobmill.stores.postgres.statements import Statements
from jobmill.stores.postgres.url import PostgresUrl

ABOUT = About(
    name="bare loop on PostgreSQL",
    package=None,
    settings="the store's statement, prepared by asyncpg, settles 50 and claims 50 (or 25, two in flight on two "
    "connections); each begins behind the last job that was claimed; of a row only its id and place are looked at; "
    "uvloop",
    guarantee="–",
)

QUEUE, NAME, PRIORITY = "default", "noop", 0
LEASE_MS = 60_000
KEEP_MS = 7 * 24 * 60 * 60 * 1000

#: Of a claimed row: its id, and its place in the line; of the last row: how often claims were rewound.
ID, DUE_MS, SEQ = 0, 5, 7


class Flight:
    """The arguments of one exchange after the other."""

    def __init__(self, batch: int, token: str) -> None:
        self._batch = batch
        self._token = token
        self._claim: tuple[object, ...] = ([QUEUE], [NAME], [batch], batch, LEASE_MS, "bench", token, [])
        self._positions = NO_POSITIONS
        self.held: list[str] = []

    def arguments(self) -> tuple[object, ...]:
        """Settle what is held, and claim as many as there is room for."""
        return (None, False, *settled(self.held, self._token), *self._claim, *self._positions)

    def learn(self, rows: list[Any]) -> int:
        """What an exchange claimed; how many it settled."""
        done, head = len(self.held), rows.pop()
        if head[3] is not None:
            raise RuntimeError(f"expected all {done} jobs to be settled, got {head[3]}")
        self.held = [row[ID] for row in rows]
        if rows:
            last = max(rows, key=itemgetter(DUE_MS, SEQ))
            line = ([QUEUE], [NAME], [PRIORITY], [last[DUE_MS]], [last[SEQ]])
            self._positions = (head[SEQ], *line, [QUEUE], [NAME], [PRIORITY], [MAX_INTEGER])
        return done


def settled(ids: list[str], token: str) -> tuple[object, ...]:
    """What the statement takes of jobs that succeeded at once: 14 columns, no others, their queues."""
    n = len(ids)
    if not n:
        return (*([],) * 14, None, [])
    zeros, nothing = [0] * n, [None] * n
    told = (ids, [token] * n, ["succeeded"] * n, zeros, zeros, ["null"] * n, nothing, nothing, [KEEP_MS] * n, nothing)
    return (*told, *([],) * 4, None, [QUEUE])


@on_uvloop
async def drain(url: str, batch: int, flights: int) -> Ran:
    """Claim and settle all that waits, so many at a time in each of so many flights."""
    connections = [await asyncpg.connect(PostgresUrl.parse(url).url) for _ in range(flights)]
    arguments = len(Flight(batch, "").arguments())
    statements = []
    for connection in connections:
        await connection.execute(READ_COMMITTED)
        statements.append(await connection.prepare(Statements("jobmill").call("exchange", arguments)))
    with metering() as watch:
        flown = (_fly(statement, Flight(batch, f"{n:032x}")) for n, statement in enumerate(statements))
        ran = watch.ran(sum(await asyncio.gather(*flown)))
    for connection in connections:
        await connection.close()
    return ran


async def _fly(statement: Any, flight: Flight) -> int:
    done = 0
    while True:
        done += flight.learn(await statement.fetch(*flight.arguments()))
        if not flight.held:
            return done
