"""Settings of the Django project in which the files cases_*.py run; the database is in JOBMILL_TEST_DJANGO."""

from __future__ import annotations

import json
import os
from typing import Any

_database = json.loads(os.environ["JOBMILL_TEST_DJANGO"])

#: No test has the second database in its `databases`, so the test runner leaves the real one there.
DATABASES = {"default": _database, "jobs": {**_database, "NAME": f"{_database['NAME']}_jobs", "TEST": {}}}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "jobmill.django",
    "tests.django.shop",
    "tests.django.depot",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "tests.django.urls"
SECRET_KEY = "of the tests"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LOGIN_URL = "/login/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "jobmill.django.JobmillBackend",
        "QUEUES": ["default", "queue_1"],
        "OPTIONS": {"max_attempts": 1},
    },
}
