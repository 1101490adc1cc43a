"""What the backend promises beyond Django's own tests: transactions, mapping, safety, signals, checks and commands."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from typing import Any
from unittest import mock

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.core.management import CommandError, call_command
from django.db import ConnectionHandler, connection, connections, transaction
from django.test import override_settings
from django.utils import timezone, translation

import jobmill
from jobmill.core.lifecycle import policy
from jobmill.django import client, enqueue_many, recurring, task
from jobmill.django.database import is_same_database, url_of_database
from jobmill.django.interface import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from jobmill.django.runs import announce_failures
from jobmill.testing import Kit
from tests.django.cases_ported import Case, run
from tests.django.shop import tasks
from tests.django.shop.models import Order

PATH = "tests.django.shop.tasks"


def with_options(**options: Any) -> Any:
    changed = copy.deepcopy(settings.TASKS)
    changed["default"]["OPTIONS"] = {"max_attempts": 1, **options}
    return override_settings(TASKS=changed)


def stored() -> list[str]:
    """The names of all jobs that are not recurring, without the path of the module."""
    return sorted(job.name.rpartition(".")[2] for job in client().sync.find(recurring=False).jobs)


class TransactionTestCase(Case):
    """A job exists exactly if the transaction commits."""

    def setUp(self) -> None:
        super().setUp()
        Order.objects.all().delete()

    def test_a_rollback_leaves_no_job(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            Order.objects.create(number=1)
            result = tasks.noop_task.enqueue()
            raise KeyError
        self.assertEqual(stored(), [])
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()

    def test_a_commit_stores_it_with_the_rows(self) -> None:
        with transaction.atomic():
            Order.objects.create(number=1)
            result = tasks.count_orders.enqueue()
            with self.assertRaises(TaskResultDoesNotExist):
                result.refresh()
        self.assertEqual(run(result).return_value, 1)

    def test_an_inner_block_that_is_rolled_back(self) -> None:
        with transaction.atomic():
            tasks.noop_task.enqueue()
            with self.assertRaises(KeyError), transaction.atomic():
                tasks.count_orders.enqueue()
                raise KeyError
        self.assertEqual(stored(), ["noop_task"])

    def test_the_first_call_of_a_process_may_be_in_a_transaction_that_has_written(self) -> None:
        client().sync.close()
        with transaction.atomic():
            Order.objects.create(number=1)
            tasks.noop_task.enqueue()
        self.assertEqual(stored(), ["noop_task"])

    def test_a_broken_transaction_is_refused(self) -> None:
        with self.assertRaises(transaction.TransactionManagementError), transaction.atomic():
            transaction.set_rollback(True)
            tasks.noop_task.enqueue()
        self.assertEqual(stored(), [])

    def test_outside_of_a_transaction_it_is_stored_at_once(self) -> None:
        tasks.noop_task.enqueue()
        self.assertEqual(stored(), ["noop_task"])

    def test_async_code_joins_the_transaction_around_it(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            Order.objects.create(number=1)
            async_to_sync(tasks.noop_task.aenqueue)()
            raise KeyError
        self.assertEqual(stored(), [])
        with transaction.atomic():
            async_to_sync(tasks.noop_task.aenqueue)()
        self.assertEqual(stored(), ["noop_task"])

    async def test_a_transaction_in_a_thread_of_async_code(self) -> None:
        def rolled_back() -> None:
            with transaction.atomic():
                tasks.noop_task.enqueue()
                raise KeyError

        with self.assertRaises(KeyError):
            await sync_to_async(rolled_back)()
        await tasks.count_orders.aenqueue()
        self.assertEqual(await asyncio.to_thread(stored), ["count_orders"])

    def test_a_unique_task_of_the_same_transaction(self) -> None:
        with transaction.atomic():
            first = tasks.unique_task.enqueue(7)
            self.assertEqual(tasks.unique_task.enqueue(7).id, first.id)
        self.assertEqual(stored(), ["unique_task"])

    def test_a_task_that_waits_takes_over_the_newest_arguments(self) -> None:
        first = tasks.newest_task.enqueue(7, version=1)
        again = tasks.newest_task.enqueue(7, version=2)
        self.assertEqual(again.id, first.id)
        self.assertEqual(run(first).return_value, 2)

    @with_options(transaction="on_commit")
    def test_on_commit(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            tasks.noop_task.enqueue()
            raise KeyError
        self.assertEqual(stored(), [])
        with transaction.atomic():
            Order.objects.create(number=1)
            result = tasks.count_orders.enqueue()
            self.assertEqual(stored(), [])
            with self.assertRaises(TaskResultDoesNotExist):
                result.refresh()
        self.assertEqual(run(result).return_value, 1)
        tasks.noop_task.enqueue()
        self.assertEqual(stored(), ["count_orders", "noop_task"])

    @with_options(transaction="on_commit")
    def test_a_unique_key_that_exists_on_commit(self) -> None:
        first = tasks.unique_task.enqueue(7)
        with transaction.atomic():
            second = tasks.unique_task.enqueue(7)
        self.assertNotEqual(second.id, first.id)
        self.assertEqual(stored(), ["unique_task"])
        with self.assertRaises(TaskResultDoesNotExist):
            second.refresh()

    @with_options(transaction="none", url="memory://")  # in the SQLite file, it would wait for the transaction
    def test_none(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            tasks.noop_task.enqueue()
            raise KeyError
        self.assertEqual(stored(), ["noop_task"])

    @with_options(transaction="none")
    async def test_none_in_async_code(self) -> None:
        first = await tasks.unique_task.aenqueue(7)
        self.assertEqual((await tasks.unique_task.aenqueue(7)).id, first.id)

    @with_options(url="memory://")
    def test_a_store_without_transactions_waits_for_the_commit(self) -> None:
        self.assertEqual(task_backends["default"].transaction, "on_commit")
        with self.assertRaises(KeyError), transaction.atomic():
            tasks.noop_task.enqueue()
            raise KeyError
        self.assertEqual(stored(), [])


class MappingTestCase(Case):
    """What a TaskResult says."""

    def test_attempts_and_their_errors(self) -> None:
        result = tasks.succeeds_at_the_third_attempt.enqueue()
        while not result.is_finished:
            run(result)
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 3))
        self.assertEqual((result.attempts, tasks.runs), (3, [1, 2, 3]))
        self.assertEqual([error.exception_class for error in result.errors], [KeyError, KeyError])
        self.assertIn("KeyError: 2", result.errors[1].traceback)
        self.assertEqual(len(result.worker_ids), 3)
        self.assertTrue(all("-" in one for one in result.worker_ids), result.worker_ids)
        self.assertLess(result.started_at, result.last_attempted_at)
        self.assertLess(len(result.id), 64)
        lines = [line.text for line in client().sync.logs(result.id)]
        self.assertEqual(lines, ["attempt 1", "attempt 2", "attempt 3"])

    def test_the_worker_of_a_crash_is_known_when_the_next_attempt_has_ended(self) -> None:
        with Kit(client()) as kit:
            result = tasks.say_workers.enqueue()
            with kit.crash(after="claim") as crashed:
                kit.drain.sync(errors="keep")
            kit.travel.sync(crashed.lease)
            result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.SUCCESSFUL, 2))
        first, second = result.worker_ids
        self.assertEqual(result.return_value, ["unknown", second])
        self.assertNotEqual(first, "unknown")

    def test_fail_ends_the_attempts(self) -> None:
        result = run(tasks.gives_up.enqueue())
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, 1))
        self.assertEqual(result.errors[0].exception_class, jobmill.Fail)

    def test_a_timeout(self) -> None:
        result = run(tasks.never_ends.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual(result.errors[0].exception_class, TimeoutError)

    def test_a_cancelled_task_has_failed(self) -> None:
        result = tasks.noop_task.enqueue()
        client().sync.cancel(result.id)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual(result.errors[0].exception_class, jobmill.errors.JobCancelled)

    def test_async_code_cancels_with_the_client_itself(self) -> None:
        result = tasks.noop_task.enqueue()

        async def cancel() -> None:
            await client().cancel(result.id)

        async_to_sync(cancel)()
        result.refresh()
        self.assertEqual(result.errors[0].exception_class, jobmill.errors.JobCancelled)

    def test_a_held_task_is_ready(self) -> None:
        result = tasks.noop_task.enqueue()
        client().sync.hold(result.id)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.READY)

    def test_queue_priority_and_time(self) -> None:
        later = timezone.now().replace(microsecond=0) + timedelta(hours=1)
        given = tasks.noop_task.using(queue_name="queue_1", priority=-5, run_after=later)
        result = given.enqueue()
        job = client().sync.get(result.id)
        self.assertEqual((job.name, job.queue, job.priority), (f"{PATH}.noop_task", "queue_1", 105))
        self.assertEqual(job.due_at, later)
        self.assertEqual(task_backends["default"].get_result(result.id).task, given)
        self.assertEqual(run(result).status, TaskResultStatus.READY)

    def test_tasks_with_a_larger_priority_run_first(self) -> None:
        numbers = {number: tasks.noop_task.using(priority=number).enqueue() for number in (0, -100, 100, 1)}
        for _ in numbers:
            client().sync.tick(1)
        finished = {}
        for number, result in numbers.items():
            result.refresh()
            finished[number] = (result.started_at, result.finished_at)
        self.assertEqual(sorted(finished, key=lambda number: finished[number]), [100, 1, 0, -100])

    def test_unique_key_and_tenant_come_from_the_arguments(self) -> None:
        first, other = tasks.unique_task.enqueue(7), tasks.unique_task.enqueue(8)
        again = tasks.unique_task.enqueue(number=7)
        self.assertEqual(again.id, first.id)
        self.assertNotEqual(other.id, first.id)
        job = client().sync.get(first.id)
        self.assertEqual((job.unique_key, job.tenant), ("order-7", "customer-7"))
        self.assertEqual(run(again).status, TaskResultStatus.SUCCESSFUL)

    def test_a_lane_comes_from_the_arguments(self) -> None:
        jobs = client().sync
        self.assertEqual(jobs.get(tasks.lane_task.enqueue(7).id).lane, "customer-7")
        self.assertIsNone(jobs.get(tasks.lane_task.enqueue(number=0).id).lane)
        self.assertEqual(jobs.get(tasks.lane_task.using(lane="other").enqueue(7).id).lane, "other")
        self.assertEqual(jobs.get(tasks.noop_task.using(lane="noop").enqueue().id).lane, "noop")
        with self.assertRaisesMessage(InvalidTask, "lane: expected a text of 1 to 255 characters"):
            tasks.noop_task.using(lane="")

    def test_options_of_a_task_the_settings_and_the_backend(self) -> None:
        given = {f"{PATH}.noop_task": {"max_attempts": 7, "timeout": "5s"}}
        with with_options(tasks=given, max_attempts=2, keep_failed="1h"):
            job = client().sync.get(tasks.noop_task.enqueue().id)
            self.assertEqual((job.options.max_attempts, job.options.timeout_ms), (7, 5_000))
            self.assertEqual(job.options.keep_failed, jobmill.Keep(age_ms=3_600_000))
            self.assertEqual(client().sync.get(tasks.count_orders.enqueue().id).options.max_attempts, 2)
            self.assertEqual(client().sync.get(tasks.gives_up.enqueue().id).options.max_attempts, 3)
            once = tasks.gives_up.using(max_attempts=9, priority=3)
            self.assertEqual(client().sync.get(once.enqueue().id).options.max_attempts, 9)

    def test_tasks_that_collide_are_retried_at_different_times(self) -> None:
        for one, expected in ((tasks.noop_task, 0.5), (tasks.raises, 0.0)):  # the second has a backoff of its own
            job = client().sync.get(one.enqueue("key").id)
            self.assertEqual(policy(job.options).backoff.jitter, expected)
        self.assertEqual(client().handlers[f"{PATH}.noop_task"].policy.backoff.jitter, 0.5)

    def test_errors_that_are_not_retried(self) -> None:
        for given, expected in (("value", 1), ("key", 3), ("unicode", 1)):
            with self.subTest(given):
                result = tasks.raises.enqueue(given)
                while not result.is_finished:
                    run(result)
                self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, expected))
        options = {f"{PATH}.failing_task_value_error": {"fail_on": ValueError, "max_attempts": 3}}
        with with_options(tasks=options, retry_on=LookupError):
            self.assertEqual(run(tasks.failing_task_value_error.enqueue()).status, TaskResultStatus.FAILED)
            self.assertEqual(client().handlers[f"{PATH}.noop_task"].retry_on, (LookupError,))
        with self.assertRaisesMessage(TypeError, "retry_on is an option of @task only"):
            tasks.noop_task.using(retry_on=KeyError)

    def test_wrong_options_are_refused_where_they_are_given(self) -> None:
        for wrong in ({"max_attempts": 0}, {"timeout": "soon"}, {"backoff": print}, {"unique_key": ""}):
            with self.subTest(wrong), self.assertRaisesMessage(InvalidTask, next(iter(wrong))):
                tasks.noop_task.using(**wrong)
        with self.assertRaises(TypeError):
            task(run_after=timezone.now())(tasks.noop_task.func)
        for name, message in (
            ("queue", "the queue of a task is queue_name"),
            ("max_retries", "max_attempts counts the first attempt"),
            ("cron", "write @recurring"),
            ("speed", "it has backend, backoff"),
        ):
            with self.assertRaisesMessage(TypeError, f"a task has no {name!r}: {message}"):
                task(tasks.noop_task.func, **{name: "1"})
        with self.assertRaisesMessage(TypeError, "write .using(run_after=timezone.now() + timedelta(...))"):
            tasks.noop_task.using(countdown=5)
        with self.assertRaisesMessage(TypeError, "run_after is a time, not a duration"):
            tasks.noop_task.using(run_after=timedelta(minutes=5))


class ArgumentsTestCase(Case):
    """Mistakes in a call are found where the call is, not in a worker."""

    def test_arguments_that_the_function_does_not_take(self) -> None:
        wrong: tuple[tuple[Any, tuple[Any, ...], dict[str, Any], str], ...] = (
            (
                tasks.calculate_meaning_of_life,
                (1,),
                {},
                "calculate_meaning_of_life(): too many positional arguments",
            ),
            (tasks.unique_task, (), {}, "unique_task(number: 'int'): missing a required argument: 'number'"),
            (tasks.unique_task, (), {"no": 1}, "unique_task(number: 'int'): "),
            (tasks.get_task_id, (1,), {}, "get_task_id(): too many positional arguments"),
        )
        for one, args, kwargs, message in wrong:
            with self.subTest(one.module_path), self.assertRaisesMessage(TypeError, message):
                one.enqueue(*args, **kwargs)
            with self.subTest(one.module_path), self.assertRaisesMessage(TypeError, message):
                async_to_sync(one.aenqueue)(*args, **kwargs)
        self.assertEqual(stored(), [])
        tasks.get_task_id.enqueue()
        self.assertEqual(stored(), ["get_task_id"])

    def test_a_function_for_an_option_that_takes_other_arguments(self) -> None:
        with self.assertRaisesMessage(TypeError, f"unique_key of {PATH}.unique_task: "):
            tasks.unique_task.using(unique_key=lambda: "one").enqueue(1)
        self.assertEqual(stored(), [])

    def test_a_queue_that_the_settings_do_not_have(self) -> None:
        message = f"{PATH}.noop_task: add 'later' to QUEUES of TASKS['default'], which has 'default', 'queue_1'"
        with self.assertRaisesMessage(InvalidTask, message):
            tasks.noop_task.using(queue_name="later")


class FlowTestCase(Case):
    """Tasks that wait for other tasks."""

    def drain(self) -> None:
        while client().sync.tick().claimed:
            pass

    def test_results_of_other_tasks_are_arguments(self) -> None:
        parts = client().group(tasks.add.draft([number, number]) for number in (1, 2, 3))
        last = tasks.add.enqueue(parts.results, offset=tasks.add.draft([10]).result)
        self.assertEqual(stored(), ["add"] * 5)
        self.assertEqual(last.args, client().sync.get(last.id).payload["args"])
        self.drain()
        last.refresh()
        self.assertEqual(last.return_value, 22)

    def test_drafts_join_the_transaction(self) -> None:
        for mode in ("join", "on_commit"):
            with self.subTest(mode), with_options(transaction=mode):
                before = stored()
                with self.assertRaises(KeyError), transaction.atomic():
                    enqueue_many([tasks.add.draft([1])])
                    raise KeyError
                self.assertEqual(stored(), before)
                with transaction.atomic():
                    first = tasks.add.draft([1])
                    enqueue_many([first, tasks.add.draft([2]).after(first), tasks.add.draft([3])])
                self.assertEqual(stored(), [*before, *["add"] * 3])
                self.drain()
                self.assertEqual(sum(one.count for one in client().sync.count(states=["succeeded"])), len(before) + 3)

    def test_what_cannot_wait(self) -> None:
        part = tasks.add.draft([1])
        with self.assertRaisesMessage(TypeError, "unique_key of tests.django.shop.tasks.unique_task is a function"):
            tasks.unique_task.draft(part.result)
        self.assertEqual(tasks.unique_task.using(unique_key="a", tenant="b").draft(part.result).options.unique_key, "a")
        with self.assertRaisesMessage(TypeError, "too many positional arguments"):
            tasks.add.draft(part.result, 1, 2)  # type: ignore[call-arg]

    def test_a_task_runs_others_and_continues(self) -> None:
        result = tasks.add_squares.enqueue([1, 2, 3])
        self.drain()
        result.refresh()
        self.assertEqual((result.return_value, stored()), (14, [*["add"] * 3, "add_squares"]))


class SafetyTestCase(Case):
    """No job can make a process import or run what is not a Task."""

    def test_a_function_that_is_not_a_task(self) -> None:
        jobs = client()
        for name in (f"{PATH}.not_a_task", "antigravity.fly", "os.system", "send", f"{PATH}.Order"):
            with self.subTest(name):
                id = jobs.sync.enqueue(name, {"args": [], "kwargs": {}}).id
                with self.assertRaisesMessage(SuspiciousOperation, f"'{name}' is not the path of a Task"):
                    task_backends["default"].get_result(id)
                jobs.sync.tick(100)
                self.assertEqual(jobs.sync.get(id).state, "waiting")
                self.assertEqual(jobs.sync.get(id).claims, 0)
        self.assertNotIn("antigravity", sys.modules)
        self.assertEqual(tasks.runs, [])

    def test_a_task_that_no_worker_could_find_is_refused(self) -> None:
        hidden = task()(tasks.not_a_task)  # its path is that of the function
        with self.assertRaisesMessage(InvalidTask, "a worker cannot find this task"):
            hidden.enqueue()
        with mock.patch.object(tasks.not_a_task, "__module__", "__main__"):
            with self.assertRaisesMessage(InvalidTask, "a worker cannot find this task"):
                task()(tasks.not_a_task).enqueue()


class RunTestCase(Case):
    """What is around a run."""

    def test_connections_are_closed_after_a_run(self) -> None:
        for one in (tasks.keep_connection, tasks.keep_connection_async):
            with self.subTest(one):
                tasks.runs.clear()
                run(one.enqueue())
                (used,) = tasks.runs
                if connection.vendor == "postgresql":
                    self.assertTrue(used.closed)
                else:
                    with self.assertRaisesRegex(Exception, "closed database"):
                        used.execute("SELECT 1")
                self.assertIsNot(used, connection.connection)

    def test_connections_that_are_too_old_are_closed_before_a_run(self) -> None:
        job = client().sync.get(tasks.keep_connection.enqueue().id)
        connection.ensure_connection()
        before, connection.close_at = connection.connection, 0
        client().handlers[job.name](jobmill.Context(job, lambda _: None))  # in this thread
        (used,) = tasks.runs
        self.assertIsNot(used, before)

    def test_async_tasks_use_the_database(self) -> None:
        Order.objects.all().delete()
        Order.objects.create(number=1)
        self.assertEqual(run(tasks.count_orders_async.enqueue()).return_value, 1)

    async def test_each_run_begins_in_the_language_of_the_settings(self) -> None:
        with translation.override("fr"):  # as a test or a command has it around a worker
            for one in (tasks.say_language, tasks.say_language, tasks.say_language_async):
                result = await one.aenqueue()
                await client().tick()
                await result.arefresh()
                self.assertEqual(result.return_value, "en-us")

    def test_a_task_may_enqueue_another(self) -> None:
        Order.objects.all().delete()
        run(tasks.make_order.enqueue(5))
        self.assertEqual(Order.objects.get().number, 5)

    def test_signals(self) -> None:
        announce_failures(task_backends["default"])
        seen: list[Any] = []

        def on_started(task_result: Any, sender: Any, **_: Any) -> None:
            seen.append((task_result.task.name, "started", task_result.attempts))

        def on_finished(task_result: Any, sender: Any, **_: Any) -> None:
            seen.append((task_result.task.name, str(task_result.status), task_result.attempts))

        task_started.connect(on_started)
        task_finished.connect(on_finished)
        self.addCleanup(task_started.disconnect, on_started)
        self.addCleanup(task_finished.disconnect, on_finished)
        result = tasks.succeeds_at_the_third_attempt.enqueue()
        while not result.is_finished:
            run(result)
        name = "succeeds_at_the_third_attempt"
        self.assertEqual(seen, [(name, "started", n) for n in (1, 2, 3)] + [(name, "SUCCESSFUL", 3)])
        seen.clear()
        run(tasks.gives_up.enqueue())
        self.assertEqual(seen, [("gives_up", "started", 1), ("gives_up", "FAILED", 1)])
        seen.clear()
        run(tasks.noop_task_async.enqueue())
        self.assertEqual(seen, [("noop_task_async", "started", 1), ("noop_task_async", "SUCCESSFUL", 1)])
        seen.clear()
        tasks.runs.clear()
        result = run(tasks.notices_its_timeout.enqueue())
        while not tasks.runs:  # the thread continues after the attempt has errored
            time.sleep(0.005)
        run(tasks.noop_task.enqueue())
        self.assertNotIn(("notices_its_timeout", "SUCCESSFUL", 1), seen)
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def test_a_signal_that_fails_is_no_error_of_the_task(self) -> None:
        def broken(**_: Any) -> None:
            raise KeyError

        task_started.connect(broken)
        self.addCleanup(task_started.disconnect, broken)
        with self.assertLogs("django.dispatch", "ERROR"):
            self.assertEqual(run(tasks.calculate_meaning_of_life.enqueue()).return_value, 42)

    @with_options()  # another client, which has not stated its recurring tasks yet
    def test_recurring(self) -> None:
        client().sync.tick()
        (job,) = client().sync.find(recurring=True).jobs
        self.assertEqual((job.name, job.queue, job.priority), (f"{PATH}.nightly", "queue_1", 93))
        assert job.recurrence is not None
        self.assertEqual((job.recurrence.cron, job.recurrence.timezone), ("0 3 * * *", "Europe/Berlin"))
        self.assertEqual(task_backends["default"].get_result(job.id).status, TaskResultStatus.READY)
        client().sync.reschedule(job.id, delay="0s")
        client().sync.tick(queues=["queue_1"])
        self.assertEqual(tasks.runs, ["nightly"])
        for one, message in (
            (tasks.unique_task, "unique_task recurs, so it is called without arguments: missing a required argument"),
            (tasks.nightly, "nightly has two @recurring"),
        ):
            with self.assertRaisesMessage(InvalidTask, message):
                recurring(every="1h")(one)
        with self.assertRaisesMessage(InvalidTask, "@recurring needs a cron expression or every="):
            recurring()(tasks.noop_task)
        for wrong in ({"cron": "often"}, {"every": "1h", "cron": "0 3 * * *"}):
            with self.subTest(wrong), self.assertRaises(InvalidTask):
                recurring(**wrong)(tasks.noop_task)
        with self.assertRaisesMessage(InvalidTask, "write it above @task"):
            recurring("0 3 * * *")(tasks.not_a_task)

    def test_a_task_that_only_using_brings_to_a_backend(self) -> None:
        changed = {**settings.TASKS, "other": {"BACKEND": "jobmill.django.JobmillBackend"}}
        with override_settings(TASKS=changed):
            self.assertEqual(client("other").handlers, {})  # the same store: the worker of "default" runs them
        changed["other"]["OPTIONS"] = {"url": "memory://"}
        with override_settings(TASKS=changed):
            result = tasks.calculate_meaning_of_life.using(backend="other").enqueue()
            client("other").sync.tick()
            result.refresh()
            self.assertEqual(result.return_value, 42)
            self.assertEqual(client("other").sync.find(recurring=True).jobs, [])

    def test_the_test_kit_takes_a_task(self) -> None:
        with Kit(client()) as kit:
            tasks.unique_task.enqueue(7)
            self.assertEqual(kit.enqueued.one(tasks.unique_task, args=[7]).name, f"{PATH}.unique_task")
            kit.enqueued.none(tasks.noop_task)

    def test_one_attempt_with_the_test_kit(self) -> None:
        with Kit(client()) as kit:
            self.assertEqual(kit.run_job.sync(tasks.calculate_meaning_of_life).result, 42)
            run = kit.run_job.sync(tasks.raises, what="key")
            self.assertEqual((run.outcome, type(run.error)), ("errored", KeyError))

    def test_a_rollback_with_the_test_kit(self) -> None:
        with Kit(client()) as kit:
            with self.assertRaises(KeyError), transaction.atomic():
                tasks.noop_task.enqueue()
                raise KeyError
            kit.enqueued.none()
            with transaction.atomic():
                tasks.noop_task.enqueue()
                kit.enqueued.none()
            kit.enqueued.one(tasks.noop_task)


class ChecksTestCase(Case):
    """`manage.py check`."""

    def ids(self, **options: Any) -> list[str]:
        with with_options(**options):
            return [str(message.id) for message in checks.run_checks() if str(message.id).startswith("jobmill")]

    def test_paths_of_tasks(self) -> None:
        self.assertEqual(self.ids(tasks={f"{PATH}.noop_task": {}}), [])
        wrong: dict[str, Any] = {f"{PATH}.noop_tsak": {}, "elsewhere": {}}
        with with_options(tasks=wrong):
            first, second = [one for one in checks.run_checks() if str(one.id) == "jobmill.W004"]
        self.assertIn(f"'{PATH}.noop_tsak', which is not the path of a Task", first.msg)
        self.assertEqual(first.hint, f"The nearest path is '{PATH}.noop_task'.")
        self.assertIn("modules named tasks", str(second.hint))

    def test_options(self) -> None:
        self.assertEqual(self.ids(), [])
        self.assertEqual(self.ids(transaction="join"), [])
        self.assertEqual(self.ids(transaction="join", url="memory://"), ["jobmill.E003"])
        self.assertEqual(self.ids(transaction="on_commit", url="memory://"), [])
        self.assertEqual(self.ids(url="mysql://there"), ["jobmill.E002"])
        wrong: dict[str, Any]
        for wrong in (
            {"transaction": "later"},
            {"max_attempts": 0},
            {"retry_on": "KeyError"},
            {"database": "missing"},
            {"priority_base": 5},
            {"tasks": {"shop.send": {"priority": 1}}},
            {"tasks": ["shop.send"]},
            {"speed": "high"},
        ):
            with self.subTest(wrong):
                self.assertEqual(self.ids(**wrong), ["jobmill.E004"])

    def test_sqlite_needs_transactions_that_begin_with_the_lock(self) -> None:
        for mode in (None, "DEFERRED", "IMMEDIATE"):
            expected = ["jobmill.W005"] if connection.vendor == "sqlite" and mode != "IMMEDIATE" else []
            with self.subTest(mode), mock.patch.dict(connection.settings_dict, {"OPTIONS": {"transaction_mode": mode}}):
                self.assertEqual(self.ids(), expected)

    def test_sqlite_cannot_enqueue_beside_a_transaction(self) -> None:
        expected = ["jobmill.W006"] if connection.vendor == "sqlite" else []
        self.assertEqual(self.ids(transaction="none"), expected)
        self.assertEqual(self.ids(transaction="none", url="memory://"), [])

    def test_keys_that_nothing_reads(self) -> None:
        with override_settings(TASKS={"default": {**settings.TASKS["default"], "OPTION": {}}}):
            (found,) = [one for one in checks.run_checks() if str(one.id).startswith("jobmill")]
        self.assertEqual((found.id, found.hint), ("jobmill.W008", "Did you mean 'OPTIONS'?"))

    def test_another_name_of_the_same_server(self) -> None:
        with mock.patch("jobmill.django.checks.url_of_database", return_value="postgresql://db/shop"):
            self.assertEqual(self.ids(url="postgresql://10.0.0.1:5432/shop"), ["jobmill.W007"])
            self.assertEqual(self.ids(url="postgresql://10.0.0.1/other"), [])
            self.assertEqual(self.ids(url="postgresql://10.0.0.1/shop", transaction="on_commit"), [])

    def test_a_check_writes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder, with_options(test_url=f"sqlite:///{folder}/new.db"):
            found = [one.id for one in checks.run_checks(databases=["default"]) if "jobmill" in str(one.id)]
            self.assertEqual((found, os.listdir(folder)), (["jobmill.W001"], []))
            if connection.vendor == "sqlite":
                self.assertEqual(self.ids(transaction="join", url=f"sqlite:///{folder}/new.db"), ["jobmill.E003"])
        with mock.patch.object(connection.introspection, "table_names", return_value=["auth_user"]):
            found = [one.id for one in checks.run_checks(databases=["default"]) if "jobmill" in str(one.id)]
        self.assertEqual(found, ["jobmill.W001"] if connection.vendor == "sqlite" else [])

    def test_a_role_that_may_not_read_the_store(self) -> None:
        with mock.patch.object(client().store, "depths", side_effect=jobmill.StoreError("permission denied")):
            messages = checks.run_checks(databases=["default"])
        self.assertEqual([one.id for one in messages if "jobmill" in str(one.id)], ["jobmill.W003"])

    def test_a_missing_driver(self) -> None:
        with mock.patch.dict(sys.modules, {"pymongo": None}):
            self.assertEqual(self.ids(url="mongodb://there/jobs"), ["jobmill.E001"])

    def test_a_database_without_a_store_needs_a_url(self) -> None:
        with mock.patch("jobmill.django.store_now.url_of_database", return_value=None):
            self.assertEqual(self.ids(), ["jobmill.E002"])
            with mock.patch.dict("os.environ", {"JOBMILL_URL": "memory://"}):
                self.assertEqual(self.ids(), [])

    def test_the_store(self) -> None:
        def found() -> list[str]:
            messages = checks.run_checks(databases=["default"])
            return [str(message.id) for message in messages if str(message.id).startswith("jobmill")]

        self.assertEqual(found(), [])
        tasks.noop_task.enqueue()
        self.assertEqual(found(), ["jobmill.W002"])
        if connection.vendor == "postgresql":
            schema = task_backends["default"].url + ("&" if "?" in task_backends["default"].url else "?")
            with with_options(url=f"{schema}schema=other"):
                self.assertEqual(found(), ["jobmill.W001"])
                with self.assertRaisesMessage(jobmill.SchemaTooOld, "run manage.py migrate"):
                    tasks.noop_task.enqueue()
                with self.assertRaisesMessage(jobmill.SchemaTooOld, "run manage.py migrate"):
                    task_backends["default"].get_result("missing")
                call_command("jobmill", "migrate")
                client().sync.close()
                self.assertEqual(found(), [])

    def test_remedies_name_the_backend_and_the_database(self) -> None:
        changed = copy.deepcopy(settings.TASKS)
        changed["mail"] = copy.deepcopy(changed["default"])
        with override_settings(TASKS=changed):
            tasks.noop_task.enqueue()
            hints = [message.hint for message in checks.run_checks(databases=["default"])]
            self.assertIn("Run manage.py jobmill worker --backend mail.", hints)
            self.assertIn("Run manage.py jobmill worker.", hints)
            self.assertEqual(task_backends["mail"].migrate_command, "manage.py migrate")
            with (
                mock.patch.object(task_backends["mail"], "database", "other"),
                mock.patch.dict(connections.settings, {"other": connections.settings["default"]}),
            ):
                self.assertEqual(task_backends["mail"].migrate_command, "manage.py migrate --database other")
        changed["mail"]["OPTIONS"]["url"] = "memory://"
        with override_settings(TASKS=changed):
            self.assertEqual(task_backends["mail"].migrate_command, "manage.py jobmill migrate --backend mail")


class DatabaseTestCase(Case):
    """URLs of databases."""

    def url(self, vendor: str, **given: Any) -> str | None:
        handler = ConnectionHandler({"default": {"ENGINE": f"django.db.backends.{vendor}", **given}})
        with mock.patch("jobmill.django.database.connections", handler):
            return url_of_database("default")

    def test_urls(self) -> None:
        self.assertEqual(self.url("sqlite3", NAME="/a/b c#.db"), "sqlite:////a/b%20c%23.db")
        self.assertEqual(self.url("sqlite3", NAME=":memory:"), "memory://")
        self.assertEqual(self.url("sqlite3", NAME="file:memorydb?mode=memory&cache=shared"), "memory://")
        postgres = {"NAME": "shop", "USER": "a@b", "PASSWORD": "p:/?#", "HOST": "db", "PORT": 6432}
        self.assertEqual(self.url("postgresql", **postgres), "postgresql://a%40b:p%3A%2F%3F%23@db:6432/shop")
        there = self.url("postgresql", NAME="shop", HOST="::1", OPTIONS={"sslmode": "require", "pool": True})
        self.assertEqual(there, "postgresql://[::1]/shop?sslmode=require")
        socket = self.url("postgresql", NAME="shop", HOST="/run/pg", PORT="5433")
        self.assertEqual(socket, "postgresql:///shop?host=%2Frun%2Fpg&port=5433")
        for wrong in ({"NAME": ""}, {"NAME": "a", "OPTIONS": {"service": "shop"}}):
            with self.assertRaisesMessage(ImproperlyConfigured, 'OPTIONS["url"]'):
                self.url("postgresql", **wrong)
        with self.assertRaisesMessage(ImproperlyConfigured, 'OPTIONS["url"]'):
            self.url("sqlite3", NAME="file:shop.db?mode=rw", OPTIONS={"uri": True})

    def test_the_url_follows_the_database_that_a_test_runner_chooses(self) -> None:
        backend = task_backends["default"]
        before, jobs, store = backend.url, backend.client, backend.client.store
        with mock.patch.dict(connection.settings_dict, {"NAME": "/another/database"}):
            self.assertIn("another", backend.url)
            self.assertIsNot(jobs.own_store, store)
        self.assertEqual(backend.url, before)
        self.assertIs(jobs.own_store, store)
        with mock.patch("jobmill.django.store_now.url_of_database", return_value=None):
            for url in ("memory://", "sqlite:////other.db"):
                with mock.patch.dict(os.environ, {"JOBMILL_URL": url}):
                    self.assertEqual(backend.url, url)
        self.assertEqual(backend.url, before)

    def test_the_same_database(self) -> None:
        self.assertTrue(is_same_database("sqlite:////a/b.db", "sqlite:////a/../a/b.db?synchronous=NORMAL"))
        self.assertFalse(is_same_database("sqlite:////a/b.db", "sqlite:////a/c.db"))
        self.assertTrue(is_same_database("postgresql://a@db/shop?schema=x", "postgres://b@db:5432/shop"))
        self.assertTrue(is_same_database("postgresql://localhost/shop", "postgresql://127.0.0.1:5432/shop"))
        self.assertFalse(is_same_database("postgresql://a@db/shop", "postgresql://a@db/other"))
        self.assertFalse(is_same_database("redis://db", "redis://db"))


class CommandTestCase(Case):
    """`manage.py jobmill`; worker processes are in test_example.py."""

    def out(self, *arguments: str) -> str:
        with redirect_stdout(io.StringIO()) as out:
            call_command("jobmill", *arguments)
        return out.getvalue()

    def test_commands_use_the_store_of_the_settings(self) -> None:
        id = tasks.noop_task.enqueue().id
        self.assertEqual([job["id"] for job in json.loads(self.out("jobs", "list", "--json"))], [id])
        self.assertIn("up to date", self.out("migrate"))
        with redirect_stdout(io.StringIO()) as out, suppress(CommandError):  # the server of tests has problems
            call_command("jobmill", "doctor")
        self.assertIn("reachable", out.getvalue())
        self.assertIn("--queue", self.out("worker", "--help"))
        self.assertIn("leave out MODULE:CLIENT", self.out("worker", "--help"))
        self.assertIn("--backend NAME", self.out())
        self.assertIn('jobmill_queue_jobs{queue="default",state="due"} 1', self.out("metrics"))

    def test_enqueue_has_the_queue_and_the_priority_of_the_task(self) -> None:
        path = "tests.django.depot.tasks.parcels.pack"
        for options, expected in (
            ((), ("queue_1", 97)),
            (("--priority", "5", "--queue=default"), ("default", 5)),
        ):
            id = self.out("enqueue", path, '{"args": [1]}', *options).split()[0]
            job = client().sync.get(id)
            self.assertEqual((job.queue, job.priority), expected)
        with self.assertRaisesMessage(CommandError, f"is not the path of a Task; the nearest path is '{path}'"):
            self.out("enqueue", f"{path}s")
        self.assertNotIn("tests.django.depot.tasks.test_parcels", sys.modules)

    def test_a_worker_for_a_queue_of_another_backend(self) -> None:
        changed = {**settings.TASKS, "mail": {**settings.TASKS["default"], "QUEUES": ["urgent"]}}
        ran = mock.patch("jobmill.django.management.commands.jobmill.main.main")
        with override_settings(TASKS=changed), ran, redirect_stderr(io.StringIO()) as errors:
            for queue in ("queue_1", "urgent", "other"):
                call_command("jobmill", "worker", "--queue", queue, stderr=errors)
        self.assertEqual(
            errors.getvalue().splitlines(),
            [
                "QUEUES of TASKS['default'] does not have the queue 'urgent'; add --backend mail",
                "QUEUES of TASKS['default'] does not have the queue 'other'",
            ],
        )

    def test_times_are_those_of_the_settings(self) -> None:
        later = timezone.now().replace(year=timezone.now().year + 1, month=1, day=1, hour=20)
        id = tasks.noop_task.using(run_after=later).enqueue().id
        with override_settings(TIME_ZONE="Asia/Tokyo"):
            shown = self.out("jobs", "why", id)
        self.assertIn(f"{later.year}-01-02 05:{later:%M:%S} JST", shown)

    def test_remedies_name_the_command_of_django(self) -> None:
        id = tasks.noop_task.enqueue().id
        client().sync.queue("default").pause()
        self.addCleanup(client().sync.queue("default").resume)
        shown = self.out("jobs", "why", id)
        self.assertIn("resume it: manage.py jobmill queues resume default", shown)
        self.assertIn("start one: manage.py jobmill worker\n", shown)
        self.assertNotIn("JOBMILL_URL", self.out())
        old = mock.patch("jobmill.cli.jobs.run", side_effect=jobmill.SchemaTooOld("old; run `jobmill migrate`"))
        with old, redirect_stderr(io.StringIO()) as errors, self.assertRaises(CommandError):
            self.out("jobs", "list")
        self.assertEqual(errors.getvalue(), "jobmill: old; run `manage.py jobmill migrate`\n")

    def test_wrong_calls(self) -> None:
        with self.assertRaises(CommandError) as raised:
            self.out("jobs", "show", "missing")
        self.assertEqual(raised.exception.returncode, 1)
        with self.assertRaisesMessage(CommandError, "TASKS['mail'] is not a backend of Jobmill; these are: default"):
            call_command("jobmill", "doctor", backend="mail")
        with self.assertRaisesMessage(ImproperlyConfigured, "is not a backend of Jobmill"), self.immediate():
            client()

    def immediate(self) -> Any:
        from tests.django.cases_ported import IMMEDIATE

        return override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}})

    def test_the_schema_of_a_test_database_is_there(self) -> None:
        real = json.loads(os.environ["JOBMILL_TEST_DJANGO"])["NAME"]
        self.assertNotEqual(connections["default"].settings_dict["NAME"], real)
        self.assertIn(str(connections["default"].settings_dict["NAME"]), task_backends["default"].url)
        self.assertEqual(client().sync(client().store.migrate()), [])
