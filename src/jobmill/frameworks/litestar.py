"""Litestar: a plugin that opens the client, injects it as `jobs`, mounts the dashboard and adds `litestar jobmill`.

`jobmill worker jobmill.frameworks.litestar:jobs` finds the application that LITESTAR_APP names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import unquote

import click
from litestar import Litestar, asgi
from litestar.di import Provide
from litestar.plugins import CLIPlugin, InitPlugin

from jobmill.client.client import Client
from jobmill.errors import InvalidValue
from jobmill.frameworks.beside import settings, workers_beside
from jobmill.frameworks.commands import SETTINGS, run_jobmill

if TYPE_CHECKING:
    from litestar.config.app import AppConfig
    from litestar.types import Guard, Receive, Scope, Send

    from jobmill.dashboard.app import Authorize
    from jobmill.worker.options import WorkerOptions

TARGET = "jobmill.frameworks.litestar:jobs"
VARIABLE = "LITESTAR_APP"
#: Options of `litestar run` with which the server runs in another process.
_IN_OTHER_PROCESS = ("reload", "reload_dir", "reload_include", "reload_exclude")


class JobmillPlugin(InitPlugin, CLIPlugin):
    """`Litestar(plugins=[JobmillPlugin(jobs)])`: route handlers get the client as `jobs: NamedDependency[Client]`.

    `worker=True` runs a worker in the event loop of the application, with these options. `processes=2` runs two worker
    processes beside the server that `litestar run` starts, with these options. `dashboard` is the path where the
    dashboard is mounted; `guards` are those of Litestar, and `authorize` and `token` those of the dashboard.
    """

    def __init__(
        self,
        jobs: Client,
        *,
        dashboard: str | None = None,
        authorize: Authorize | None = None,
        token: str | None = None,
        guards: Sequence[Guard] = (),
        opt: dict[str, Any] | None = None,
        worker: bool | None = None,
        processes: int = 0,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self.jobs = jobs
        self._dashboard = dashboard
        self._access: dict[str, Any] = {"authorize": authorize, "token": token}
        self._guards = guards
        self._opt = opt
        if worker and processes:
            raise InvalidValue("processes", "0 with worker=True: workers are in the server or beside it", processes)
        self._beside = settings(TARGET, processes, options) if processes else None
        self._lifespan = jobs.app_lifespan(worker=worker, **({} if processes else options))

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the client and the dashboard to an application."""
        app_config.dependencies["jobs"] = Provide(self.jobs.dependency)
        app_config.signature_namespace["Client"] = Client
        app_config.lifespan.append(self._lifespan)
        if self._dashboard is not None:
            app_config.route_handlers.append(self._mounted(self._dashboard))
        return app_config

    def _mounted(self, path: str) -> Any:
        from jobmill.dashboard import Dashboard

        dashboard: Any = Dashboard(self.jobs, **self._access)

        @asgi(path, is_mount=True, copy_scope=True, guards=list(self._guards), opt=self._opt)
        async def jobmill_dashboard(scope: Scope, receive: Receive, send: Send) -> None:
            # Litestar removes the path of the mount and appends a slash; the dashboard expects what other servers send.
            whole, raw = scope["root_path"] + path, scope.get("raw_path") or b""
            await dashboard({**scope, "root_path": whole, "path": unquote(raw.decode("latin-1"))}, receive, send)

        return jobmill_dashboard

    @contextmanager
    def server_lifespan(self, app: Litestar) -> Iterator[None]:
        """Run the worker processes. Litestar calls this in the command `litestar run`, around the server."""
        if self._beside is None:
            yield
            return
        context = click.get_current_context()
        # With these options the server is in another process, and this one waits for it in a way that SIGTERM breaks.
        others = any(context.params.get(name) for name in _IN_OTHER_PROCESS) or context.params.get("wc", 1) > 1
        with workers_beside(self._beside, _environment(context.obj), waits=not others):
            yield

    def on_cli_init(self, cli: click.Group) -> None:
        """Add `litestar jobmill`."""

        @click.command("jobmill", context_settings=SETTINGS, add_help_option=False)
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def command(env: Any, arguments: tuple[str, ...]) -> None:  # Litestar gives `env`
            """Run a command of Jobmill: worker, dashboard, jobs and others."""
            os.environ |= _environment(env)  # for other processes of `worker --processes`
            globals()["jobs"] = self.jobs  # so that TARGET does not load the application once more
            run_jobmill(self.jobs, arguments, target=TARGET, name="litestar jobmill")

        cli.add_command(command)


def _environment(env: Any) -> dict[str, str]:
    """With these variables, other processes find the application as `litestar` has found it."""
    path = os.pathsep.join(filter(None, (str(env.cwd), os.environ.get("PYTHONPATH"))))
    return {VARIABLE: env.app_path, "PYTHONPATH": path}


def __getattr__(name: str) -> Any:
    """`jobs`: the client of the application that LITESTAR_APP names."""
    if name != "jobs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, colon, attribute = os.environ.get(VARIABLE, "").partition(":")
    if not colon:
        raise InvalidValue(VARIABLE, "a module and its application, such as shop:app", os.environ.get(VARIABLE))
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    app: Litestar = found if isinstance(found, Litestar) else found()
    return app.plugins.get(JobmillPlugin).jobs
