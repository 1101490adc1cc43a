"""Django's own tests of its Tasks and backends (tests/tasks of Django 6.0.1), ported to the backend of Jobmill.

Where Django's ImmediateBackend runs a task at once, `run` lets a worker do it. `enqueued_at` of a result is the clock
of this process until `refresh()`. Tests of Django's other backends (`clear`, `results`, missing features) are left out.

Ported from Django, whose licence is:

Copyright (c) Django Software Foundation and individual contributors.
All rights reserved.

Redistribution and use in source and binary forms, with or without modification,
are permitted provided that the following conditions are met:

    1. Redistributions of source code must retain the above copyright notice,
       this list of conditions and the following disclaimer.

    2. Redistributions in binary form must reproduce the above copyright
       notice, this list of conditions and the following disclaimer in the
       documentation and/or other materials provided with the distribution.

    3. Neither the name of Django nor the names of its contributors may be used
       to endorse or promote products derived from this software without
       specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND
ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT OWNER OR CONTRIBUTORS BE LIABLE FOR
ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES
(INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES;
LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON
ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT
(INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS
SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime
from importlib import import_module
from typing import Any
from unittest import mock

from django.conf import settings
from django.db import transaction
from django.test import SimpleTestCase, override_settings
from django.utils import timezone
from django.utils.module_loading import import_string

from jobmill.django import JobmillBackend, ResultNotJSON, client, task
from jobmill.django.interface import (
    PACKAGE,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from tests.django.shop import tasks as test_tasks

default_task_backend: Any = import_module(PACKAGE).default_task_backend
TaskResultMismatch: Any = import_module(f"{PACKAGE}.exceptions").TaskResultMismatch
InvalidTaskBackend: Any = next(
    value for name, value in vars(import_module(f"{PACKAGE}.exceptions")).items() if name.startswith("InvalidTaskBack")
)
PRIORITY_MESSAGE = "priority must be a whole number between -100 and 100."


def run(result: Any) -> Any:
    """Let a worker run what is due."""
    client().sync.tick(100)
    result.refresh()
    return result


class Case(SimpleTestCase):
    """An empty store, and no transaction around a test: nobody else would see what it enqueues."""

    databases = ("default",)

    def setUp(self) -> None:
        test_tasks.runs.clear()
        client().sync.remove(all=True)


class EnqueueTestCase(Case):
    """test_dummy_backend.py: what happens to a task that no worker has run."""

    def test_using_correct_backend(self) -> None:
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIsInstance(task_backends["default"], JobmillBackend)
        self.assertEqual(default_task_backend.alias, "default")
        self.assertEqual(default_task_backend.options, {"max_attempts": 1})

    def assert_ready(self, result: Any, task: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertIs(result.is_finished, False)
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.last_attempted_at)
        self.assertIsNone(result.finished_at)
        with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
            result.return_value  # noqa: B018
        self.assertEqual(result.task, task)
        self.assertEqual(result.args, args)
        self.assertEqual(result.kwargs, kwargs)
        self.assertEqual(result.attempts, 0)
        self.assertEqual(result.errors, [])

    def test_enqueue_task(self) -> None:
        for one in [test_tasks.noop_task, test_tasks.noop_task_async]:
            with self.subTest(one):
                result = one.enqueue(1, two=3)
                self.assert_ready(result, one, [1], {"two": 3})
                self.assert_ready(default_task_backend.get_result(result.id), one, [1], {"two": 3})

    async def test_enqueue_task_async(self) -> None:
        for one in [test_tasks.noop_task, test_tasks.noop_task_async]:
            with self.subTest(one):
                result = await one.aenqueue()
                self.assert_ready(result, one, [], {})
                self.assert_ready(await default_task_backend.aget_result(result.id), one, [], {})

    def test_get_result(self) -> None:
        result = default_task_backend.enqueue(test_tasks.noop_task, (), {})
        result.refresh()
        self.assertEqual(result, default_task_backend.get_result(result.id))
        self.assertEqual(result, test_tasks.noop_task.get_result(result.id))

    async def test_get_result_async(self) -> None:
        result = await default_task_backend.aenqueue(test_tasks.noop_task, (), {})
        await result.arefresh()
        self.assertEqual(result, await default_task_backend.aget_result(result.id))
        self.assertEqual(result, await test_tasks.noop_task.aget_result(result.id))

    def test_refresh_result(self) -> None:
        result = default_task_backend.enqueue(test_tasks.calculate_meaning_of_life, (), {})
        client().sync.tick()
        self.assertEqual(result.status, TaskResultStatus.READY)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

    async def test_refresh_result_async(self) -> None:
        result = await default_task_backend.aenqueue(test_tasks.calculate_meaning_of_life, (), {})
        await client().tick()
        self.assertEqual(result.status, TaskResultStatus.READY)
        await result.arefresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

    async def test_refreshing_changes_nothing_else(self) -> None:
        result = await test_tasks.noop_task.aenqueue()
        await result.arefresh()
        original_result = dataclasses.asdict(result)
        await asyncio.to_thread(result.refresh)
        self.assertEqual(dataclasses.asdict(result), original_result)
        await result.arefresh()
        self.assertEqual(dataclasses.asdict(result), original_result)

    async def test_get_missing_result(self) -> None:
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result("123")
        with self.assertRaises(TaskResultDoesNotExist):
            await default_task_backend.aget_result("123")
        with self.assertRaises(TaskResultDoesNotExist):
            test_tasks.noop_task.get_result("123")
        with self.assertRaises(TaskResultDoesNotExist):
            await test_tasks.noop_task.aget_result("123")

    def test_get_incorrect_result(self) -> None:
        result = default_task_backend.enqueue(test_tasks.noop_task_async, (), {})
        with self.assertRaisesMessage(TaskResultMismatch, "Task does not match"):
            test_tasks.noop_task.get_result(result.id)

    async def test_get_incorrect_result_async(self) -> None:
        result = await default_task_backend.aenqueue(test_tasks.noop_task_async, (), {})
        with self.assertRaisesMessage(TaskResultMismatch, "Task does not match"):
            await test_tasks.noop_task.aget_result(result.id)

    def test_enqueue_logs(self) -> None:
        with self.assertLogs(f"{PACKAGE}", level="DEBUG") as captured_logs:
            result = test_tasks.noop_task.enqueue()
        self.assertEqual(len(captured_logs.output), 1)
        self.assertIn("enqueued", captured_logs.output[0])
        self.assertIn(result.id, captured_logs.output[0])

    def test_validate_disallowed_async_task(self) -> None:
        with mock.patch.multiple(default_task_backend, supports_async_task=False):
            with self.assertRaisesRegex(InvalidTask, "(?i)Backend does not support async Tasks."):
                default_task_backend.validate_task(test_tasks.noop_task_async)

    def test_check(self) -> None:
        errors = list(default_task_backend.check())
        self.assertEqual(len(errors), 0, errors)

    def test_takes_context(self) -> None:
        result = test_tasks.get_task_id.enqueue()
        self.assertEqual(result.status, TaskResultStatus.READY)

    def test_enqueue_with_invalid_argument(self) -> None:
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            test_tasks.noop_task.enqueue(timezone.now())

    async def test_aenqueue_with_invalid_argument(self) -> None:
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            await test_tasks.noop_task.aenqueue(timezone.now())

    def one_queue(self) -> Any:
        return override_settings(TASKS={"default": {"BACKEND": "jobmill.django.JobmillBackend", "QUEUES": ["queue-1"]}})

    def test_validate_on_enqueue(self) -> None:
        task_with_custom_queue_name = test_tasks.noop_task.using(queue_name="queue_1")
        with self.one_queue():
            with self.assertRaisesMessage(InvalidTask, "Queue 'queue_1' is not valid for backend"):
                task_with_custom_queue_name.enqueue()

    async def test_validate_on_aenqueue(self) -> None:
        task_with_custom_queue_name = test_tasks.noop_task.using(queue_name="queue_1")
        with self.one_queue():
            with self.assertRaisesMessage(InvalidTask, "Queue 'queue_1' is not valid for backend"):
                await task_with_custom_queue_name.aenqueue()

    def test_doesnt_wait_until_transaction_commit_by_default(self) -> None:
        """Ours does: nobody else sees the task before the commit."""
        with transaction.atomic():
            result = test_tasks.noop_task.enqueue()
            self.assertIsNotNone(result.enqueued_at)
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(result.id)
        self.assertEqual(default_task_backend.get_result(result.id).status, TaskResultStatus.READY)


class RunTestCase(Case):
    """test_immediate_backend.py: what a task that has run says."""

    def assert_times(self, result: Any) -> None:
        self.assertIsNotNone(result.started_at)
        self.assertIsNotNone(result.last_attempted_at)
        self.assertIsNotNone(result.finished_at)
        self.assertGreaterEqual(result.started_at, result.enqueued_at)
        self.assertGreaterEqual(result.finished_at, result.started_at)

    def test_enqueue_task(self) -> None:
        for one in [test_tasks.noop_task, test_tasks.noop_task_async, test_tasks.noop_task_from_bare_decorator]:
            with self.subTest(one):
                result = run(one.enqueue(1, two=3))
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertIs(result.is_finished, True)
                self.assert_times(result)
                self.assertIsNone(result.return_value)
                self.assertEqual(result.task, one)
                self.assertEqual(result.args, [1])
                self.assertEqual(result.kwargs, {"two": 3})
                self.assertEqual(result.attempts, 1)

    async def test_enqueue_task_async(self) -> None:
        for one in [test_tasks.noop_task, test_tasks.noop_task_async]:
            with self.subTest(one):
                result = await one.aenqueue()
                await client().tick()
                await result.arefresh()
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertIs(result.is_finished, True)
                self.assert_times(result)
                self.assertIsNone(result.return_value)
                self.assertEqual(result.attempts, 1)

    def test_catches_exception(self) -> None:
        test_data = [
            (test_tasks.failing_task_value_error, ValueError, "This Task failed due to ValueError"),
            (test_tasks.failing_task_system_exit, SystemExit, "This Task failed due to SystemExit"),
            (
                test_tasks.failing_task_keyboard_interrupt,
                KeyboardInterrupt,
                "This Task failed due to KeyboardInterrupt",
            ),
        ]
        for one, exception, message in test_data:
            with self.subTest(one):
                result = run(one.enqueue())
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    result.return_value  # noqa: B018
                self.assertIs(result.is_finished, True)
                self.assert_times(result)
                self.assertEqual(result.errors[0].exception_class, exception)
                traceback = result.errors[0].traceback
                self.assertIs(traceback and traceback.endswith(f"{exception.__name__}: {message}\n"), True, traceback)
                self.assertEqual(result.task, one)
                self.assertEqual(result.args, [])
                self.assertEqual(result.kwargs, {})
                self.assertEqual(result.attempts, 1)

    def test_complex_exception(self) -> None:
        result = run(test_tasks.complex_exception.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            result.return_value  # noqa: B018
        self.assert_times(result)
        self.assertIsNone(result._return_value)
        self.assertEqual(result.errors[0].exception_class, ValueError)
        self.assertIn('ValueError(ValueError("This task failed"))', result.errors[0].traceback)
        self.assertEqual(result.task, test_tasks.complex_exception)

    def test_complex_return_value(self) -> None:
        result = run(test_tasks.complex_return_value.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assert_times(result)
        self.assertIsNone(result._return_value)
        self.assertEqual(result.errors[0].exception_class, ResultNotJSON)
        self.assertTrue(issubclass(ResultNotJSON, TypeError))
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_result(self) -> None:
        result = run(default_task_backend.enqueue(test_tasks.calculate_meaning_of_life, [], {}))
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, 42)

    async def test_result_async(self) -> None:
        result = await default_task_backend.aenqueue(test_tasks.calculate_meaning_of_life, [], {})
        await client().tick()
        await result.arefresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, 42)

    def test_run_logs(self) -> None:
        with self.assertLogs(f"{PACKAGE}", level="DEBUG") as captured_logs:
            result = run(test_tasks.noop_task.enqueue())
        self.assertEqual(len(captured_logs.output), 3)
        self.assertIn("enqueued", captured_logs.output[0])
        self.assertIn(result.id, captured_logs.output[0])
        self.assertIn("state=RUNNING", captured_logs.output[1])
        self.assertIn(result.id, captured_logs.output[1])
        self.assertIn("state=SUCCESSFUL", captured_logs.output[2])
        self.assertIn(result.id, captured_logs.output[2])

    def test_takes_context(self) -> None:
        result = run(test_tasks.get_task_id.enqueue())
        self.assertEqual(result.return_value, result.id)

    def test_context(self) -> None:
        result = run(test_tasks.test_context.enqueue(1))
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)


IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"


@override_settings(
    TASKS={
        **settings.TASKS,
        "any": {"BACKEND": "jobmill.django.JobmillBackend", "QUEUES": []},
        "immediate": {"BACKEND": IMMEDIATE, "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    }
)
class TaskTestCase(Case):
    """test_tasks.py."""

    def test_task_decorator(self) -> None:
        self.assertIsInstance(test_tasks.noop_task, Task)
        self.assertIsInstance(test_tasks.noop_task_async, Task)
        self.assertIsInstance(test_tasks.noop_task_from_bare_decorator, Task)

    def test_using_priority(self) -> None:
        self.assertEqual(test_tasks.noop_task.priority, 0)
        self.assertEqual(test_tasks.noop_task.using(priority=1).priority, 1)
        self.assertEqual(test_tasks.noop_task.priority, 0)

    def test_using_queue_name(self) -> None:
        self.assertEqual(test_tasks.noop_task.queue_name, "default")
        self.assertEqual(test_tasks.noop_task.using(queue_name="queue_1").queue_name, "queue_1")
        self.assertEqual(test_tasks.noop_task.queue_name, "default")

    def test_using_run_after(self) -> None:
        now = timezone.now()
        self.assertIsNone(test_tasks.noop_task.run_after)
        self.assertEqual(test_tasks.noop_task.using(run_after=now).run_after, now)
        self.assertIsNone(test_tasks.noop_task.run_after)

    def test_using_unknown_backend(self) -> None:
        self.assertEqual(test_tasks.noop_task.backend, "default")
        with self.assertRaisesMessage(InvalidTaskBackend, "The connection 'unknown' doesn't exist."):
            test_tasks.noop_task.using(backend="unknown")

    def test_using_missing_backend(self) -> None:
        with self.assertRaisesMessage(
            InvalidTaskBackend, "Could not find backend 'does.not.exist': No module named 'does'"
        ):
            test_tasks.noop_task.using(backend="missing")

    def test_using_creates_new_instance(self) -> None:
        new_task = test_tasks.noop_task.using()
        self.assertEqual(new_task, test_tasks.noop_task)
        self.assertIsNot(new_task, test_tasks.noop_task)

    def test_chained_using(self) -> None:
        now = timezone.now()
        run_after_task = test_tasks.noop_task.using(run_after=now)
        self.assertEqual(run_after_task.run_after, now)
        priority_task = run_after_task.using(priority=10)
        self.assertEqual(priority_task.priority, 10)
        self.assertEqual(priority_task.run_after, now)
        self.assertEqual(run_after_task.priority, 0)

    def test_naive_datetime(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "run_after must be an aware datetime."):
            test_tasks.noop_task.using(run_after=datetime.now())  # noqa: DTZ005

    def test_invalid_priority(self) -> None:
        for priority in (-101, 101, 3.1):
            with self.assertRaisesMessage(InvalidTask, PRIORITY_MESSAGE):
                test_tasks.noop_task.using(priority=priority)
        test_tasks.noop_task.using(priority=100)
        test_tasks.noop_task.using(priority=-100)
        test_tasks.noop_task.using(priority=0)

    def test_unknown_queue_name(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "Queue 'queue-2' is not valid for backend."):
            test_tasks.noop_task.using(queue_name="queue-2")
        # Validation is bypassed when the backend QUEUES is an empty list.
        for backend in ("any", "immediate"):
            other = test_tasks.noop_task.using(queue_name="queue-2", backend=backend)
            self.assertEqual(other.queue_name, "queue-2")

    def test_call_task(self) -> None:
        self.assertEqual(test_tasks.calculate_meaning_of_life.call(), 42)

    async def test_call_task_async(self) -> None:
        self.assertEqual(await test_tasks.calculate_meaning_of_life.acall(), 42)

    async def test_call_async_task(self) -> None:
        self.assertIsNone(await test_tasks.noop_task_async.acall())

    def test_call_async_task_sync(self) -> None:
        self.assertIsNone(test_tasks.noop_task_async.call())

    def test_invalid_function(self) -> None:
        functions: list[Any] = [any, self.test_invalid_function]
        for invalid_function in functions:
            with self.subTest(invalid_function):
                with self.assertRaisesMessage(InvalidTask, "Task function must be defined at a module level."):
                    task()(invalid_function)

    def test_get_backend(self) -> None:
        self.assertEqual(test_tasks.noop_task.backend, "default")
        self.assertIsInstance(test_tasks.noop_task.get_backend(), JobmillBackend)
        immediate_task = test_tasks.noop_task.using(backend="immediate")
        self.assertEqual(immediate_task.backend, "immediate")
        self.assertNotIsInstance(immediate_task.get_backend(), JobmillBackend)

    def test_name(self) -> None:
        self.assertEqual(test_tasks.noop_task.name, "noop_task")
        self.assertEqual(test_tasks.noop_task_async.name, "noop_task_async")

    def test_module_path(self) -> None:
        for one in (test_tasks.noop_task, test_tasks.noop_task_async):
            self.assertEqual(one.module_path, f"tests.django.shop.tasks.{one.name}")
            self.assertIs(import_string(one.module_path), one)

    @override_settings(TASKS={})
    def test_no_backends(self) -> None:
        with self.assertRaises(InvalidTaskBackend):
            test_tasks.noop_task.enqueue()

    def test_task_error_invalid_exception(self) -> None:
        error = run(test_tasks.failing_task_value_error.enqueue()).errors[0]
        object.__setattr__(error, "exception_class_path", "subprocess.run")
        with self.assertRaisesMessage(ValueError, "'subprocess.run' does not reference a valid exception."):
            error.exception_class  # noqa: B018

    def test_task_error_unknown_module(self) -> None:
        error = run(test_tasks.failing_task_value_error.enqueue()).errors[0]
        object.__setattr__(error, "exception_class_path", "does.not.exist")
        with self.assertRaises(ImportError):
            error.exception_class  # noqa: B018

    def test_takes_context_without_taking_context(self) -> None:
        with self.assertRaisesMessage(
            InvalidTask, "Task takes context but does not have a first argument of 'context'."
        ):
            task(takes_context=True)(test_tasks.calculate_meaning_of_life.func)

    def test_immediate_tasks_keep_working(self) -> None:
        """Ours: a task with options of Jobmill on another backend."""
        result = test_tasks.unique_task.using(backend="immediate").enqueue(7)
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
