"""`jobmill flows list, show, retry, cancel`: jobs that were enqueued together and wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import STATE_COLORS, cell, make_table, plural, print_json, print_rich
from jobmill.cli.params import STATES, store_options
from jobmill.cli.runner import run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.job import Job

#: How many jobs of a flow are shown.
MAX_SHOWN = 500


@click.group(invoke_without_command=True, short_help="List, show, retry and cancel flows.")
@store_options
@click.pass_context
def flows(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """List, show, retry and cancel flows: jobs that wait for each other.

    Without a command, this runs `list`.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_flows, limit=20, before=None, url=url, as_json=as_json)


@flows.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, help="Maximum number of flows (default 20).")
@click.option("--before", metavar="ID", help="Continue after the flow with this id.")
@store_options
def list_flows(limit: int, before: str | None, url: str | None, as_json: bool) -> None:
    """List flows and how far they are, those with new ids first."""

    async def work(client: Client) -> list[dict[str, Any]]:
        await client.open()
        ids = await client.store.flows(before, limit)
        return [await _counted(client, id) for id in ids]

    found = run(url, lambda client: with_spinner(work(client), "counting jobs"))
    if as_json:
        print_json(found)
    elif found:
        table = make_table(("flow", "done", "total", *STATES), right=("done", "total", *STATES), cut=())
        for one in found:
            figures = (f"{one[name]:,}" for name in ("done", "total", *STATES))
            table.add_row(cell(one["id"]), *figures)
        print_rich(table)
    else:
        click.echo("no flows", err=True)
    if len(found) == limit:
        click.echo(f"next page: --before {found[-1]['id']}", err=True)


async def _counted(client: Client, id: str) -> dict[str, Any]:
    from jobmill.handlers.flow import Flow

    progress = await Flow(client, id).progress()
    counts = {state: getattr(progress, state) for state in STATES}
    return {"id": id, "total": progress.total, "done": progress.done, **counts}


@flows.command()
@click.argument("id")
@store_options
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show the jobs of a flow: each under the jobs that wait for it."""

    async def work(client: Client) -> tuple[dict[str, Any], list[tuple[Job, list[str]]]]:
        await client.flow(id)
        found: list[tuple[Job, list[str]]] = []
        async for job in client.find_all(flow=id):
            edges = await client.store.dependencies(job.id) if job.dependencies else []
            found.append((job, [edge.id for edge in edges]))
            if len(found) == MAX_SHOWN:
                break
        return await _counted(client, id), found

    counts, found = run(url, lambda client: with_spinner(work(client), "reading jobs"))
    if as_json:
        jobs = [{**job.to_dict(), "after": after} for job, after in found]
        print_json({**counts, "jobs": jobs})
        return
    click.echo(f"flow {id}: {counts['done']:,} of {plural(counts['total'], 'job')} done, {counts['failed']:,} failed")
    print_rich(_tree(found))
    if counts["total"] > len(found):
        click.echo(f"only the first {len(found):,} jobs are shown", err=True)


def _tree(found: list[tuple[Job, list[str]]]) -> Any:
    """Each job that nobody waits for as a root, with the jobs that it waits for below it; each job once."""
    from rich.text import Text
    from rich.tree import Tree

    jobs = {job.id: (job, after) for job, after in found}
    needed = {id for _, after in found for id in after}
    root = Tree("", hide_root=True)
    seen: set[str] = set()
    stack = [(root, id) for id in reversed(jobs) if id not in needed] or [(root, id) for id in reversed(jobs)]
    while stack:
        above, id = stack.pop()
        if id not in jobs:
            above.add(Text(f"{id} (not in this flow)", "dim"))
            continue
        job, after = jobs[id]
        state = f"{job.state}, held" if job.held is not None else job.state
        label = Text(job.name, "bold").append(f"  {job.id}  ", "dim").append(state, STATE_COLORS[job.state])
        if job.error:
            label.append(f"  {job.error.splitlines()[0][:80]}", "red")
        if id in seen:
            above.add(label.append("  (see above)", "dim"))
            continue
        seen.add(id)
        below = above.add(label)
        stack += [(below, other) for other in reversed(after)]
    return root


@flows.command()
@click.argument("id")
@store_options
def retry(id: str, url: str | None, as_json: bool) -> None:
    """Run the jobs of a flow again that failed or were cancelled, and those that failed because of them."""
    _act(id, "retry", "requeued", url, as_json)


@flows.command()
@click.argument("id")
@store_options
def cancel(id: str, url: str | None, as_json: bool) -> None:
    """Cancel the jobs of a flow that have not ended."""
    _act(id, "cancel", "cancelled", url, as_json)


def _act(id: str, act: str, done: str, url: str | None, as_json: bool) -> None:
    async def work(client: Client) -> int:
        flow = await client.flow(id)
        count: int = await getattr(flow, act)()
        return count

    count = run(url, lambda client: with_spinner(work(client), f"{act} {id}"))
    if as_json:
        print_json({"id": id, done: count})
    else:
        click.echo(f"{done} {plural(count, 'job')}")
