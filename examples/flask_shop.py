"""A shop with Flask: an order and the job that ships it are written in one transaction.

    $ pip install 'jobmill[dashboard]' flask
    $ flask --app flask_shop run

That serves the shop, and the dashboard at http://localhost:5000/jobs/. In a second terminal, run a worker, which ships
orders:

    $ flask --app flask_shop jobmill worker

In a third one, order tea, and a unicorn. The unicorn is sold out: its order and its jobs are rolled back.

    $ curl localhost:5000/orders -H 'content-type: application/json' -d '{"item": "tea"}'
    $ curl localhost:5000/orders -H 'content-type: application/json' -d '{"item": "unicorn"}'
    $ curl localhost:5000/orders/1

You should see the state of the first order: {"item":"tea","state":"shipped"}
"""

import os
import sqlite3
import time
from typing import Any

from flask import Flask, abort, current_app, g, request

import jobmill
from jobmill.frameworks.flask import JobmillFlask

PATH = os.environ.get("SHOP_DB", "shop.db")
jobs = jobmill.connect(f"sqlite:///{PATH}")  # the jobs are in the database of the shop
jobmill_flask = JobmillFlask(jobs=jobs, factory="flask_shop:create_app")


def database() -> sqlite3.Connection:
    """The connection of this request, or of this run of a job: handlers run in the context of the application too."""
    if "db" not in g:
        g.db = sqlite3.connect(current_app.config["SHOP_DB"], timeout=10)
    connection: sqlite3.Connection = g.db
    return connection


def close_database(error: BaseException | None = None) -> None:
    if "db" in g:
        g.pop("db").close()


# ---------------------------------------------------------------------------------------------------- jobs


@jobs.handler(max_attempts=5)
def ship(order: int) -> None:
    time.sleep(float(os.environ.get("SHOP_PACKING_S", "0")))
    with database() as db:
        db.execute("UPDATE orders SET state = 'shipped' WHERE id = ?", [order])


@jobs.handler(isolate=True)
def print_label(order: int) -> str:
    """In a process of its own, because a printer driver may crash. The context of the application is there too."""
    item, _ = database().execute("SELECT item, state FROM orders WHERE id = ?", [order]).fetchone()
    return f"order {order}: {item}"


# ---------------------------------------------------------------------------------------------------- pages


def create_order() -> tuple[dict[str, Any], int]:
    item = request.get_json()["item"]
    with database() as db:  # commits, or rolls back if anything below raises
        order = db.execute("INSERT INTO orders (item, state) VALUES (?, 'new') RETURNING id", [item]).fetchone()[0]
        drafts = [ship.draft(order=order), print_label.draft(order=order)]
        shipping, label = jobs.sync.enqueue_many(drafts, within=db)
        if item == "unicorn":
            abort(409, "sold out")
    return {"order": order, "job": shipping.id, "label": label.id}, 201


def show_order(order: int) -> dict[str, str]:
    found = database().execute("SELECT item, state FROM orders WHERE id = ?", [order]).fetchone()
    if found is None:
        abort(404)
    return {"item": found[0], "state": found[1]}


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.update(SHOP_DB=PATH, JOBMILL_DASHBOARD_PATH="/jobs")
    jobmill_flask.init_app(app)
    app.teardown_appcontext(close_database)
    app.post("/orders")(create_order)
    app.get("/orders/<int:order>")(show_order)
    with app.app_context(), database() as db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, state TEXT)")
    jobs.sync.open()  # creates the tables of Jobmill, before a transaction holds the file
    return app
