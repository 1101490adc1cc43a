"""The golden side: each step done by BullMQ for Node."""

from __future__ import annotations

from typing import Any, Protocol

from redis.asyncio import Redis

from jobmill.testing import ManualClock

#: What our jobs have unless something else is said; Node is told the same.
BACKOFF = {"type": "exponential", "delay": 1_000}
LEASE_MS = 15_000
WORKER = "worker-1"
TOKEN = "token-1"


class Asked(Protocol):
    """A Node process that answers commands."""

    async def ask(self, op: str, **about: Any) -> Any:
        """What it answered; an error is raised."""


class NodeSide:
    """A prefix at a URL, where Node does everything."""

    def __init__(self, process: Asked, redis: Redis, url: str, prefix: str, clock: ManualClock) -> None:
        self.process = process
        self.redis = redis
        self.url = url
        self.prefix = prefix
        self.clock = clock
        self.runs: dict[str, str] = {}

    async def ask(self, op: str, queue: str = "mail", **about: Any) -> Any:
        """One operation, at the time of the clock."""
        given = {name: value for name, value in about.items() if value is not None}
        return await self.process.ask(
            op, url=self.url, prefix=self.prefix, queue=queue, now=self.clock.now_ms, worker=WORKER, **given
        )

    # ------------------------------------------------------------------------------------------------ in

    async def add(self, id: str | None = None, *, queue: str = "mail", **about: Any) -> Any:
        """One job."""
        return await self.ask("add", queue, **described(id, **about))

    async def add_bulk(self, *jobs: dict[str, Any], queue: str = "mail") -> Any:
        """Several jobs in one call."""
        return await self.ask("bulk", queue, jobs=[described(**job) for job in jobs])

    async def add_unique(self, id: str, key: str, *, name: str = "send", **about: Any) -> Any:
        """A job with a unique key of ours, which BullMQ knows as a deduplication id."""
        return await self.add(id, name=name, deduplication={"id": f"{name} {key}"}, **about)

    async def add_by_policy(self, id: str, key: str, policy: str, *, ms: int = 0, **about: Any) -> Any:
        """The same with a policy of ours: "for", "debounce", "replace" or "cancel"."""
        modes = {"for": {"ttl": ms}, "debounce": {"ttl": ms, "extend": True, "replace": True}}
        modes |= {"replace": {"replace": True}, "cancel": {}}
        about |= {"delay": ms} if policy == "debounce" else {}
        return await self.add(id, deduplication={"id": f"send {key}", **modes[policy]}, **about)

    async def node_add(self, id: str | None = None, *, queue: str = "mail", name: str = "send", **opts: Any) -> Any:
        """A job with Node's own options and defaults, added by Node on both sides."""
        await self.ask("add", queue, name=name, data={"to": "ada"}, opts={"jobId": id, **opts})

    async def flow(self, tree: dict[str, Any]) -> Any:
        """A flow, added by Node on both sides."""
        await self.ask("flow", tree=tree)

    async def tree(self, tree: dict[str, Any]) -> Any:
        """A flow, added by Node on this side: `described` says what our jobs have."""
        await self.ask("flow", tree=_for_producer(tree))

    async def schedule(self, id: str, *, queue: str = "mail", **about: Any) -> Any:
        """Add or update a job scheduler."""
        template = {name: about.pop(name) for name in ("name", "data", "opts") if name in about}
        await self.ask("schedule", queue, scheduler=id, repeat=about, template=template)

    async def add_recurring(self, id: str, key: str, *, name: str = "send", **rule: Any) -> Any:
        """A recurring job of ours, which BullMQ knows as a job scheduler."""
        words = {"every_ms": "every", "cron": "pattern", "timezone": "tz"}
        repeat = {words.get(word, word): value for word, value in rule.items()}
        await self.schedule(f"{name} {key}", **repeat, **described(name=name))

    async def unschedule(self, id: str, *, queue: str = "mail") -> Any:
        """Remove a job scheduler."""
        await self.ask("unschedule", queue, scheduler=id)

    # ------------------------------------------------------------------------------------------------ work

    async def claim(self, n: int = 1, *, queue: str = "mail") -> Any:
        """Claim up to n jobs, one by one, under one token."""
        ids = [await self.ask("claim", queue, token=TOKEN) for _ in range(n)]
        return [id for id in ids if id is not None]

    async def end(self, id: str, *, queue: str = "mail", next: bool = False, **end: Any) -> Any:
        """Have the handler of a claimed job end like this; with `next` the same call claims another job."""
        claimed = await self.ask("settle", queue, job=id, token=TOKEN, end=end, next=next)
        return [claimed] if claimed is not None else []

    async def complete(self, id: str, value: object = None, **about: Any) -> Any:
        """The handler returns."""
        return await self.end(id, how="return", value=value, **about)

    async def error(self, id: str, error: str = "no luck", *, final: bool = False, **about: Any) -> Any:
        """The handler raises: the job is tried again, or not, as each side decides."""
        return await self.end(id, how="throw", error=error, unrecoverable=final, **about)

    async def snooze(self, id: str, ms: int, **about: Any) -> Any:
        """The handler asks to be run later."""
        return await self.end(id, how="delay", ms=ms, **about)

    async def release(self, id: str, **about: Any) -> Any:
        """The worker gives the job back."""
        return await self.end(id, how="wait", **about)

    async def claim_run(self, scheduler: str) -> Any:
        """Claim the run of a scheduler that is due."""
        self.runs[scheduler] = (await self.claim())[0]
        return [f"repeat:{scheduler}"]

    async def complete_run(self, scheduler: str, value: object) -> Any:
        """The handler of a scheduler's run returns."""
        await self.complete(self.runs.pop(scheduler), value)

    async def error_run(self, scheduler: str, *, final: bool = False) -> Any:
        """The handler of a scheduler's run raises."""
        await self.error(self.runs.pop(scheduler), final=final)

    async def extend(self, id: str, ms: int, *, queue: str = "mail") -> Any:
        """Prolong the lease."""
        await self.ask("extend", queue, job=id, token=TOKEN, ms=ms)

    async def progress(self, id: str, value: object, *, queue: str = "mail") -> Any:
        """Say how far a job is."""
        await self.ask("progress", queue, job=id, value=value)

    async def log(self, id: str, line: str, *, queue: str = "mail") -> Any:
        """Add a line to a job's log."""
        await self.ask("log", queue, job=id, line=line)

    async def take_over(self, *, queue: str = "mail") -> Any:
        """Find the jobs whose locks have ended, and claim one: Node needs two looks and a claim for it."""
        await self.ask("stalled", queue)
        await self.ask("stalled", queue)
        return await self.claim(queue=queue)

    # ------------------------------------------------------------------------------------------------ change

    async def promote(self, id: str, *, queue: str = "mail") -> Any:
        """A delayed job is due now."""
        await self.ask("promote", queue, job=id)

    async def promote_all(self, *, queue: str = "mail") -> Any:
        """All delayed jobs are due now."""
        await self.ask("promoteAll", queue)

    async def change_delay(self, id: str, ms: int, *, queue: str = "mail") -> Any:
        """A delayed job is due at another time."""
        await self.ask("changeDelay", queue, job=id, ms=ms)

    async def change_priority(self, id: str, priority: int, *, queue: str = "mail") -> Any:
        """A waiting job has another priority."""
        await self.ask("changePriority", queue, job=id, opts={"priority": priority})

    async def remove(self, id: str, *, queue: str = "mail") -> Any:
        """A job leaves."""
        await self.ask("remove", queue, job=id)

    async def requeue(self, id: str, state: str = "failed", *, queue: str = "mail") -> Any:
        """A finished job waits again, with fresh budgets; what it was started goes on counting, for our fence."""
        await self.ask("retry", queue, job=id, state=state, opts={"resetAttemptsMade": True})

    async def purge(self) -> Any:
        """Node has removed what it does not keep when it settled the job."""

    async def retry_all(self, *, queue: str = "mail", state: str = "failed") -> Any:
        """All finished jobs of a state wait again."""
        await self.ask("retryAll", queue, opts={"state": state})

    # ------------------------------------------------------------------------------------------------ the queue

    async def obliterate(self, *, queue: str = "mail") -> Any:
        """The queue leaves, with all its jobs."""
        await self.ask("obliterate", queue)

    async def pause(self, *, queue: str = "mail") -> Any:
        """No more claims."""
        await self.ask("pause", queue)

    async def resume(self, *, queue: str = "mail") -> Any:
        """Claims again."""
        await self.ask("resume", queue)

    async def drain(self, *, delayed: bool = False, queue: str = "mail") -> Any:
        """All waiting jobs leave."""
        await self.ask("drain", queue, delayed=delayed)

    async def clean(self, grace_ms: int, limit: int, state: str, *, queue: str = "mail") -> Any:
        """Jobs of a state leave that have been in it for longer."""
        return sorted(await self.ask("clean", queue, grace=grace_ms, limit=limit, state=state))

    async def rate_limit(self, ms: int, *, queue: str = "mail") -> Any:
        """No claims for a while."""
        await self.ask("rateLimit", queue, ms=ms)

    async def set_rate_limit(self, count: int | None, per_ms: int = 0, *, queue: str = "mail") -> Any:
        """At most so many claims in each window; None takes the limit away."""
        if count is None:
            await self.ask("removeRateLimit", queue)
        else:
            await self.ask("setRateLimit", queue, max=count, duration=per_ms)

    async def set_running_limit(self, limit: int | None, *, queue: str = "mail") -> Any:
        """At most so many running jobs; None takes the limit away."""
        if limit is None:
            await self.ask("removeConcurrency", queue)
        else:
            await self.ask("setConcurrency", queue, value=limit)


def described(
    id: str | None = None,
    *,
    name: str = "send",
    data: object = None,
    attempts: int = 3,
    backoff: object = BACKOFF,
    **opts: Any,
) -> dict[str, Any]:
    """A job as BullMQ is told it; options in our words are put into its own."""
    words = {"remove_on_complete": "removeOnComplete", "remove_on_fail": "removeOnFail"}
    said = {words.get(word, word): value for word, value in opts.items()}
    said |= {"attempts": attempts, "backoff": backoff} | ({"jobId": id} if id is not None else {})
    return {"name": name, "data": {"to": "ada"} if data is None else data, "opts": said}


#: BullMQ's options for what becomes of a parent when its child fails, by our words.
FAILURES = {
    "fail": {"failParentOnFailure": True},
    "run": {"ignoreDependencyOnFailure": True},
    "now": {"continueParentOnFailure": True},
    "forget": {"removeDependencyOnFailure": True},
    "wait": {},
}


def _for_producer(tree: dict[str, Any]) -> dict[str, Any]:
    about = {word: value for word, value in tree.items() if word not in ("children", "queue", "if_failed")}
    job = described(**about)
    job["opts"] |= FAILURES[tree["if_failed"]] if "if_failed" in tree else {}
    children = [_for_producer(child) for child in tree.get("children", ())]
    return job | {"queueName": tree["queue"]} | ({"children": children} if children else {})
