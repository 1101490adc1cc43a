"""The app: `INSTALLED_APPS += ["jobmill.django"]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, register
from django.core.signals import setting_changed
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class JobmillConfig(AppConfig):
    """Checks, permissions, and the tables of Jobmill beside those of `manage.py migrate`."""

    name = "jobmill.django"
    label = "jobmill"
    verbose_name = "Jobmill"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect to Django's signals and checks."""
        from jobmill.django.checks import check_dashboards
        from jobmill.django.client import close_clients, forget_stores
        from jobmill.django.interface import PACKAGE
        from jobmill.django.store_now import remember_databases

        remember_databases()
        # The backport does this only where it is in INSTALLED_APPS too.
        import_module(f"{PACKAGE}.checks")
        register(check_stores, Tags.database)
        register(check_dashboards, Tags.urls)
        post_migrate.connect(migrate_store, sender=self, dispatch_uid="jobmill")
        connection_created.connect(close_clients, dispatch_uid="jobmill")
        setting_changed.connect(forget_stores, dispatch_uid="jobmill")


def migrate_store(using: str, verbosity: int = 0, stdout: Any = None, **_: Any) -> None:
    """Make Jobmill's tables where `manage.py migrate` makes those of the models.

    In tests this is also called after each test that `manage.py flush` cleans up after, and removes all jobs.
    """
    from jobmill.django.backend import backends
    from jobmill.django.store_now import is_testing

    for backend in backends():
        if backend.database != using:
            continue
        if is_testing():
            backend.client.empty_for_tests()
        elif backend.is_in_database:
            ran = backend.client.sync(backend.client.store.migrate())
            if ran and verbosity >= 1:
                print(f"  Jobmill: {len(ran)} migrations for TASKS[{backend.alias!r}]", file=stdout)


def check_stores(databases: Any = None, **_: Any) -> list[CheckMessage]:
    """The checks that read the store: only `manage.py check --database NAME` and `migrate` may use a database."""
    from jobmill.django.backend import backends
    from jobmill.django.checks import check_backend, check_store
    from jobmill.django.store_now import store_now

    chosen = [
        one
        for one in backends()
        if one.database in (databases or ()) and not list(check_backend(one)) and store_now(one.alias).refusal is None
    ]
    return [message for backend in chosen for message in check_store(backend)]
