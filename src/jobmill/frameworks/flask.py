"""Flask: handlers run inside `app.app_context()`, `flask jobmill` has the commands, and the dashboard is mounted.

`jobmill worker jobmill.frameworks.flask:jobs` finds the application as the command `flask` does, through FLASK_APP.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from flask import Flask
from flask.cli import ScriptInfo

import jobmill
from jobmill.errors import InvalidValue, JobmillError
from jobmill.frameworks.commands import SETTINGS, run_jobmill

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.dashboard.app import Authorize
    from jobmill.handlers.context import Context

TARGET = "jobmill.frameworks.flask:jobs"


class JobmillFlask:
    """The extension: `JobmillFlask(app, jobs)`, or `JobmillFlask(jobs=jobs)` and later `init_app(app)`.

    Without `jobs` it makes a client of the URL in `app.config["JOBMILL_URL"]`. `factory`, such as "shop:create_app",
    makes the application in the process of an isolated handler, where nothing else does. `authorize` is that of the
    dashboard, whose path and token are in the configuration too.
    """

    def __init__(
        self,
        app: Flask | None = None,
        jobs: Client | None = None,
        *,
        factory: str | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        if factory is not None and not all(factory.partition(":")):
            raise InvalidValue("factory", 'a module and a function, such as "shop:create_app"', factory)
        self._jobs = jobs
        self._app: Flask | None = None
        self._factory = factory
        self._authorize = authorize
        if jobs is not None:
            jobs.around(self._in_app_context)
        if app is not None:
            self.init_app(app)

    @property
    def jobs(self) -> Client:
        """The client. Views use its sync methods: `ext.jobs.sync.enqueue(...)`."""
        if self._jobs is None:
            raise JobmillError("JobmillFlask has no client yet: give jobs=, or call init_app(app) first")
        return self._jobs

    def init_app(self, app: Flask) -> None:
        """Add the extension to an application. Handlers run in the context of the last one."""
        if self._jobs is None:
            self._jobs = jobmill.connect(app.config.get("JOBMILL_URL"))
            self._jobs.around(self._in_app_context)
        self._app = app
        app.extensions["jobmill"] = self
        app.cli.add_command(_command)
        config = app.config.get_namespace("JOBMILL_")
        if config.get("dashboard_path"):
            self._mount_dashboard(app, config["dashboard_path"], config.get("dashboard_token"))

    def _mount_dashboard(self, app: Flask, path: str, token: str | None) -> None:
        from jobmill.dashboard import Dashboard
        from jobmill.dashboard.wsgi import wsgi_app

        dashboard = Dashboard(self.jobs, authorize=self._authorize, token=token)
        app.wsgi_app = wsgi_app(dashboard, path, app.wsgi_app)  # type: ignore[method-assign, assignment]

    def _in_app_context(self, _: Context) -> Iterator[None]:
        # A plain generator: what a handler opens in its thread, teardown functions close in the same thread.
        with self._application().app_context():
            yield

    def _application(self) -> Flask:
        if self._app is None and self._factory is not None:
            module, _, function = self._factory.partition(":")
            made: Flask = getattr(importlib.import_module(module), function)()
            if self._app is None:  # the factory has not called init_app
                self.init_app(made)
        if self._app is None:
            why = 'call init_app(app) where the module of the handlers is imported, or give factory="module:create_app"'
            raise JobmillError(f"there is no Flask application in this process: {why}")
        return self._app


@click.command("jobmill", context_settings=SETTINGS, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _command(script: ScriptInfo, arguments: tuple[str, ...]) -> None:
    """Run a command of Jobmill: worker, dashboard, jobs and others."""
    if script.app_import_path is not None:
        os.environ["FLASK_APP"] = script.app_import_path  # for other processes of `worker --processes`
    jobs = script.load_app().extensions["jobmill"].jobs
    globals()["jobs"] = jobs  # so that TARGET does not load the application once more
    run_jobmill(jobs, arguments, target=TARGET, name="flask jobmill")


def __getattr__(name: str) -> Any:
    """`jobs`: the client of the application that FLASK_APP names."""
    if name != "jobs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    if "jobmill" not in app.extensions:
        raise JobmillError(f"the Flask application {app.name!r} has no JobmillFlask")
    return app.extensions["jobmill"].jobs
