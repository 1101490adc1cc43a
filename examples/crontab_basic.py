"""Documents in memory as a crontab: one now, one in a second, one every second for a while; ends on Ctrl-C."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from jobmill.crontab import Crontab, CrontabJob, MemoryCrontab

store = MemoryCrontab()


async def greet(job: CrontabJob) -> None:
    print(f"{job.id}: hello {job.data}")


def nothing_to_do() -> None:
    if not store.documents:
        print("all are done and removed")


def tell(error: BaseException, job: CrontabJob | None) -> None:
    print(f"{job.id if job else 'the crontab'}: {error!r}")


crontab = Crontab(store, on_document=greet, on_idle=nothing_to_do, on_error=tell, idle_delay="50ms")


async def main() -> None:
    now = datetime.now(UTC)
    await store.add("now", data="Ada", auto_remove=True)
    await store.add("later", data="Grace", sleep_until=now + timedelta(seconds=1), auto_remove=True)
    await store.add(
        "again", data="Lin", interval="* * * * * *", repeat_until=now + timedelta(seconds=2), auto_remove=True
    )
    await crontab.run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
