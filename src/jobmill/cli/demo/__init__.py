"""`jobmill demo`: runs jobs of every kind on SQLite in a temporary file, and shows them live."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Run jobs of every kind for ten seconds, in a temporary file."""
    import asyncio

    from jobmill.cli.demo.run import run_demo

    try:
        asyncio.run(run_demo())
    except asyncio.CancelledError:
        # After SIGTERM: the exit code that a shell would report.
        click.get_current_context().exit(143)
