"""`jobmill dashboard`: serves the dashboard of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.params import log_options, url_option
from jobmill.cli.runner import check_store, run_forever, user
from jobmill.cli.serving import (
    DASHBOARD_TOKEN,
    address_options,
    addresses_of,
    check_extra,
    dashboard_server,
    listening,
    read_token,
    url_of,
)
from jobmill.cli.target import is_url_given, load_client, use_url

if TYPE_CHECKING:
    import socket

    from jobmill.client.client import Client
    from jobmill.dashboard import Dashboard


@click.command(short_help="Serve a web page on which people see and change jobs.")
@click.argument("target", metavar="[URL | MODULE:CLIENT]", required=False)
@address_options(DASHBOARD_TOKEN)
@click.option("--read-only", is_flag=True, help="Allow nobody to change anything.")
@click.option("--title", metavar="TEXT", help='Name of the system, such as "shop prod" (default: Jobmill).')
@click.option("--color", metavar="COLOR", help="Color of the title, to tell systems apart: red, green or blue.")
@click.option("--path", default="", metavar="PATH", help="Path of the dashboard behind a reverse proxy, such as /jobs.")
@click.option(
    "--redact",
    multiple=True,
    metavar="FIELD",
    help='Hide the values of these payload fields, such as "*token*"; can be given several times.',
)
@log_options
@url_option
def dashboard(
    target: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    quiet: bool,
    log_format: str,
    url: str | None,
    **given: Any,
) -> None:
    """Serve the dashboard of a store, given by its URL or by a client in a module.

    The command prints a link to the dashboard. Without a token, only browsers
    on this machine may open it. If you give a module, the dashboard also knows
    the handlers of the client. After SIGTERM or Ctrl-C the command exits with
    code 0.
    """
    check_extra("jobmill dashboard", "dashboard", "starlette", "jinja2", "uvicorn")
    from jobmill.dashboard import Dashboard
    from jobmill.worker.stderr_log import log_to_stderr

    log_to_stderr(quiet=quiet, log_format=log_format)
    token = read_token(token_file, DASHBOARD_TOKEN)
    danger = "see and change the jobs" if not given["read_only"] else "see the jobs"
    addresses = addresses_of(host, port, token=token, variable=DASHBOARD_TOKEN, danger=danger)
    shown = Dashboard(_client(target, url), token=token, **given)
    with listening(addresses) as sockets:
        run_forever(_serve(shown, sockets, given["path"]))


def _client(target: str | None, url: str | None) -> Client:
    from jobmill.client.client import connect

    if target is None or "://" in target:
        if target is not None and is_url_given():
            raise click.UsageError("give the URL once: as the argument or as --url", click.get_current_context())
        client = connect(target or url, who=user())
        check_store(client.store, creates=False)
        return client
    use_url(url)
    client = load_client(target, checks_url=is_url_given(), needs_handlers=False)
    check_store(client.store, creates=True)
    return client


async def _serve(dashboard: Dashboard, sockets: list[socket.socket], path: str) -> None:
    def on_start() -> None:
        for one in sockets:
            click.echo(f"{url_of(one)}{path}/")

    try:
        await dashboard_server(dashboard, on_start=on_start).serve(sockets)
    finally:
        await dashboard.jobs.close()
