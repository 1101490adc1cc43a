"""`jobmill crontab`: runs a crontab until a signal stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmill.cli.params import log_options, shutdown_timeout_option
from jobmill.cli.runner import Unusable, run_forever
from jobmill.cli.target import load_crontab

if TYPE_CHECKING:
    from jobmill.crontab import Crontab


@click.command(short_help="Run a crontab, a scheduler whose jobs are documents with a date.")
@click.argument("target", metavar="MODULE:CRONTAB")
@click.option("--migrate", is_flag=True, help="Create the index that the store needs, then run.")
@shutdown_timeout_option("running handlers")
@log_options
def crontab(target: str, migrate: bool, shutdown_timeout: float | str, quiet: bool, log_format: str) -> None:
    """Run a crontab: mymodule:crontab, app.py:crontab, or mymodule if it has one crontab.

    After SIGTERM or Ctrl-C the crontab locks no more documents, waits for
    running handlers and exits with code 0. A second signal cancels the
    handlers; their documents are handled again when their locks have ended.
    """
    from jobmill.core.durations import to_ms
    from jobmill.worker.stderr_log import log_to_stderr

    to_ms(shutdown_timeout, "shutdown_timeout")  # so that an invalid value is refused now, not at the stop
    log_to_stderr(quiet=quiet, log_format=log_format)
    run_forever(_run(load_crontab(target), target, migrate=migrate, shutdown_timeout=shutdown_timeout))


async def _run(crontab: Crontab, target: str, *, migrate: bool, shutdown_timeout: float | str) -> None:
    import asyncio
    import contextlib
    import logging
    import signal

    log = logging.getLogger("jobmill")
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        # The second signal cancels the handlers.
        log.info("crontab %s: %s", target, "cancelling handlers" if stops else "stopping")
        stops.append(loop.create_task(crontab.stop(timeout=0 if stops else shutdown_timeout)))

    if migrate:
        await _migrate(crontab, target)
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows, Ctrl-C cancels the task
            loop.add_signal_handler(number, on_signal)
    log.info("crontab %s: started", target)
    try:
        await crontab.run()
        await asyncio.gather(*stops)
    finally:
        if (close := getattr(crontab.store, "close", None)) is not None:
            await _await_if_needed(close())
    log.info("crontab %s: stopped", target)


async def _migrate(crontab: Crontab, target: str) -> None:
    if not hasattr(crontab.store, "migrate"):
        raise Unusable(f"the store of {target} has no migrate(); create its index yourself and run without --migrate")
    await _await_if_needed(crontab.store.migrate())


async def _await_if_needed(answer: object) -> None:
    """The methods of a store that the user wrote may be sync."""
    import inspect

    if inspect.isawaitable(answer):
        await answer
