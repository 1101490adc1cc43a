"""The Python side of a shop: handlers, and a program that adds jobs; README.md says how to run it."""

from __future__ import annotations

import asyncio
import os

import jobmill

jobs = jobmill.connect(os.environ.get("REDIS_URL", "redis://localhost:6379"))

PRICES = {"tea": 3, "coffee": 4, "milk": 1}


# The name of the handler is the name of the job in Node, and its parameters are the fields of `job.data`.
@jobs.handler(queue="shop")
async def price(item: str) -> str:
    return f"{PRICES[item]} (Python)"


# Only Python knows this job, so it has a queue without workers in Node.
@jobs.handler(queue="python")
async def invoice(items: list[str]) -> str:
    return f"{', '.join(items)} (Python)"


async def main() -> None:
    async with jobs:
        prices = [await price.enqueue(item=item) for item in PRICES]
        for item, enqueued in zip(PRICES, prices, strict=True):
            print(f"price of {item}: {await enqueued.result(timeout='30s')}")
        print(f"invoice: {await (await invoice.enqueue(items=list(PRICES))).result(timeout='30s')}")


if __name__ == "__main__":
    asyncio.run(main())
