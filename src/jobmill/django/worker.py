"""The client that workers use: `jobmill worker jobmill.django.worker:jobs`, as `manage.py jobmill worker` runs it.

DJANGO_SETTINGS_MODULE names the settings, and JOBMILL_DJANGO_BACKEND the entry of TASKS (default: "default").
"""

from __future__ import annotations

import os

import django
from django.apps import apps

from jobmill.django.backend import BACKEND_VARIABLE, client
from jobmill.django.interface import task_backends
from jobmill.django.runs import announce_failures

if not apps.ready:
    django.setup()

_alias = os.environ.get(BACKEND_VARIABLE, "default")
jobs = client(_alias)
announce_failures(task_backends[_alias])
