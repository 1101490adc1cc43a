"""`jobmill http`: serves the tick endpoint of a client."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.params import log_options, shutdown_timeout_option, url_option
from jobmill.cli.runner import run_forever
from jobmill.cli.serving import address_options, addresses_of, check_extra, listening, make_server, read_token, url_of
from jobmill.cli.target import is_url_given, load_client, use_url

if TYPE_CHECKING:
    import socket

    from jobmill.http import TickEndpoint

TOKEN = "JOBMILL_HTTP_TOKEN"

#: Added to the shutdown timeout: how long the release of jobs may take before open requests are closed.
GRACE_S = 30


@click.command(short_help="Serve POST /api/jobs/tick, which runs due jobs.")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option("--limit", type=int, default=10, metavar="N", help="Maximum number of jobs per tick (default 10).")
@address_options(TOKEN)
@shutdown_timeout_option("a running tick")
@log_options
@url_option
def http(
    target: str,
    host: str,
    port: int,
    token_file: Path | None,
    quiet: bool,
    log_format: str,
    url: str | None,
    **given: Any,
) -> None:
    """Run due jobs of a client on each request POST /api/jobs/tick.

    Without a token, only programs on this machine may send requests. After
    SIGTERM or Ctrl-C the server accepts no more requests, waits for the running
    tick and exits with code 0. A second signal releases its jobs at once.
    """
    check_extra("jobmill http", "http", "uvicorn")
    from jobmill.http import TickEndpoint
    from jobmill.worker.stderr_log import log_to_stderr

    log_to_stderr(quiet=quiet, log_format=log_format)
    use_url(url)
    token = read_token(token_file, TOKEN)
    addresses = addresses_of(host, port, token=token, variable=TOKEN, danger="run jobs")
    endpoint = TickEndpoint(load_client(target, checks_url=is_url_given()), token=token, **given)
    with listening(addresses) as sockets:
        run_forever(_serve(endpoint, sockets, guarded=token is not None))


async def _serve(endpoint: TickEndpoint, sockets: list[socket.socket], *, guarded: bool) -> None:
    import logging

    server = make_server(
        endpoint,
        stop=endpoint.stop,
        hurry=lambda: endpoint.stop(timeout=0),
        ends_within_s=math.ceil(endpoint.shutdown_timeout_s) + GRACE_S,
    )
    async with endpoint:
        logging.getLogger("jobmill").info(
            "listening on %s: up to %d jobs per tick, for %s",
            ", ".join(url_of(one) + endpoint.path for one in sockets),
            endpoint.limit,
            "requests with the token" if guarded else "this machine only, without a token",
        )
        await server.serve(sockets)
    logging.getLogger("jobmill").info("stopped")
