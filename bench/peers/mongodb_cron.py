"""The crontab's peer on Node.js: mongodb-cron, whose collections ours can share."""

from __future__ import annotations

from bench.child import Child
from bench.figures import Ran
from bench.peers import node
from bench.peers.about import About

ABOUT = About(
    name="mongodb-cron, Node.js",
    package=None,
    settings="as many schedulers in one process as there are slots, on one MongoClient; the sparse index of its docs; "
    "idleDelay 100, other defaults",
    guarantee="kept: another scheduler takes them when their lock has ended",
)

SCRIPT = "mongodb_cron.mjs"


def missing() -> str | None:
    """Why it cannot be measured."""
    return node.missing()


def drain(url: str, jobs: int, schedulers: int) -> Child[Ran]:
    """So many schedulers run so many no-op documents."""
    return node.start(SCRIPT, "drain", Ran, url=url, jobs=jobs, schedulers=schedulers)


def poll(url: str, polls: int) -> float:
    """What a poll that finds nothing costs, in milliseconds of the server's time."""
    with node.start(SCRIPT, "poll", float, url=url, polls=polls) as child:
        return child.result()
