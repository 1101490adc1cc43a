"""The application that the tests of killed processes run: it keeps usage in the table of its store."""

from __future__ import annotations

import os
import signal

import jobmill
from jobmill import Context

jobs = jobmill.connect()
jobs.record_usage(jobs.store)


@jobs.handler
async def quick() -> None:
    """Nothing."""


@jobs.handler
async def deadly(context: Context) -> None:
    """Kills its first worker."""
    if context.fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
