"""`jobmill demo`: jobs of every kind, live, on SQLite in a temporary file; ends by itself."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Watch jobs of every kind run, in ten seconds and a temporary file."""
    import asyncio

    from jobmill.cli.demo_run import run_demo

    asyncio.run(run_demo())
