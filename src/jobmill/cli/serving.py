"""What commands that serve HTTP share: the token, the addresses to listen on, and a uvicorn server that ends with 0."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from jobmill.cli.params import options
from jobmill.cli.runner import Unusable

if TYPE_CHECKING:
    import socket

    import uvicorn

    from jobmill.client.client import Client
    from jobmill.dashboard import Dashboard

#: Address, port and family.
Address: TypeAlias = tuple[str, int, int]

#: The minimum number of characters of a token, where other machines could guess it.
MIN_TOKEN = 16

DASHBOARD_TOKEN: Final = "JOBMILL_DASHBOARD_TOKEN"
DASHBOARD_PORT: Final = 8000
#: How long pages and acts that are under way may take when the dashboard ends.
_DASHBOARD_ENDS_S: Final = 2


def address_options(variable: str) -> Callable[[Any], Any]:
    """The options --host, --port and --token-file; `variable` of the environment has the token otherwise."""
    return options(
        click.option(
            "--host",
            default="127.0.0.1",
            metavar="HOST",
            help="Address to serve on; an address that other machines can reach needs a token (default 127.0.0.1).",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=8000,
            metavar="PORT",
            help="Port to listen on; 0 selects a free port (default 8000).",
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help=f"File with the token that requests need (default: {variable}).",
        ),
    )


def check_extra(what: str, extra: str, *modules: str) -> None:
    """Say what to install if one of the modules is missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            from jobmill.errors import MissingExtra

            raise MissingExtra(f"{what} needs {module}: pip install 'jobmill[{extra}]'") from error


def read_token(file: Path | None, variable: str) -> str | None:
    """The token from the file, or from the environment. There is no option for it, because other users of the machine
    can see command lines."""
    where = variable if file is None else f"--token-file {file}"
    try:
        token = os.environ.get(where) if file is None else file.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        raise Unusable(f"{where} cannot be read: {error.strerror}") from error
    if token == "":
        # Probably a mistake, and behind a proxy every request would be accepted.
        raise Unusable(f"{where} is empty; put a token into it, or leave it out to serve only this machine")
    return token


# ---------------------------------------------------------------------------------------------------- listening


def addresses_of(host: str, port: int, *, token: str | None, variable: str, danger: str) -> list[Address]:
    """All addresses of a host. Without a token, or with a short one, those that other machines can reach are refused:
    `danger` says what these machines could do."""
    import socket

    from jobmill.errors import InvalidValue
    from jobmill.http.auth import is_loopback

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidValue("host", "an address or a name of this machine", host, str(error)) from None
    addresses = list(dict.fromkeys((str(address[0]), int(address[1]), int(family)) for family, *_, address in found))
    open_to_others = [address for address, *_ in addresses if not is_loopback(address)]
    if token is None and open_to_others:
        raise Unusable(
            f"on {open_to_others[0]} other machines could {danger}: set a token in {variable} or --token-file, "
            "or leave out --host to serve only this machine"
        )
    if token is not None and open_to_others and len(token) < MIN_TOKEN:
        raise Unusable(
            f"on {open_to_others[0]} other machines could guess the token and {danger}: it has {len(token)} "
            f"characters, and needs {MIN_TOKEN} or more, for example those of `openssl rand -hex 16`"
        )
    return addresses


@contextlib.contextmanager
def listening(addresses: list[Address]) -> Iterator[list[socket.socket]]:
    """A socket for each address."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(_listen(*address)) for address in addresses]


def _listen(address: str, port: int, family: int) -> socket.socket:
    import socket

    from jobmill.errors import InvalidValue

    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise InvalidValue(
            "port", f"a port that can be bound on {address}", port, os.strerror(error.errno or 0)
        ) from None


def url_of(listening: socket.socket) -> str:
    """The address of a socket as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# ---------------------------------------------------------------------------------------------------- serving


def make_server(
    app: Any,
    *,
    stop: Callable[[], Awaitable[None]],
    ends_within_s: int,
    on_start: Callable[[], None] = lambda: None,
    hurry: Callable[[], Awaitable[None]] | None = None,
    has_signals: bool = True,
    **config: Any,
) -> uvicorn.Server:
    """A uvicorn server that calls `stop` as soon as it begins to shut down, and `hurry` after a second signal.

    Without `has_signals`, somebody else in this process handles signals, and sets `should_exit`.
    """
    import asyncio
    import logging

    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            with super().capture_signals() if has_signals else contextlib.nullcontext():
                yield

        def handle_exit(self, sig: int, frame: Any) -> None:
            # uvicorn would raise the signal again at the end, but a graceful stop must exit with code 0.
            if self.should_exit:
                loop.call_soon_threadsafe(again.set)
            self.should_exit = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()  # from here on signals are handled

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(_awaited(stop))
                hurrying = group.create_task(stop_now())
                await super().shutdown(sockets)
                hurrying.cancel()

    async def stop_now() -> None:
        await again.wait()
        if hurry is not None:
            await hurry()

    # uvicorn logs only warnings (and a line per request, unless `access_log` is off): commands log start and end.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    loop, again = asyncio.get_running_loop(), asyncio.Event()
    return Server(
        uvicorn.Config(
            app,
            lifespan="off",  # the app is opened before the server starts, with our own error messages
            ws="none",
            # Trust only the address of the peer. With these headers any client could claim to be 127.0.0.1.
            proxy_headers=False,
            server_header=False,
            log_config=None,
            timeout_graceful_shutdown=ends_within_s,
            **config,
        )
    )


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


def dashboard_server(
    dashboard: Dashboard, *, on_start: Callable[[], None] = lambda: None, has_signals: bool = True
) -> uvicorn.Server:
    """A server of a dashboard. It logs no requests: their addresses can hold a token, and what people search for."""
    return make_server(
        dashboard,
        stop=dashboard.close,
        ends_within_s=_DASHBOARD_ENDS_S,
        on_start=on_start,
        has_signals=has_signals,
        access_log=False,
    )


@contextlib.asynccontextmanager
async def dashboard_beside(client: Client, port: int | None) -> AsyncIterator[str | None]:
    """A dashboard on this machine while the block runs, and its link; nothing without a port."""
    if port is None:
        yield None
        return
    import asyncio
    import socket

    check_extra("the dashboard", "dashboard", "starlette", "jinja2", "uvicorn")
    from jobmill.dashboard import Dashboard

    token = read_token(None, DASHBOARD_TOKEN)
    with listening([("127.0.0.1", port, socket.AF_INET)]) as sockets:
        server = dashboard_server(Dashboard(client, token=token), has_signals=False)
        serving = asyncio.create_task(server.serve(sockets), name="jobmill dashboard server")
        try:
            yield f"{url_of(sockets[0])}/"
        finally:
            server.should_exit = True
            await serving


class WithDashboard(click.Command):
    """A command whose option --dashboard has a port that may be left out, also before the argument of the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a --dashboard without a port the default one."""
        given = [
            f"--dashboard={DASHBOARD_PORT}" if one == "--dashboard" and not following.isdecimal() else one
            for one, following in zip(args, [*args, ""][1:], strict=True)
        ]
        return super().parse_args(ctx, given)


def dashboard_option(what: str) -> Callable[[Any], Any]:
    """The option --dashboard [PORT] of a `WithDashboard`."""
    return click.option(
        "--dashboard",
        type=click.IntRange(0, 65_535),
        metavar="[PORT]",
        help=f"{what} on this port of this machine; 0 selects a free port (default {DASHBOARD_PORT}).",
    )
