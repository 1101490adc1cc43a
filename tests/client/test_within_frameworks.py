"""Enqueueing within transactions of Django, and of SQLAlchemy on SQLite: a job exists exactly if they commit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import jobmill
from jobmill import Client, InvalidValue

ROOT = Path(__file__).parents[2]

DJANGO = """
import json, sys
import django
from django.conf import settings

url, database = sys.argv[1], json.loads(sys.argv[2])
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()
from django.db import connection, transaction

import jobmill

jobs = jobmill.connect(url)
jobs.sync(jobs.store.migrate())

def enqueue(name):
    jobs.sync.enqueue(name, within=connection)

with transaction.atomic():
    enqueue("committed")
try:
    with transaction.atomic():
        enqueue("rolled_back")
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    enqueue("outer")
    try:
        with transaction.atomic():
            enqueue("inner")
            raise KeyError
    except KeyError:
        pass
try:
    enqueue("outside")
except jobmill.InvalidValue as error:
    print(error)
print(sorted(job.name for job in jobs.sync.find().jobs))
connection.close()
jobs.sync.close()
"""


def django_database(store_name: str, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if store_name == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": unquote(parts.path)[1:]}
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or query.get("user", ""),
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
    }


@pytest.mark.stores("sqlite", "postgres")
def test_django(store_name: str, store_url: str) -> None:
    import json

    database = json.dumps(django_database(store_name, store_url))
    ended = subprocess.run(
        [sys.executable, "-c", DJANGO, store_url, database],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    refused, names = ended.stdout.splitlines()
    assert "within: expected Django's connection in a transaction" in refused
    assert "use transaction.atomic()" in refused
    assert names == "['committed', 'outer']"


# ---------------------------------------------------------------------------------------------------- SQLAlchemy


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Client]:
    client = jobmill.connect(f"sqlite:///{tmp_path / 'jobs.db'}")
    client.sync.open()
    yield client
    client.sync.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    with made.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id INTEGER)"))
    yield made
    made.dispose()


def names(jobs: Client) -> list[str]:
    return sorted(job.name for job in jobs.sync.find().jobs)


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_session_of_sqlalchemy(jobs: Client, engine: sqlalchemy.Engine, writes_first: bool) -> None:
    with sqlalchemy.orm.Session(engine) as session:
        if writes_first:
            session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        jobs.sync.enqueue("committed", within=session)
        session.commit()
        jobs.sync.enqueue("rolled_back", within=session)
        session.rollback()
        jobs.sync.enqueue("left", within=session)
    assert names(jobs) == ["committed"]


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_connection_of_sqlalchemy(jobs: Client, engine: sqlalchemy.Engine, writes_first: bool) -> None:
    with engine.connect() as connection:
        if writes_first:
            connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        jobs.sync.enqueue("committed", within=connection)
        connection.commit()
        jobs.sync.enqueue("left", within=connection)
    with engine.begin() as connection:
        jobs.sync.enqueue("begun", within=connection)
    assert names(jobs) == ["begun", "committed"]


def test_an_engine_of_another_file_is_refused(jobs: Client, tmp_path: Path) -> None:
    other = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.connect() as connection, pytest.raises(InvalidValue, match="a connection to the database of the store"):
        jobs.sync.enqueue("send", within=connection)
    other.dispose()


def test_a_connection_without_transactions_is_refused(jobs: Client, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'jobs.db'}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id INTEGER)"))
        with pytest.raises(InvalidValue, match="within: expected a connection with transactions.*AUTOCOMMIT"):
            jobs.sync.enqueue("send", within=connection)
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
    with sqlalchemy.orm.Session(engine) as session:
        with pytest.raises(InvalidValue, match="AUTOCOMMIT"):
            jobs.sync.enqueue("send", within=session)
        assert session.execute(sqlalchemy.text("SELECT count(*) FROM orders")).scalar() == 1
    engine.dispose()
    assert names(jobs) == []


def test_transactions_that_the_application_begins_itself(jobs: Client, engine: sqlalchemy.Engine) -> None:
    """As SQLAlchemy's documentation advises for SQLite: the driver begins none, and an event sends BEGIN."""

    @sqlalchemy.event.listens_for(engine, "connect")
    def on_connect(driver: Any, _: Any) -> None:
        driver.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def on_begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    engine.dispose()
    with sqlalchemy.orm.Session(engine) as session:
        jobs.sync.enqueue("committed", within=session)
        session.commit()
        jobs.sync.enqueue("rolled_back", within=session)
        session.rollback()
    assert names(jobs) == ["committed"]


def test_a_session_without_an_engine_is_refused(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="within: expected a session that can be used.* not bound"):
        jobs.sync.enqueue("send", within=sqlalchemy.orm.Session())


@pytest.mark.stores("postgres")
def test_a_session_of_another_database_is_refused(jobs: Client, store_name: str, store_url: str) -> None:
    at = django_database(store_name, store_url)
    url = sqlalchemy.URL.create(
        "postgresql+psycopg", at["USER"], at["PASSWORD"], at["HOST"], int(at["PORT"]), at["NAME"]
    )
    engine = sqlalchemy.create_engine(url)
    expected = r"within: expected a connection or session of SQLAlchemy on SQLite.* its engine is postgresql\+psycopg"
    with sqlalchemy.orm.Session(engine) as session, pytest.raises(InvalidValue, match=expected):
        jobs.sync.enqueue("send", within=session)
    engine.dispose()
