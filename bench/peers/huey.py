"""huey with thread workers, by its docs what to take for one process: on SQLite and on Redis."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from bench.queues import About, Handler, ThreadQueue, started

NAME = "bench"


class Huey(ThreadQueue):
    """What both have in common."""

    package = "huey"
    has_bulk = False

    def huey(self) -> Any:
        """Its app on the store."""
        raise NotImplementedError

    def connect(self, callers: int = 1) -> None:
        """It connects each thread by itself."""
        self._huey = self.huey()
        self._task = self._huey.task(name="job")(lambda number=0: None)

    def enqueue(self, number: int = 0) -> None:
        self._task(number)

    def working(self, handler: Handler, slots: int) -> AbstractContextManager[None]:
        huey = self.huey()
        huey.task(name="job")(lambda number=0: handler(number))
        consumer = huey.create_consumer(workers=slots, worker_type="thread", periodic=False)
        return started(consumer.start, lambda: consumer.stop(graceful=True))


class OnSqlite(Huey):
    """SqliteHuey; the URL is the path of the file."""

    about = About(
        name="huey",
        settings="SqliteHuey in WAL mode with fsync=True (synchronous=FULL), nothing stored for None, consumer with as "
        "many thread workers as there are slots, no periodic tasks, logging at WARNING, other defaults; it has no bulk "
        "call, and its callers are threads",
        guarantee="lost: a task is deleted before it runs",
        tried="nobody ran it within 90 s, and no row was left in any of its tables",
        docs="https://huey.readthedocs.io/en/latest/consumer.html",
    )
    left = "select exists (select 1 from task)"
    rate = (4_000, 3_100)

    def huey(self) -> Any:
        from huey import SqliteHuey

        return SqliteHuey(NAME, filename=self.url, fsync=True)

    def enqueue_many(self, size: int) -> None:
        """In one transaction, as its own `enqueue` writes them: only for filling."""
        storage = self._huey.storage
        with storage.db(commit=True) as cursor:
            for _ in range(size):
                row = (storage.name, self._huey.serialize_task(self._task.s()), 0)
                cursor.execute("insert into task (queue, data, priority) values (?, ?, ?)", row)


class OnRedis(Huey):
    """RedisHuey: a list, read with BRPOP."""

    about = About(
        name="huey",
        settings="RedisHuey (a list, read with BRPOP), nothing stored for None, a consumer with as many thread workers "
        "as there are slots, no periodic tasks, logging at WARNING, other defaults; it has no bulk call, and its "
        "callers are threads",
        guarantee="lost: a task is popped before it runs",
        tried="nobody ran it within 460 s, and no key was left",
        docs="https://huey.readthedocs.io/",
    )
    left = (("llen", f"huey.redis.{NAME}"),)
    rate = (2_700, 2_200)

    def huey(self) -> Any:
        """With a connection for each thread worker: redis-py allows 100 by default, and some tasks were never run."""
        from huey import RedisHuey
        from redis import ConnectionPool

        return RedisHuey(NAME, connection_pool=ConnectionPool.from_url(self.url, max_connections=1_000))
