"""`jobmill health`: asks a worker on this machine whether it is ready, for probes that run a command."""

from __future__ import annotations

from typing import Any

import click

from jobmill.cli.params import port_or_path
from jobmill.cli.runner import FAILED, CommandFailed


@click.command(short_help="Check a worker that has a health port.")
@click.argument("address", metavar="PORT", type=port_or_path, envvar="JOBMILL_HEALTH")
@click.option("--host", metavar="HOST", default="127.0.0.1", help="Address of the worker (default 127.0.0.1).")
@click.option(
    "--live", is_flag=True, help="Check /livez, whether a loop is stuck (default: /readyz, whether it can claim jobs)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def health(address: int | str, host: str, live: bool, as_json: bool) -> None:
    """Check a worker that runs with --health PORT.

    The exit code is 0 if the worker is well, and 1 if it is not or does not
    answer. If JOBMILL_HEALTH has the port, PORT may be left out, here and in
    the option --health of the worker.
    """
    import asyncio

    from jobmill.worker.options import check_health

    path = "/livez" if live else "/readyz"
    where = address if isinstance(address, str) else f"{host}:{address}"
    answer = asyncio.run(_answer(check_health(address), host, path, where))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(answer))
        click.get_current_context().exit(0 if answer["ok"] else FAILED)
    if not answer.pop("ok"):
        raise CommandFailed(f"{where}{path}: " + ", ".join(f"{what}: {value}" for what, value in answer.items()))
    click.echo("ok")


async def _answer(address: int | str, host: str, path: str, where: str) -> dict[str, Any]:
    import msgspec

    from jobmill.worker.health import ask

    try:
        status, body = await ask(address, path, host)
    except OSError as error:
        return {"ok": False, "error": f"no answer from {where} ({str(error) or 'timeout'})"}
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        answer = {"error": "the answer is not from a worker"}
    return {**answer, "ok": status == 200 and answer.get("ok") is True}
