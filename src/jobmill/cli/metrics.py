"""`jobmill metrics`: what is true of the whole store, for Prometheus and for an autoscaler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.params import log_options, store_options
from jobmill.cli.runner import run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.worker.health import View


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Serve /metrics and /scale on this port until Ctrl-C.")
@click.option("--host", default="127.0.0.1", help="Address for --port (default 127.0.0.1).")
@log_options
@store_options
def metrics(port: int | None, host: str, quiet: bool, log_format: str, url: str | None, as_json: bool) -> None:
    """Print metrics of the whole store in Prometheus' text format, or serve them.

    Run one such process for each store. Workers serve their own metrics on
    their health ports.

    \b
    /metrics        queues, workers, late recurrences
    /scale          how many workers each queue needs
    /scale/QUEUE    the same for one queue; ?target=SECONDS&concurrency=N
    """
    if port is None:
        text = run(url, _print_json if as_json else _text)
        click.echo(text, nl=False)
        return
    if as_json:
        raise click.UsageError("--json and --port cannot be combined", click.get_current_context())
    from jobmill.worker.stderr_log import log_to_stderr

    log_to_stderr(quiet=quiet, log_format=log_format)
    run(url, lambda client: _serve(client, port, host))


async def _text(client: Client) -> str:
    from jobmill.metrics.store_wide import store_metrics

    await client.open()
    return await with_spinner(store_metrics(client.store), "reading the store")


async def _print_json(client: Client) -> str:
    import msgspec

    from jobmill.metrics.store_wide import scales

    await client.open()
    found = await with_spinner(scales(client.store), "reading the store")
    return msgspec.json.encode({"queues": found, "total": _total(found)}).decode() + "\n"


def _total(found: list[Any]) -> dict[str, int]:
    return {field: sum(getattr(one, field) for one in found) for field in ("desired", "due", "held", "running")}


async def _serve(client: Client, port: int, host: str) -> None:
    import asyncio
    import logging
    import signal

    from jobmill.metrics.store_wide import store_metrics
    from jobmill.worker.health import Health, Json

    await client.open()

    async def text() -> str:
        return await store_metrics(client.store)

    async def livez() -> dict[str, Any]:
        return {}

    async def every_scale() -> Json:
        from jobmill.metrics.store_wide import scales

        found = await scales(client.store)
        return Json({"queues": found, "total": _total(found)})

    views: dict[str, View] = {"/metrics": text, "/livez": livez, "/scale": every_scale}
    server = Health(port, views, host, other=lambda path, query: _scale_view(client, path, query), option="port")
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    await server.start()
    logging.getLogger("jobmill").info("serving http://%s:%d/metrics and /scale", host, server.port)
    try:
        await end.wait()
    finally:
        await server.stop()


def _scale_view(client: Client, path: str, query: dict[str, str]) -> View | None:
    """`/scale/{queue}`. A queue that nobody knows needs no worker, and an autoscaler may ask before its first job."""
    from urllib.parse import unquote

    from jobmill.core import limits
    from jobmill.core.durations import to_ms
    from jobmill.core.scaling import DEFAULT_TARGET_MS
    from jobmill.errors import InvalidValue
    from jobmill.metrics.store_wide import scales
    from jobmill.worker.health import Json

    prefix, _, rest = path.partition("/scale/")
    if prefix or not rest:
        return None

    async def view() -> Json:
        try:
            queue = limits.check_queue(unquote(rest))
            target_ms = to_ms(float(query["target"]), "target", least=1) if "target" in query else DEFAULT_TARGET_MS
            slots = limits.check_int(int(query["concurrency"]), "concurrency", 1) if "concurrency" in query else None
        except (InvalidValue, ValueError) as error:
            return Json({"ok": False, "error": str(error)}, status=400)
        (found,) = await scales(client.store, [queue], target_ms=target_ms, concurrency=slots)
        return Json(found)

    return view
