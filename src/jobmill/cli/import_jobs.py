"""`jobmill import celery, rq, arq`: takes over the jobs that wait in another system."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jobmill.cli.output import make_table, plural, print_json, print_rich
from jobmill.cli.params import options, store_options
from jobmill.cli.runner import FAILED, Unusable, run, with_spinner
from jobmill.cli.target import is_url_given, load_client, use_url

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.compat.importing import Imported

#: What the other systems begin their keys with, where the store of Jobmill may be on the same server.
THEIR_PREFIXES = {"celery": "_kombu", "rq": "rq", "arq": "arq"}
PICKLE_WARNING = "reading pickles: only plain data is taken out of them, and nothing that they name is called"


def _renames(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for old, _, new in pairs:
        if not old or not new:
            raise click.BadParameter(f"expected OLD=NEW, got {given[0]!r}", param=option)
    return {old: new for old, _, new in pairs}


@click.group("import", short_help="Take over jobs that wait in Celery, RQ or arq.")
def import_group() -> None:
    """Take over the jobs that wait in Celery, RQ or arq on Redis.

    Without --apply nothing is written: the command shows what it would import.
    It never changes the other system. An imported job keeps its id, so that a
    second run imports nothing twice. Stop the workers of the other system first.
    """


def _command(system: str, title: str, what: str, *own: Callable[[Any], Any]) -> click.Command:
    shared = options(
        click.argument("source", metavar="REDIS_URL"),
        click.argument("target", required=False),
        click.option("--apply", is_flag=True, help="Write the jobs (default: only show what would be imported)."),
        click.option("--queue", "queues", multiple=True, metavar="QUEUE", help=f"Read only this queue of {title}."),
        click.option(
            "--rename",
            "names",
            multiple=True,
            metavar="OLD=NEW",
            callback=_renames,
            help="Another name for these jobs.",
        ),
        click.option(
            "--rename-queue",
            "queue_names",
            multiple=True,
            metavar="OLD=NEW",
            callback=_renames,
            help="Another queue for the jobs of this queue.",
        ),
        click.option("--allow-pickle", is_flag=True, help="Also read plain data out of pickles."),
        *own,
        store_options,
    )

    @click.command(system, short_help=f"Take over the jobs of {title}.", help=_help(title, what))
    @shared
    def command(
        source: str, target: str | None, url: str | None, as_json: bool, allow_pickle: bool, **given: Any
    ) -> None:
        if allow_pickle:
            click.echo(f"jobmill: {PICKLE_WARNING}", err=True)
        apply: bool = given["apply"]

        async def work(client: Client) -> Imported:
            _check_prefix(system, client)
            opening = {"queues": given["queues"], "prefix": given.get("prefix") or "", "allow_pickle": allow_pickle}
            return await _imported(system, client, source, opening, given)

        done = _run(target, url, work)
        if as_json:
            print_json(_document(done, apply))
        else:
            _show(title, done, apply)
        click.get_current_context().exit(FAILED if done.refused else 0)

    return command


def _help(title: str, what: str) -> str:
    return (
        f"Take over {what} of {title} in the Redis at REDIS_URL.\n\n"
        "TARGET is the URL of the store, or the module of a client, such as app.py:jobs (default: --url). With a "
        "module, the arguments of each job are checked against its handler."
    )


celery = _command(
    "celery",
    "Celery",
    "the messages",
    click.option("--prefix", metavar="TEXT", help="The global_keyprefix of Celery's broker_transport_options."),
)
rq = _command("rq", "RQ", "the queued and scheduled jobs")
arq = _command("arq", "arq", "the queued and deferred jobs")
for _one in (celery, rq, arq):
    import_group.add_command(_one)


def _run(target: str | None, url: str | None, work: Callable[[Client], Any]) -> Imported:
    if target is None or "://" in target:
        # A dry run does not open the store, so that it creates no file.
        done: Imported = run(target or url, work, creates=True)
        return done
    use_url(url)
    client = load_client(target, checks_url=is_url_given())
    import asyncio

    async def opened() -> Imported:
        try:
            imported: Imported = await work(client)
            return imported
        finally:
            await client.close()

    return asyncio.run(opened())


async def _imported(
    system: str, client: Client, source: str, opening: dict[str, Any], given: dict[str, Any]
) -> Imported:
    from jobmill.compat.importing import import_jobs
    from jobmill.compat.redis_source import opened

    async with opened(source, **opening) as reader:
        importing = import_jobs(
            client,
            getattr(reader, system)(),
            names=given["names"],
            queues=given["queue_names"],
            apply=given["apply"],
        )
        done = await with_spinner(importing, "importing jobs" if given["apply"] else "reading jobs")
        done.left = await getattr(reader, f"{system}_left")()
    return done


def _check_prefix(system: str, client: Client) -> None:
    """Refuse a store whose keys would be among those of the other system."""
    store: Any = client.store
    prefix: str | None = store.context.url.prefix if store.name == "redis" else None
    if prefix == THEIR_PREFIXES[system]:
        raise Unusable(f"the store's prefix {prefix!r} is that of the other system: give another ?prefix= in its URL")


def _document(done: Imported, apply: bool) -> dict[str, Any]:
    jobs = [
        {"queue": queue, "name": name, "found": count}
        | ({"created": done.created[queue, name], "existed": done.existed[queue, name]} if apply else {})
        for (queue, name), count in sorted(done.found.items())
    ]
    refused = [
        {"reason": reason, "count": count, "examples": done.examples[reason]}
        for reason, count in done.refused.most_common()
    ]
    return {
        "applied": apply,
        "jobs": jobs,
        "unacknowledged": done.unacknowledged,
        "refused": refused,
        "left": done.left,
    }


def _show(title: str, done: Imported, apply: bool) -> None:
    counts = ("found", "created", "existed") if apply else ("found",)
    table = make_table(("QUEUE", "NAME", *(name.upper() for name in counts)), right=[name.upper() for name in counts])
    for key in sorted(done.found):
        table.add_row(*key, *(f"{getattr(done, name)[key]:,}" for name in counts))
    if done.found:
        print_rich(table)
    for reason, count in done.refused.most_common():
        ids = ", ".join(done.examples[reason])
        click.echo(f"jobmill: {plural(count)} cannot be imported: {reason} ({ids})", err=True)
    if done.unacknowledged:
        text = f"{plural(done.unacknowledged)} of these: fetched by a worker of {title}, and not acknowledged"
        click.echo(f"jobmill: {text}; stop its workers before --apply", err=True)
    left = ", ".join(f"{count:,} {name}" for name, count in done.left.items() if count)
    if left:
        click.echo(f"jobmill: left in {title}, and not imported: {left}", err=True)
    if apply:
        existed = f", {done.existed.total():,} were there already" if done.existed else ""
        click.echo(f"{plural(done.created.total())} imported{existed}")
    else:
        click.echo(f"{plural(done.found.total())} can be imported; nothing was written (--apply imports)")
    sys.stdout.flush()
