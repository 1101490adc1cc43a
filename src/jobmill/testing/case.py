"""The test kit for unittest."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from jobmill.client.client import Client
from jobmill.errors import JobmillError
from jobmill.testing.clock import ManualClock
from jobmill.testing.drain_jobs import Drain
from jobmill.testing.enqueued_jobs import EnqueuedJobs
from jobmill.testing.faults import MakesCrash, MakesFlakyStore
from jobmill.testing.kit import Kit
from jobmill.testing.run_job import RunJob
from jobmill.testing.travel import Travel


class JobsTestMixin:
    """The kit for any class of tests, such as Django's: `class Tests(JobsTestMixin, TestCase): jobs = shop.jobs`."""

    #: The client of the application.
    jobs: ClassVar[Client]
    #: The store of these tests: memory, sqlite, postgres, redis, mongo, or a URL.
    jobs_store: ClassVar[str] = "memory"

    kit: Kit
    clock: ManualClock
    enqueued: EnqueuedJobs
    drain: Drain
    travel: Travel
    run_job: RunJob
    crash: MakesCrash
    flaky_store: MakesFlakyStore

    def setUp(self) -> None:
        """Give the client an empty store."""
        parent: Any = super()
        parent.setUp()
        if not isinstance(getattr(self, "jobs", None), Client):
            raise JobmillError(f"{type(self).__name__} needs the client of your application: jobs = shop.jobs")
        self.kit = Kit(self.jobs, self.jobs_store)
        self.kit.__enter__()
        case: Any = self
        case.addCleanup(self.kit.__exit__, None, None, None)
        self.clock, self.enqueued = self.kit.clock, self.kit.enqueued
        self.drain, self.travel, self.run_job = self.kit.drain, self.kit.travel, self.kit.run_job
        self.crash, self.flaky_store = self.kit.crash, self.kit.flaky_store


class JobsTestCase(JobsTestMixin, unittest.IsolatedAsyncioTestCase):
    """A class of tests, sync or async, in which the client `jobs` uses an empty store and a clock of the test."""
