"""An application with a worker inside, and a request that lasts until its body has arrived."""

from __future__ import annotations

import asyncio
import os

from fastapi import FastAPI, Request

import jobmill

jobs = jobmill.connect(os.environ["JOBMILL_URL"])
app = FastAPI(lifespan=jobs.app_lifespan(worker=True))


@jobs.handler
async def work() -> None: ...


@jobs.handler
async def never_ends() -> None:
    await asyncio.Event().wait()


@app.post("/held")
async def held(request: Request) -> int:
    async for part in request.stream():
        if part:
            await work.enqueue()
    return 1
