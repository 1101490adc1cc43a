"""A shop with FastAPI: an order and the job that ships it are written in one transaction.

    $ pip install 'jobmill[dashboard]' fastapi uvicorn
    $ uvicorn fastapi_shop:app

That serves the shop, and the dashboard at http://localhost:8000/jobs/. In a second terminal, run a worker, which ships
orders. With SHOP_WORKER=1 the server has a worker inside, and needs no second terminal.

    $ jobmill worker fastapi_shop:jobs

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
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

import jobmill
from jobmill import Client, Context, Dashboard

PATH = os.environ.get("SHOP_DB", "shop.db")
jobs = jobmill.connect(f"sqlite:///{PATH}")  # the jobs are in the database of the shop
Jobs = Annotated[Client, Depends(jobs.dependency)]


def database() -> sqlite3.Connection:
    """A connection. SQLite answers at once; with a database server, use an async driver."""
    return sqlite3.connect(PATH, timeout=10)


@asynccontextmanager
async def create_tables(app: FastAPI) -> AsyncIterator[None]:
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

is_worker = os.environ.get("SHOP_WORKER") == "1"
app = FastAPI(lifespan=jobs.app_lifespan(worker=is_worker, inner=create_tables))
app.mount("/jobs", Dashboard(jobs))


class NewOrder(BaseModel):
    item: str


@app.post("/orders", status_code=201)
async def create_order(new: NewOrder, jobs: Jobs) -> dict[str, int | str]:
    with closing(database()) as db, db:  # commits, or rolls back if anything below raises
        order = db.execute("INSERT INTO orders (item, state) VALUES (?, 'new') RETURNING id", [new.item]).fetchone()[0]
        (enqueued,) = await jobs.enqueue_many([ship.draft(order=order)], within=db)
        if new.item == "unicorn":
            raise HTTPException(409, "sold out")
    return {"order": order, "job": enqueued.id}


@app.get("/orders/{order}")
async def show_order(order: int) -> dict[str, str]:
    with closing(database()) as db:
        found = db.execute("SELECT item, state FROM orders WHERE id = ?", [order]).fetchone()
    if found is None:
        raise HTTPException(404)
    return {"item": found[0], "state": found[1]}
