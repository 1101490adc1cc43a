"""`jobmill demo`: runs jobs of every kind on SQLite in a temporary file, and shows them live."""

from __future__ import annotations

import click

from jobmill.cli.serving import WithDashboard, dashboard_option


@click.command(cls=WithDashboard)
@dashboard_option("Serve the dashboard until Ctrl-C")
def demo(dashboard: int | None) -> None:
    """Run jobs of every kind for ten seconds, in a temporary file."""
    import asyncio

    from jobmill.cli.demo.run import run_demo

    try:
        asyncio.run(run_demo(dashboard))
    except asyncio.CancelledError:
        # After SIGTERM: the exit code that a shell would report.
        click.get_current_context().exit(143)
