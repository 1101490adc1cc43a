"""`jobmill http`: serve the tick endpoint of a client."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.params import duration
from jobmill.cli.runner import Unusable, url_option
from jobmill.cli.worker import check_url, log_to_stderr, loop_factory

if TYPE_CHECKING:
    import socket

    import uvicorn

    from jobmill.http import TickEndpoint

#: Beyond the shutdown timeout: what giving jobs back may take until requests are cut off.
GRACE_S = 30


@click.command(short_help="Serve POST /api/jobs/tick: run what is due when asked.")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option("--limit", type=int, default=10, metavar="N", help="Claim so many jobs a tick; default 10.")
@click.option(
    "--host", default="127.0.0.1", metavar="HOST", help="Default 127.0.0.1; if others reach it, with a token."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, metavar="PORT", help="Default 8000; 0: a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Who asks must bring the token in it; else JOBMILL_HTTP_TOKEN.",
)
@click.option(
    "--shutdown-timeout",
    type=duration,
    default="30s",
    metavar="DURATION",
    help="What a running tick gets; default 30s.",
)
@click.option("--quiet", "-q", is_flag=True, help="Only what goes wrong.")
@url_option
def http(
    target: str, host: str, port: int, token_file: Path | None, quiet: bool, url: str | None, **given: Any
) -> None:
    """Run due jobs of a client whenever somebody asks with POST /api/jobs/tick.

    Without a token, only programs on this machine may ask. SIGTERM or Ctrl-C:
    take no more, let the running tick end, exit with 0; a second one gives its
    jobs back at once.
    """
    import asyncio

    _check_extra()
    from jobmill.cli.target import load_client
    from jobmill.http import TickEndpoint

    log_to_stderr(verbose=False, quiet=quiet)
    if url is not None:
        # Where the module says connect() without a URL, this is the URL.
        os.environ["JOBMILL_URL"] = url
    token = _token(token_file)
    addresses = _addresses(host, port, loopback_only=token is None)
    client = load_client(target)
    check_url(client, target)
    endpoint = TickEndpoint(client, token=token, **given)
    with ExitStack() as held, asyncio.Runner(loop_factory=loop_factory()) as runner:
        sockets = [held.enter_context(_listen(*address)) for address in addresses]
        runner.run(_serve(endpoint, sockets, guarded=token is not None))


def _check_extra() -> None:
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        from jobmill.errors import MissingExtra

        raise MissingExtra("jobmill http needs uvicorn: pip install 'jobmill[http]'") from error


def _token(file: Path | None) -> str | None:
    """From the file, else from the environment; never from the command line, which others see."""
    where = "JOBMILL_HTTP_TOKEN" if file is None else f"--token-file {file}"
    try:
        said = os.environ.get(where) if file is None else file.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        raise Unusable(f"{where} cannot be read: {error.strerror}") from error
    if said == "":
        # Nobody means this, and behind a proxy it would let everybody in.
        raise Unusable(f"{where} is empty; put a token there, or leave it out to serve this machine alone")
    return said


# ---------------------------------------------------------------------------------------------------- listening


def _addresses(host: str, port: int, *, loopback_only: bool) -> list[tuple[str, int, int]]:
    """Every address of a host, with the port and the family; refused are those that others reach, if they may not."""
    import socket

    from jobmill.errors import InvalidValue
    from jobmill.http.auth import is_loopback

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidValue("host", "an address of this machine, or a name for one", host, str(error)) from None
    addresses = list(dict.fromkeys((str(address[0]), int(address[1]), int(family)) for family, *_, address in found))
    open_to_others = [address for address, *_ in addresses if not is_loopback(address)]
    if loopback_only and open_to_others:
        raise Unusable(
            f"on {open_to_others[0]} others could run jobs here: give a token in JOBMILL_HTTP_TOKEN or --token-file, "
            "or leave --host out to serve this machine alone"
        )
    return addresses


def _listen(address: str, port: int, family: int) -> socket.socket:
    import socket

    from jobmill.errors import InvalidValue

    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise InvalidValue(
            "port", f"a port that can be served on {address}", port, os.strerror(error.errno or 0)
        ) from None


def _told(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# ---------------------------------------------------------------------------------------------------- serving


async def _serve(endpoint: TickEndpoint, sockets: list[socket.socket], *, guarded: bool) -> None:
    import logging

    # Of uvicorn we want what goes wrong and a line for each request; its start and end are told here.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    async with endpoint:
        logging.getLogger("jobmill").info(
            "listening on %s: up to %d jobs a tick, for %s",
            ", ".join(_told(one) + endpoint.path for one in sockets),
            endpoint.limit,
            "whoever brings the token" if guarded else "this machine alone, without a token",
        )
        await _server(endpoint).serve(sockets)
    logging.getLogger("jobmill").info("stopped")


def _server(endpoint: TickEndpoint) -> uvicorn.Server:
    """uvicorn, which tells the endpoint at once that it is to end."""
    import asyncio
    import math

    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            # Not as uvicorn does it, which raises the signal again at the end: a graceful stop exits with 0.
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
        lifespan="off",  # the endpoint is open before anybody can ask, and says in our own words when it cannot be
        ws="none",
        # Who asks is who is at the other end. With these headers believed, anybody could say that they are 127.0.0.1.
        proxy_headers=False,
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=math.ceil(endpoint.shutdown_timeout_s) + GRACE_S,
    )
    return Server(config)
