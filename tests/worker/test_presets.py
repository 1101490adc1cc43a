"""Jobs with a preset, in a worker that has not imported the module of that preset."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jobmill
from jobmill.core.job import JobOptions
from jobmill.core.values import NewJob

APP = """
import asyncio, sys
import jobmill
from jobmill.core.job import JobOptions
from jobmill.core.values import NewJob

jobs = jobmill.connect(store=__import__("jobmill.stores.memory", fromlist=["MemoryStore"]).MemoryStore())

@jobs.handler
async def fails() -> None:
    raise RuntimeError("no")

async def main() -> None:
    new = NewJob(id="mine", name="fails", queue="default", payload_json=b"{}", options=JobOptions(preset="harmonyk"))
    await jobs.store.enqueue([new])
    assert "jobmill.harmonyk" not in sys.modules
    tick = await jobs.tick()
    job = await jobs.get("mine")
    print(tick.retrying, job.due_ms - job.updated_ms, "jobmill.harmonyk" in sys.modules)

asyncio.run(main())
"""


def test_a_worker_imports_the_module_of_a_preset_when_a_job_names_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", APP]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    assert ran.stdout == "1 1000 True\n"


async def test_a_job_with_an_unknown_preset_fails_with_the_reason() -> None:
    jobs = jobmill.connect("memory://")

    @jobs.handler
    async def never_runs() -> None: ...

    options = JobOptions(preset="nobody")
    new = NewJob(id="mine", name="never_runs", queue="default", payload_json=b"{}", options=options)
    await jobs.store.enqueue([new])
    assert (await jobs.tick()).failed == 1
    assert "no module registers the preset 'nobody'" in str((await jobs.get("mine")).error)
