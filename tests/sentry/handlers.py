"""Handlers that raise in isolated processes, and an application for processes that the tests start."""

from __future__ import annotations

import os
import sys

import sentry_sdk

import jobmill
from jobmill.sentry import JobmillIntegration
from tests.sentry.recorded import DSN, Recorded

jobs = jobmill.connect(os.environ.get("JOBMILL_URL", "memory://"))

if "SENTRY_RECORDED" in os.environ:
    sentry_sdk.init(
        dsn=DSN,
        transport=Recorded(os.environ["SENTRY_RECORDED"]),
        auto_enabling_integrations=False,
        integrations=[JobmillIntegration(jobs)],
    )


class OutOfPaper(Exception):
    pass


@jobs.handler(isolate=True, max_attempts=1)
def prints(page: int) -> None:
    try:
        raise KeyError(page)
    except KeyError:
        raise OutOfPaper("tray 2\nand tray 3") from None


@jobs.handler(isolate=True, max_attempts=1)
def dies() -> None:
    sys.stdout.flush()
    os.abort()


@jobs.handler(max_crashes=1)
def hangs() -> None:
    print("hanging", flush=True)
    sys.stdin.read()
