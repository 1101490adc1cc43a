"""A caller in a process of its own, which tests kill: `python postgres_killed.py URL DRIVER before|after`.

It enqueues within a transaction, says so before or after the commit, and waits for its end.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
import psycopg

import jobmill


async def with_asyncpg(url: str, moment: str) -> None:
    async with jobmill.connect(url) as jobs:
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO orders VALUES (1)")
        await jobs.enqueue("send", id="within", queue="mail", unique_key="k", within=connection)
        if moment == "after":
            await connection.execute("COMMIT")
        wait_for_the_end()


def with_psycopg(url: str, moment: str) -> None:
    jobs = jobmill.connect(url)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        jobs.sync.enqueue("send", id="within", queue="mail", unique_key="k", within=connection)
        if moment == "after":
            connection.commit()
        wait_for_the_end()


def wait_for_the_end() -> None:
    print("now", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    _, url, driver, moment = sys.argv
    if driver == "asyncpg":
        asyncio.run(with_asyncpg(url, moment))
    else:
        with_psycopg(url, moment)
