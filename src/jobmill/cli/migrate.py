"""`jobmill migrate`: bring a store's schema up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmill.cli.output import print_json
from jobmill.cli.shell import json_option, patiently, run, url_option

if TYPE_CHECKING:
    from jobmill.client import Client


@click.command()
@url_option
@json_option
def migrate(url: str | None, as_json: bool) -> None:
    """Bring the store's schema up to date."""

    async def work(client: Client) -> list[str]:
        return await patiently(client.store.migrate(), "migrating")

    ran = run(url, work, creates=True)
    if as_json:
        print_json({"ran": ran})
    elif not ran:
        click.echo("up to date")
    else:
        for name in ran:
            click.echo(f"ran {name}")
