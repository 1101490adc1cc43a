"""A shop with Litestar: an order and the job that ships it are written in one transaction.

    $ pip install 'jobmill[dashboard]' 'litestar[standard]'
    $ litestar --app litestar_shop:app run

That serves the shop, and the dashboard at http://localhost:8000/jobs/. In a second terminal, run a worker, which ships
orders. With SHOP_WORKER=1 the server has a worker inside, and with SHOP_PROCESSES=2 it starts two worker processes.

    $ litestar --app litestar_shop:app jobmill worker

In a third one, order tea, and a unicorn. The unicorn is sold out: its order and its job are rolled back.

    $ curl localhost:8000/orders -H 'content-type: application/json' -d '{"item": "tea"}'
    $ curl localhost:8000/orders -H 'content-type: application/json' -d '{"item": "unicorn"}'
    $ curl localhost:8000/orders/1

You should see the state of the first order: {"item":"tea","state":"shipped"}
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from litestar import Litestar, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, JSONBody

import jobmill
from jobmill import Client, Context
from jobmill.frameworks.litestar import JobmillPlugin

PATH = os.environ.get("SHOP_DB", "shop.db")
jobs = jobmill.connect(f"sqlite:///{PATH}")  # the jobs are in the database of the shop


def database() -> sqlite3.Connection:
    """A connection. SQLite answers at once; with a database server, use an async driver."""
    return sqlite3.connect(PATH, timeout=10)


@asynccontextmanager
async def create_tables(app: Litestar) -> AsyncIterator[None]:
    with closing(database()) as db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, state TEXT)")
    yield


# ---------------------------------------------------------------------------------------------------- jobs


@jobs.lifespan
async def warehouse() -> AsyncIterator[sqlite3.Connection]:
    with closing(database()) as db:
        yield db


@jobs.handler(max_attempts=5)
async def ship(context: Context[sqlite3.Connection], order: int) -> None:
    await asyncio.sleep(float(os.environ.get("SHOP_PACKING_S", "0")))
    with context.state as db:
        db.execute("UPDATE orders SET state = 'shipped' WHERE id = ?", [order])


# ---------------------------------------------------------------------------------------------------- pages


@dataclass
class NewOrder:
    item: str


@post("/orders")
async def create_order(data: JSONBody[NewOrder], jobs: NamedDependency[Client]) -> dict[str, int | str]:
    with closing(database()) as db, db:  # commits, or rolls back if anything below raises
        order = db.execute("INSERT INTO orders (item, state) VALUES (?, 'new') RETURNING id", [data.item]).fetchone()[0]
        (enqueued,) = await jobs.enqueue_many([ship.draft(order=order)], within=db)
        if data.item == "unicorn":
            raise HTTPException("sold out", status_code=409)
    return {"order": order, "job": enqueued.id}


@get("/orders/{order:int}")
async def show_order(order: FromPath[int]) -> dict[str, str]:
    with closing(database()) as db:
        found = db.execute("SELECT item, state FROM orders WHERE id = ?", [order]).fetchone()
    if found is None:
        raise NotFoundException
    return {"item": found[0], "state": found[1]}


app = Litestar(
    [create_order, show_order],
    lifespan=[create_tables],
    plugins=[
        JobmillPlugin(
            jobs,
            dashboard="/jobs",
            worker=os.environ.get("SHOP_WORKER") == "1",
            processes=int(os.environ.get("SHOP_PROCESSES", "0")),
        )
    ],
)
