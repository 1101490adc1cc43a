"""`jobmill http`: serves the tick endpoint of a client."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.params import log_options, shutdown_timeout_option, url_option
from jobmill.cli.runner import Unusable, log_to_stderr, run_forever
from jobmill.cli.target import is_url_given, load_client, use_url

if TYPE_CHECKING:
    import socket

    import uvicorn

    from jobmill.http import TickEndpoint

#: Added to the shutdown timeout: how long the release of jobs may take before open requests are closed.
GRACE_S = 30


@click.command(short_help="Serve POST /api/jobs/tick, which runs due jobs.")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option("--limit", type=int, default=10, metavar="N", help="Maximum number of jobs per tick (default 10).")
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="HOST",
    help="Address to serve on; an address that other machines can reach needs a token (default 127.0.0.1).",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    metavar="PORT",
    help="Port to listen on; 0 selects a free port (default 8000).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File with the bearer token that requests must send (default: JOBMILL_HTTP_TOKEN).",
)
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
    _check_extra()
    from jobmill.http import TickEndpoint

    log_to_stderr(quiet=quiet, log_format=log_format)
    use_url(url)
    token = _token(token_file)
    addresses = _addresses(host, port, loopback_only=token is None)
    endpoint = TickEndpoint(load_client(target, checks_url=is_url_given()), token=token, **given)
    with ExitStack() as held:
        sockets = [held.enter_context(_listen(*address)) for address in addresses]
        run_forever(_serve(endpoint, sockets, guarded=token is not None))


def _check_extra() -> None:
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        from jobmill.errors import MissingExtra

        raise MissingExtra("jobmill http needs uvicorn: pip install 'jobmill[http]'") from error


def _token(file: Path | None) -> str | None:
    """The token from the file, or from the environment. There is no option for it, because other users of the machine
    can see command lines."""
    where = "JOBMILL_HTTP_TOKEN" if file is None else f"--token-file {file}"
    try:
        token = os.environ.get(where) if file is None else file.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        raise Unusable(f"{where} cannot be read: {error.strerror}") from error
    if token == "":
        # Probably a mistake, and behind a proxy every request would be accepted.
        raise Unusable(f"{where} is empty; put a token into it, or leave it out to serve only this machine")
    return token


# ---------------------------------------------------------------------------------------------------- listening


def _addresses(host: str, port: int, *, loopback_only: bool) -> list[tuple[str, int, int]]:
    """All addresses of a host, with port and family. Addresses that other machines can reach may be refused."""
    import socket

    from jobmill.errors import InvalidValue
    from jobmill.http.auth import is_loopback

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidValue("host", "an address or a name of this machine", host, str(error)) from None
    addresses = list(dict.fromkeys((str(address[0]), int(address[1]), int(family)) for family, *_, address in found))
    open_to_others = [address for address, *_ in addresses if not is_loopback(address)]
    if loopback_only and open_to_others:
        raise Unusable(
            f"on {open_to_others[0]} other machines could run jobs: set a token in JOBMILL_HTTP_TOKEN or --token-file, "
            "or leave out --host to serve only this machine"
        )
    return addresses


def _listen(address: str, port: int, family: int) -> socket.socket:
    import socket

    from jobmill.errors import InvalidValue

    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise InvalidValue(
            "port", f"a port that can be bound on {address}", port, os.strerror(error.errno or 0)
        ) from None


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# ---------------------------------------------------------------------------------------------------- serving


async def _serve(endpoint: TickEndpoint, sockets: list[socket.socket], *, guarded: bool) -> None:
    import logging

    # uvicorn logs only warnings and one line per request, because this function logs the start and the end.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    async with endpoint:
        logging.getLogger("jobmill").info(
            "listening on %s: up to %d jobs per tick, for %s",
            ", ".join(_url_of(one) + endpoint.path for one in sockets),
            endpoint.limit,
            "requests with the token" if guarded else "this machine only, without a token",
        )
        await _server(endpoint).serve(sockets)
    logging.getLogger("jobmill").info("stopped")


def _server(endpoint: TickEndpoint) -> uvicorn.Server:
    """A uvicorn server that stops the endpoint as soon as it begins to shut down."""
    import asyncio
    import math

    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            # uvicorn would raise the signal again at the end, but a graceful stop must exit with code 0.
            if self.should_exit:
                loop.call_soon_threadsafe(hurry.set)
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(endpoint.stop())
                hurrying = group.create_task(stop_now())
                await super().shutdown(sockets)
                hurrying.cancel()

    async def stop_now() -> None:
        await hurry.wait()
        await endpoint.stop(timeout=0)

    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    config = uvicorn.Config(
        endpoint,
        lifespan="off",  # the endpoint is opened before the server starts, with our own error messages
        ws="none",
        # Trust only the address of the peer. With these headers any client could claim to be 127.0.0.1.
        proxy_headers=False,
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=math.ceil(endpoint.shutdown_timeout_s) + GRACE_S,
    )
    return Server(config)
