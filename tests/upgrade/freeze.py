"""Freeze databases made by the present code: `python -m tests.upgrade.freeze`. README.md says when."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from jobmill import __version__
from jobmill.harmonyk import install_jobs_table
from jobmill.store import Store
from jobmill.stores.mongo import MongoStore
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.redis import RedisStore
from jobmill.stores.sqlite import SqliteStore
from jobmill.testing import ManualClock
from tests.kit import mongo, redis
from tests.kit.postgres import PostgresServer, connected, one_per_version
from tests.upgrade import dumps
from tests.upgrade.reading import read, table_rows
from tests.upgrade.scene import START_MS, TABLE, Scene, fill, fill_table

HERE = Path(__file__).parent


async def freeze(folder: Path) -> None:
    """All stores, into this folder."""
    await freeze_sqlite(folder)
    await freeze_postgres(folder)
    await freeze_mongo(folder)
    await freeze_redis(folder)


async def freeze_sqlite(folder: Path) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "jobs.db"
        clock = ManualClock(START_MS)
        store = SqliteStore(path, clock=clock)
        await _fill(store, clock, folder / "sqlite.expected.json")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (folder / "sqlite.sqlite3").write_bytes(path.read_bytes())


async def freeze_postgres(folder: Path) -> None:
    """On the oldest server that there is, whose dump newer ones can load."""
    installation = list(one_per_version().values())[-1]
    with PostgresServer(installation) as server:
        async with server.database() as url:
            clock = ManualClock(START_MS)
            store = PostgresStore(url, clock=clock)
            await store.migrate()
            await install_jobs_table(store, TABLE)
            await _fill(store, clock, folder / "postgres.expected.json", url)
            dumps.write(folder / "postgres.sql.gz", dumps.dump_postgres(url, installation.bin))


async def freeze_mongo(folder: Path) -> None:
    with mongo.MongoReplicaSet() as group, group.database() as url, group.client() as client:
        clock = ManualClock(START_MS)
        store = MongoStore(url, clock=clock)
        await store.migrate()
        await _fill(store, clock, folder / "mongo.expected.json")
        dumps.write(folder / "mongo.json.gz", dumps.dump_mongo(client[urlsplit(url).path[1:]]))


async def freeze_redis(folder: Path) -> None:
    with redis.RedisServer() as server, server.client() as client:
        clock = ManualClock(START_MS)
        await _fill(RedisStore(server.url(), clock=clock), clock, folder / "redis.expected.json")
        dumps.write(folder / "redis.json.gz", dumps.dump_redis(client))


async def _fill(store: Store, clock: ManualClock, expected: Path, url: str | None = None) -> None:
    """Fill a store, and write down what it then holds."""
    scene = Scene(store, clock)
    await fill(scene)
    more: dict[str, Any] = {}
    if url is not None:
        async with connected(url) as sql:
            await fill_table(scene, sql)
            more["table"] = await table_rows(sql)
    held = await read(store)
    leases = {label: [lease.token, lease.until_ms] for label, lease in scene.leases.items() if "+" not in label}
    _write(expected, {"now": clock(), "ids": scene.ids, "leases": leases, **held, **more})
    await store.close()


def _write(path: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    folder = HERE / __version__
    if folder.exists():
        sys.exit(f"{folder} is there already, and frozen: give the code another version first")
    folder.mkdir()
    asyncio.run(freeze(folder))
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:8,d}  {file.relative_to(HERE)}")


if __name__ == "__main__":
    main()
