"""What the servers under the benchmark write for a job: it is counted, and afterwards they are as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import redis

from bench.mongo.server import Server as Mongo
from bench.postgres.server import Server as Postgres
from bench.postgres.server import Session
from bench.redis.server import Server as Redis

pytestmark = pytest.mark.slow

BYTES = 100_000
#: Cannot be compressed.
NOISE = random.Random(1).randbytes(BYTES)


@pytest.fixture
def valkey() -> Iterator[Redis]:
    server = Redis()
    yield server
    server.close()


@pytest.mark.stores("redis")
def test_on_redis_a_file_grows_as_long_as_somebody_looks(valkey: Redis) -> None:
    before = valkey.describe()
    assert "appendonly=no" in before["redis"]
    with redis.Redis.from_url(valkey.url(0)) as client:
        client.set("there", NOISE)
        with valkey.appending() as told, valkey.emptied():
            empty = told()
            client.set("key", NOISE)
            assert BYTES < told() - empty < BYTES + 1_000
            client.get("key")
            first = told()
            assert told() == first, "reading writes nothing"
        assert client.info("persistence")["aof_enabled"] == 0
    assert valkey.describe() == before


@pytest.mark.stores("postgres")
def test_on_postgresql_the_log_grows() -> None:
    server = Postgres()
    try:
        template = server.template("empty", lambda _: None)
        with server.copy(template) as url, Session(url) as session:
            session.execute("create table bytes (value text)")
            session.execute("checkpoint")
            before = server.spent().wal_bytes
            session.execute("insert into bytes select md5(n::text) from generate_series(1, 10000) as n")
            assert 10_000 * 32 < server.spent().wal_bytes - before < 10_000 * 320
    finally:
        server.close()


@pytest.mark.stores("mongo")
def test_on_mongodb_the_journal_grows() -> None:
    from pymongo import MongoClient

    server = Mongo()
    try:
        with server.database() as url, MongoClient[dict[str, object]](url) as client:
            documents = client.get_default_database()["bytes"]
            documents.insert_one({"value": b""})
            before = server.journal_bytes()
            documents.insert_one({"value": NOISE})
            assert BYTES / 2 < server.journal_bytes() - before < BYTES * 2
    finally:
        server.close()
