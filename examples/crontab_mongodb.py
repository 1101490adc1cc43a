"""A collection of your own as a crontab: mails that are sent when their date has come; ends on Ctrl-C.

The index is made first, documents are written as any program would write them, in Python or in Node. A mongodb-cron for
Node may work the same collection.
"""

import asyncio
import contextlib
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import AsyncMongoClient

from jobmill.crontab import Crontab, CrontabJob, MongoCrontab

URL = os.environ.get("MONGO_URL", "mongodb://localhost:27017/shop")


async def send(job: CrontabJob) -> None:
    mail: dict[str, Any] = job.data  # the whole document
    print(f"{mail['subject']} to {mail['to']}")


def tell(error: BaseException, job: CrontabJob | None) -> None:
    print(f"{job.id if job else 'the crontab'}: {error!r}")


async def main() -> None:
    async with AsyncMongoClient[dict[str, Any]](URL) as client:
        mails = client.get_default_database("shop")["mails"]
        store = MongoCrontab(mails, condition={"kind": "mail"})
        await store.migrate()
        now = datetime.now(UTC)
        await mails.insert_many(
            [
                {"kind": "mail", "to": "Ada", "subject": "welcome", "sleepUntil": now, "autoRemove": True},
                {"kind": "mail", "to": "Lin", "subject": "hello again", "sleepUntil": now + timedelta(seconds=1)},
                {"kind": "draft", "to": "Grace", "subject": "not yet", "sleepUntil": now},
            ]
        )
        crontab = Crontab(store, on_document=send, on_error=tell, idle_delay="100ms", concurrency=10)
        await crontab.run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
