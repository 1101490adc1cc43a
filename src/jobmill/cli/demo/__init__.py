"""`jobmill demo`: jobs of every kind, live, on SQLite in a temporary file; ends by itself."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Watch jobs of every kind run, in ten seconds and a temporary file."""
    import asyncio

    from jobmill.cli.demo.run import run_demo

    try:
        asyncio.run(run_demo())
    except asyncio.CancelledError:
        # By SIGTERM; the code that a shell would give it.
        click.get_current_context().exit(143)
