"""System checks: errors and warnings about TASKS, and, with `manage.py check --database`, about the store."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import URLResolver, get_resolver

from jobmill.client.client import connect
from jobmill.core.limits import MAX_PRIORITY, check_int
from jobmill.django.database import differ_in_host, sqlite_file, url_of_database
from jobmill.django.discovery import find_tasks
from jobmill.django.interface import task_backends
from jobmill.django.task import ERROR_OPTIONS, JOB_OPTIONS, TASK_OPTIONS, check_options
from jobmill.errors import InvalidValue, JobmillError, MissingExtra, SchemaTooOld

if TYPE_CHECKING:
    from jobmill.django.backend import JobmillBackend

KNOWN = ("url", "test_url", "database", "transaction", "priority_base", "tasks", *JOB_OPTIONS, *ERROR_OPTIONS)
#: The keys of an entry of TASKS.
KEYS = ("BACKEND", "QUEUES", "OPTIONS")
MODES = ("join", "on_commit", "none")


def check_backend(backend: JobmillBackend) -> Iterator[checks.CheckMessage]:
    """What is wrong with one entry of TASKS, without a connection to a database."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        _check_options(backend)
    except InvalidValue as error:
        yield checks.Error(f"{where}: {error}", id="jobmill.E004")
        return
    yield from _check_keys(backend, where)
    yield from _check_paths(backend, where)
    try:
        backend.client.own_store  # noqa: B018 - it imports the driver
    except MissingExtra as error:
        yield checks.Error(f"{where}: {error}", id="jobmill.E001")
    except (ImproperlyConfigured, JobmillError) as error:
        yield checks.Error(f"{where}: {error}", id="jobmill.E002")
    else:
        if backend.options.get("transaction") == "join" and (why := _why_not_join(backend)):
            hint = 'Use "transaction": "on_commit": then a job is enqueued when the transaction commits.'
            yield checks.Error(
                f"{where}: tasks cannot join transactions of Django: {why}", hint=hint, id="jobmill.E003"
            )
        yield from _check_sqlite(backend, where)
        yield from _check_spelling(backend, where)


def _check_options(backend: JobmillBackend) -> None:
    options = backend.options
    for name in options:
        if name not in KNOWN:
            raise InvalidValue(name, "one of the options " + ", ".join(KNOWN), options[name])
    if options.get("transaction") not in (None, *MODES):
        raise InvalidValue("transaction", " or ".join(MODES), options["transaction"])
    if backend.database not in connections:
        raise InvalidValue("database", "a name in DATABASES", backend.database)
    check_int(options.get("priority_base", 100), "priority_base", 100, MAX_PRIORITY - 100)
    check_options({name: options[name] for name in (*JOB_OPTIONS, *ERROR_OPTIONS) if name in options})
    tasks = options.get("tasks", {})
    if not isinstance(tasks, dict) or not all(isinstance(one, dict) for one in tasks.values()):
        raise InvalidValue("tasks", f"a dict of paths, each with some of {', '.join(TASK_OPTIONS)}", tasks)
    for given in tasks.values():
        check_options(given)


def _check_keys(backend: JobmillBackend, where: str) -> Iterator[checks.CheckMessage]:
    for key in task_backends.settings.get(backend.alias, ()):
        if key not in KEYS:
            near = difflib.get_close_matches(str(key).upper(), KEYS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"An entry of TASKS has {', '.join(KEYS)}."
            yield checks.Warning(f"{where} has the key {key!r}, which nothing reads", hint=hint, id="jobmill.W008")


def _check_spelling(backend: JobmillBackend, where: str) -> Iterator[checks.CheckMessage]:
    """Tasks silently do not join transactions where a URL names the same database in another way."""
    own = url_of_database(backend.database)
    if "transaction" in backend.options or own is None or not differ_in_host(backend.url, own):
        return
    text = f"{where}: tasks do not join transactions: OPTIONS['url'] and DATABASES name different hosts"
    hint = 'Set "transaction": "join" if this is the same database, else "on_commit".'
    yield checks.Warning(text, hint=hint, id="jobmill.W007")


def _check_paths(backend: JobmillBackend, where: str) -> Iterator[checks.CheckMessage]:
    """A warning for each task that is not there: it may be in a module that only a worker imports."""
    if not (given := backend.options.get("tasks")):
        return
    tasks = find_tasks()
    for path in given:
        if path not in tasks:
            near = difflib.get_close_matches(path, tasks, 1)
            text = f"{where}: OPTIONS['tasks'] has options for {path!r}, which is not the path of a Task"
            hint = f"The nearest path is {near[0]!r}." if near else "Tasks are found in modules named tasks."
            yield checks.Warning(text, hint=hint, id="jobmill.W004")


def _check_sqlite(backend: JobmillBackend, where: str) -> Iterator[checks.CheckMessage]:
    """SQLite has one write lock, for which only a transaction that begins with it waits."""
    connection: Any = connections[backend.database]
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return
    options = connection.settings_dict.get("OPTIONS") or {}
    if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        text = f"{where}: tasks that read and then write in a transaction can fail with 'database is locked'"
        hint = f'Set "OPTIONS": {{"transaction_mode": "IMMEDIATE"}} in DATABASES[{backend.database!r}].'
        yield checks.Warning(text, hint=hint, id="jobmill.W005")
    if backend.transaction == "none" and backend.is_in_database:
        text = f"{where}: a task that is enqueued in atomic() waits for the lock of that transaction, and fails"
        hint = 'Remove "transaction": "none", or give OPTIONS["url"] of another file.'
        yield checks.Warning(text, hint=hint, id="jobmill.W006")


def _why_not_join(backend: JobmillBackend) -> str | None:
    store, vendor = backend.client.own_store.name, connections[backend.database].vendor
    if store not in ("sqlite", "postgres") or {"sqlite": "sqlite", "postgres": "postgresql"}[store] != vendor:
        return f"the jobs are in a {store} store, and DATABASES[{backend.database!r}] is {vendor}"
    if store == "sqlite" and not backend.is_in_database:
        return f"the jobs are in another file than DATABASES[{backend.database!r}]"
    return None if backend.can_join else "Django uses psycopg2 here; install psycopg 3"


def check_dashboards(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong with the options of dashboards in the URLs: the first visitor would get an error 500."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    patterns = get_resolver().url_patterns  # it imports the URLs
    if (views := sys.modules.get("jobmill.django.views")) is None:
        return []
    found = []
    for options in _options_of(views.dashboard, patterns, {}):
        given = dict(options)
        try:
            if (alias := given.pop("alias", "default")) not in task_backends.settings:
                raise InvalidValue("alias", "one of TASKS: " + ", ".join(task_backends.settings), alias)
            views.new_dashboard(connect("memory://"), **given)  # the store of TASKS has checks of its own
        except (InvalidValue, TypeError) as error:
            text = f"the dashboard in the URLs with the options {options}: {error}"
            hint = "The dictionary has options of jobmill.Dashboard, and alias for another entry of TASKS."
            found.append(checks.Error(text, hint=hint, id="jobmill.E005"))
    return found


def _options_of(view: Any, patterns: Iterable[Any], above: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options of each place of a view in the URLs."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _options_of(view, pattern.url_patterns, above | pattern.default_kwargs)
        elif pattern.callback is view:
            yield above | pattern.default_args


def check_store(backend: JobmillBackend) -> Iterator[checks.CheckMessage]:
    """Whether the tables are there, and whether the queues with due jobs have workers."""
    where, sync, store = f"TASKS[{backend.alias!r}]", backend.client.sync, backend.client.store
    try:
        _refuse_new_file(backend)
        sync.open()
        served = {queue for card in sync.workers() for queue in card.queues}
        depths = sync.depths()
    except SchemaTooOld:
        # No error: it would keep `manage.py migrate`, which makes the tables too, from running.
        hint = f"Run {backend.migrate_command}. (migrate itself makes this check before it creates them.)"
        yield checks.Warning(f"{where}: the tables of Jobmill are missing or old", hint=hint, id="jobmill.W001")
        return
    except JobmillError as error:
        yield checks.Warning(f"{where}: the {store.name} store cannot be used: {error}", id="jobmill.W003")
        return
    for depth in depths:
        queue = depth.queue
        if depth.due and queue not in served and (not backend.queues or queue in backend.queues):
            queues = "" if queue in backend.queues else f" --queue {queue}"
            hint = f"Run manage.py jobmill worker{backend.backend_argument}{queues}."
            yield checks.Warning(f"{where}: no worker claims from the queue {queue!r}", hint=hint, id="jobmill.W002")


def _refuse_new_file(backend: JobmillBackend) -> None:
    """A SQLite store makes its file and its tables when it opens, but a check must not write."""
    if (file := sqlite_file(backend.url)) is None:
        return
    if not file.exists():
        raise SchemaTooOld(f"there is no file {file}")
    if backend.is_in_database:
        with connections[backend.database].cursor() as cursor:
            names = connections[backend.database].introspection.table_names(cursor)
        if "jobmill_migrations" not in names:
            raise SchemaTooOld(f"the file {file} has no tables of Jobmill")
