"""`jobmill crontab`: run a crontab until it is told to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmill.cli.params import duration
from jobmill.cli.worker import log_to_stderr, loop_factory

if TYPE_CHECKING:
    from jobmill.crontab import Crontab


@click.command(short_help="Run a crontab: documents that are jobs by their date.")
@click.argument("target", metavar="MODULE:CRONTAB")
@click.option("--migrate", is_flag=True, help="Make the index that the store needs, then run.")
@click.option(
    "--shutdown-timeout",
    type=duration,
    default="30s",
    metavar="DURATION",
    help="What running handlers get to end; default 30s.",
)
@click.option("--quiet", "-q", is_flag=True, help="Only what goes wrong.")
def crontab(target: str, migrate: bool, shutdown_timeout: float | str, quiet: bool) -> None:
    """Run a crontab: mymodule:crontab, app.py:crontab, or mymodule with one in it.

    SIGTERM or Ctrl-C: lock nothing more, let running handlers end, exit with 0;
    a second one cancels them, and their documents come again when the lock ends.
    """
    import asyncio

    from jobmill.cli.target import load_crontab
    from jobmill.core.durations import to_ms

    to_ms(shutdown_timeout, "shutdown_timeout")  # now, not when it is to stop
    log_to_stderr(verbose=False, quiet=quiet)
    loaded = load_crontab(target)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(loaded, target, migrate=migrate, shutdown_timeout=shutdown_timeout))


async def _run(crontab: Crontab, target: str, *, migrate: bool, shutdown_timeout: float | str) -> None:
    import asyncio
    import contextlib
    import logging
    import signal

    log = logging.getLogger("jobmill")
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        # The second one means: now.
        log.info("crontab %s: %s", target, "cancelling handlers" if stops else "stopping")
        stops.append(loop.create_task(crontab.stop(timeout=0 if stops else shutdown_timeout)))

    if migrate:
        await _migrate(crontab, target)
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows only Ctrl-C ends it, by cancelling
            loop.add_signal_handler(number, on_signal)
    log.info("crontab %s: started", target)
    try:
        await crontab.run()
        await asyncio.gather(*stops)
    finally:
        if (close := getattr(crontab.store, "close", None)) is not None:
            await _done(close())
    log.info("crontab %s: stopped", target)


async def _migrate(crontab: Crontab, target: str) -> None:
    from jobmill.cli.runner import Unusable

    if not hasattr(crontab.store, "migrate"):
        raise Unusable(f"the store of {target} has no migrate(): make its index yourself, and leave --migrate out")
    await _done(crontab.store.migrate())


async def _done(answer: object) -> None:
    """A store of the user's own may have methods that are not async."""
    import inspect

    if inspect.isawaitable(answer):
        await answer
