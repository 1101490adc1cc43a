"""The outbox pattern with SQLAlchemy: an order and the job that announces it are committed together, or not at all.

    $ pip install 'jobmill[postgres]' sqlalchemy 'psycopg[binary]'
    $ python outbox_sqlalchemy.py

You should see this. Bob's order is rolled back, and so is its job:

    Ada's order: committed
    Bob's order: rolled back (sold out)
    announced: order 1 of Ada
    1 order, 1 job

It uses a file of SQLite. On PostgreSQL it prints the same:

    $ SHOP_URL=postgresql://localhost/shop python outbox_sqlalchemy.py

Without an outbox there are two ways to be wrong. If the message is sent before the commit, a rollback leaves a message
about an order that does not exist. If it is sent after the commit, a crash between both loses the message. Here the job
is a row of the same transaction. It is announced at least once, so what receives it must know an order by its number.
"""

from __future__ import annotations

import os

import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import jobmill

URL = sqlalchemy.make_url(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
IS_POSTGRES = URL.get_backend_name() == "postgresql"

# Jobs are in the database of the orders. Else no transaction could have both.
jobs = jobmill.connect(URL.set(drivername=URL.get_backend_name()).render_as_string(hide_password=False))
engine = sqlalchemy.create_engine(URL.set(drivername="postgresql+psycopg") if IS_POSTGRES else URL)


class Base(DeclarativeBase):
    """Tables of the shop."""


class Order(Base):
    """One order of a customer."""

    __tablename__ = "outbox_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class SoldOut(Exception):
    """There is nothing left to sell."""


@jobs.handler(max_attempts=10)
def announce(order: int) -> None:
    """Tell the world. In a real shop: publish a message, call a webhook, send a mail."""
    with Session(engine) as session:
        found = session.get_one(Order, order)
        print(f"announced: order {found.id} of {found.customer}")


def place_order(customer: str, *, is_sold_out: bool = False) -> None:
    with Session(engine) as session, session.begin():  # commits, or rolls back if anything below raises
        order = Order(customer=customer)
        session.add(order)
        session.flush()  # the order has its number now
        jobs.sync.enqueue_many([announce.draft(order=order.id)], within=session)
        if is_sold_out:
            raise SoldOut


def create_tables() -> None:
    # A fresh shop each time, because this is an example. In production, run `jobmill migrate` at deployment.
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    jobs.sync(jobs.store.migrate())
    jobs.sync.open()  # before the first transaction: in a new file of SQLite this creates the tables of Jobmill
    jobs.sync.remove(name="announce")


def main() -> None:
    create_tables()
    place_order("Ada")
    print("Ada's order: committed")
    try:
        place_order("Bob", is_sold_out=True)
    except SoldOut:
        print("Bob's order: rolled back (sold out)")
    jobs.sync.tick()  # runs due jobs in this process; in production: `jobmill worker outbox_sqlalchemy:jobs`
    with Session(engine) as session:
        orders = session.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(Order))
    print(f"{orders} order, {sum(one.count for one in jobs.sync.count(name='announce'))} job")
    jobs.sync.close()
    engine.dispose()


if __name__ == "__main__":
    main()
