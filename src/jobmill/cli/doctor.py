"""`jobmill doctor` and `jobmill fsck`: how a store is doing, and whether its data is consistent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from jobmill.cli.output import plural, print_json, print_rich
from jobmill.cli.params import store_options
from jobmill.cli.runner import FAILED, CommandFailed, as_called, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.findings import Finding

_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@store_options
def doctor(url: str | None, as_json: bool) -> None:
    """Check the store, its workers and its recurring jobs.

    The exit code is 1 if a check found an error, and 0 otherwise. Nothing is
    changed.
    """

    async def work(client: Client) -> list[Finding]:
        return await with_spinner(client.examine(), "checking")

    _show(run(url, work), as_json)


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired, after showing the plan.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@store_options
def fsck(repair: bool, yes: bool, url: str | None, as_json: bool) -> None:
    """Check whether the stored data is consistent. Workers may run meanwhile.

    The exit code is 1 if damage is left, and 0 otherwise. Nothing is changed
    without --repair. With it, each check says what is left and how many
    records were repaired.
    """

    async def find(client: Client) -> list[Finding]:
        return await with_spinner(client.fsck(), "checking")

    async def repair_all(client: Client) -> list[Finding]:
        from msgspec.structs import replace

        repaired = {one.check: one.repaired for one in await with_spinner(client.fsck(repair=True), "repairing")}
        left = await with_spinner(client.fsck(), "checking")
        return [replace(one, repaired=repaired[one.check]) for one in left]

    found = run(url, find)
    plan = [one for one in found if one.can_repair and one.count]
    if not repair or not plan:
        _show(found, as_json)
        return
    for one in plan:
        click.echo(f"repair {one.check}: {plural(one.count, 'record')}. {one.text}", err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise CommandFailed("nothing was repaired; give --yes to repair without confirmation")
        if not click.confirm("repair this?", err=True):
            raise CommandFailed("nothing was repaired")
    _show(run(url, repair_all), as_json)


def _show(findings: list[Finding], as_json: bool) -> None:
    from rich.text import Text

    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(findings))
    else:
        lines: list[Text] = []
        for one in findings:
            text = f"{one.text}; {_repaired(one.repaired)}" if one.repaired else one.text
            lines.append(Text.assemble((f"{one.level:<8}", _COLORS[one.level]), (f"{one.check}: ", "bold"), text))
            if one.remedy is not None and one.level != "ok":
                lines.append(Text(f"        {as_called(one.remedy)}"))
        print_rich(*lines)
        wrong = sum(one.level != "ok" for one in findings)
        said = f"{plural(len(findings), 'check')}, {wrong} with a problem or warning"
        if repaired := sum(one.repaired for one in findings):
            said += f"; {_repaired(repaired)}"
        click.echo(said, err=True)
    if any(one.level == "error" for one in findings):
        click.get_current_context().exit(FAILED)


def _repaired(count: int) -> str:
    return f"{plural(count, 'record')} repaired"
