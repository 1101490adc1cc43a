"""Django's Tasks on Jobmill: a backend, commands, system checks, the dashboard, and recurring tasks."""

from __future__ import annotations

from jobmill.django.backend import JobmillBackend, client, enqueue_many
from jobmill.django.runs import JobmillContext, ResultNotJSON
from jobmill.django.task import JobmillTask, recurring, task

__all__ = [
    "JobmillBackend",
    "JobmillContext",
    "JobmillTask",
    "ResultNotJSON",
    "client",
    "enqueue_many",
    "recurring",
    "task",
]
