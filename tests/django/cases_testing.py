"""Tests of applications: they never touch a real store, and the test kit and Celery's interface know Django."""

from __future__ import annotations

import copy
import json
import os
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

import jobmill
from jobmill.compat.celery import App, chain, group
from jobmill.django import client
from jobmill.django.database import is_same_database
from jobmill.django.interface import task_backends
from jobmill.django.runs import announce_failures
from jobmill.testing import Kit
from tests.django.cases_backend import stored, with_options
from tests.django.cases_ported import Case, run
from tests.django.shop import tasks
from tests.django.test_django import store_url_of

#: Made while the real database is in the settings, as in a module or in `AppConfig.ready`.
jobs = client()
seen: list[Any] = []
jobs.on("succeeded")(lambda event: seen.append(event.name))

app = App(jobs)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(max_retries=0)
def fail() -> None:
    raise KeyError("no such order")


@app.task(bind=True)
def keep_connection(self: Any) -> None:
    tasks.keep_connection.func()


def with_mail(**options: Any) -> Any:
    changed = copy.deepcopy(settings.TASKS)
    changed["mail"] = {"BACKEND": "jobmill.django.JobmillBackend", "OPTIONS": options}
    return override_settings(TASKS=changed)


class RealStoreTestCase(Case):
    """No test reaches the store of production."""

    real = json.loads(os.environ["JOBMILL_TEST_DJANGO"])

    def test_a_url_of_the_same_database(self) -> None:
        before = task_backends["default"].url
        url = store_url_of(self.real)
        self.assertFalse(is_same_database(url, before))
        with with_options(
            url=f"{url}{'&' if '?' in url else '?'}{'pool=4' if 'postgres' in url else 'synchronous=FULL'}"
        ):
            backend = task_backends["default"]
            self.assertTrue(is_same_database(backend.url, before))
            self.assertRegex(backend.url, r"pool=4|synchronous=FULL")
            self.assertEqual(backend.transaction, "join")
            tasks.noop_task.enqueue()
        self.assertEqual(stored(), ["noop_task"])

    def test_another_store_is_refused(self) -> None:
        with with_options(url="redis://:secret@127.0.0.1:1/0"):
            message = r"a test would use the real store of TASKS\['default'\] \(redis://@127.0.0.1:1/0\): .*test_url"
            for use in (tasks.noop_task.enqueue, client().sync.tick, jobs.sync.find):
                with self.assertRaisesRegex(ImproperlyConfigured, message):
                    use()
            call_command("check", databases=["default"])
            with Kit(client()) as kit:
                tasks.noop_task.enqueue()
                kit.drain.sync()
        with with_options(url="redis://127.0.0.1:1/0", test_url="memory://"):
            self.assertEqual(run(tasks.calculate_meaning_of_life.enqueue()).return_value, 42)

    def test_a_database_that_the_tests_do_not_have(self) -> None:
        with with_mail(database="jobs"):
            with self.assertRaisesRegex(ImproperlyConfigured, r"DATABASES\['jobs'\]; .*databases = {'jobs', ...}"):
                tasks.noop_task.using(backend="mail").enqueue()
            with self.assertRaises(ImproperlyConfigured):
                client("mail").sync.find()
            with Kit(client()) as kit:
                result = tasks.calculate_meaning_of_life.using(backend="mail").enqueue()
                kit.enqueued.one(tasks.calculate_meaning_of_life)
                kit.drain.sync()
                result.refresh()
                self.assertEqual(result.return_value, 42)

    def test_a_client_that_a_module_has_kept(self) -> None:
        self.assertIs(jobs, client())
        tasks.noop_task.enqueue()
        self.assertEqual([job.name for job in jobs.sync.find(recurring=False).jobs], [f"{tasks.__name__}.noop_task"])
        with with_options(max_attempts=7):
            self.assertIs(jobs, client())
            self.assertEqual(jobs.handlers[f"{tasks.__name__}.noop_task"].policy.max_attempts, 7)
        self.assertEqual(jobs.handlers[f"{tasks.__name__}.noop_task"].policy.max_attempts, 1)
        self.assertIn(add.name, jobs.handlers)

    def test_hooks_stay(self) -> None:
        seen.clear()
        with with_options():
            run(tasks.noop_task.enqueue())
        self.assertEqual(seen, [f"{tasks.__name__}.noop_task"])

    def test_a_usage_table_is_that_of_the_tests(self) -> None:
        real = jobs.own_store
        jobs.record_usage(real)
        self.addCleanup(jobs._usage_recorders.clear)
        with with_options():
            self.assertNotIn(real, jobs.usage_recorders)

    def test_jobs_go_with_the_rows(self) -> None:
        jobs.sync.tick()
        tasks.unique_task.enqueue(7)
        call_command("flush", interactive=False, verbosity=0)
        self.assertEqual(jobs.sync.find().jobs, [])
        jobs.sync.tick()
        self.assertEqual(len(jobs.sync.find(recurring=True).jobs), 1)


class KitTestCase(TestCase):
    """The kit in a TestCase, which never commits."""

    def setUp(self) -> None:
        self.kit = Kit(client())
        self.kit.__enter__()
        self.addCleanup(self.kit.__exit__, None, None, None)

    def test_a_task_that_waits_for_the_commit(self) -> None:
        with self.assertRaisesRegex(AssertionError, "at all\n1 task waits for the commit .*captureOnCommitCallbacks"):
            tasks.noop_task.enqueue()
            self.kit.enqueued.one(tasks.noop_task)
        with self.captureOnCommitCallbacks(execute=True):
            tasks.noop_task.enqueue()
        self.kit.enqueued.one(tasks.noop_task)
        with self.assertRaisesRegex(AssertionError, "found none.*\n(.*\n)*1 task waits"):
            self.kit.enqueued.one(tasks.count_orders)


@with_options(test_url="memory://")
class MemoryTestCase(TestCase):
    """Jobs in memory go with the rollback of a TestCase."""

    def test_first(self) -> None:
        self.assertEqual(stored(), [])
        with self.captureOnCommitCallbacks(execute=True):
            tasks.unique_task.enqueue(7)
        self.assertEqual(stored(), ["unique_task"])

    test_second = test_first


class KitOfTasksTestCase(Case):
    """Tasks in the kit."""

    def test_delays(self) -> None:
        with Kit(client()) as kit:
            self.assertLess(abs(timezone.now() - kit.clock.now), timedelta(minutes=1))
            kit.clock.advance(100)
            result = tasks.noop_task.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
            kit.enqueued.one(tasks.noop_task, delay="1d")
            kit.drain.sync()
            result.refresh()
            self.assertFalse(result.is_finished)
            kit.travel.sync("1d")
            result.refresh()
            self.assertTrue(result.is_finished)

    def test_arguments_by_name(self) -> None:
        with Kit(client()) as kit:
            tasks.newest_task.enqueue(3)
            tasks.newest_task.enqueue(number=4, version=2)
            for one in ({"number": 3}, {"number": 3, "version": 0}, {"args": [3]}, {"version": 2}, {"number": 4}):
                with self.subTest(one):
                    kit.enqueued.one(tasks.newest_task, **one)
                    with self.assertRaises(AssertionError):
                        kit.enqueued.none(tasks.newest_task, **one)
            with self.assertRaisesMessage(jobmill.InvalidValue, "number, version, args, kwargs"):
                kit.enqueued.none(tasks.newest_task, arg=[3])
            tasks.noop_task.enqueue(1, color="red")
            kit.enqueued.one(tasks.noop_task, color="red")
            kit.enqueued.one(tasks.noop_task, args=[1], kwargs={"color": "red"})
            kit.enqueued.none(tasks.noop_task, color="blue")
            tasks.get_task_id.enqueue()
            with self.assertRaises(jobmill.InvalidValue):
                kit.enqueued.none(tasks.get_task_id, context=1)

    def test_another_store(self) -> None:
        for store in ("memory", "sqlite"):
            with self.subTest(store), Kit(client(), store) as kit:
                with transaction.atomic():
                    tasks.noop_task.enqueue()
                    kit.enqueued.none()
                kit.enqueued.one(tasks.noop_task)


class CeleryTestCase(Case):
    """Celery's interface on the client of Django."""

    def test_transactions(self) -> None:
        for mode in ("join", "on_commit"):
            with self.subTest(mode), with_options(transaction=mode):
                jobs.sync.remove(all=True)
                with self.assertRaises(KeyError), transaction.atomic():
                    add.delay(1, 2)
                    chain(add.s(1, 2), add.s(3)).delay()
                    raise KeyError
                self.assertEqual(stored(), [])
                with transaction.atomic():
                    one = add.delay(1, 2)
                    several = group(add.s(3, 4), add.s(5, 6)).delay()
                    self.assertEqual(stored(), [])
                jobs.sync.tick()
                self.assertEqual((one.get(timeout=0), several.get(timeout=0)), (3, [7, 11]))

    def test_connections_are_closed_after_a_run(self) -> None:
        connection.ensure_connection()
        keep_connection.delay()
        jobs.sync.tick()
        (used,) = tasks.runs
        if connection.vendor == "postgresql":
            self.assertTrue(used.closed)
        else:
            with self.assertRaisesRegex(Exception, "closed database"):
                used.execute("SELECT 1")

    def test_a_failed_job_is_no_error_of_a_hook(self) -> None:
        announce_failures(task_backends["default"])
        with self.assertLogs("jobmill", "WARNING") as logs:
            result = fail.delay()
            jobs.sync.tick()
        self.assertTrue(result.failed())
        self.assertFalse([line for line in logs.output if "hook" in line], logs.output)
