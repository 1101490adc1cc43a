"""Our side: the same steps through the port, decided by the core as a worker does, and through `jobmill.bullmq`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from jobmill.bullmq import Add, Deduplication, Queue
from jobmill.core.changes import Change, Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.flows import After
from jobmill.core.job import JobOptions, Keep, Progress
from jobmill.core.lifecycle import (
    Errored,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    begin,
    fails_instead,
    policy,
    settle,
)
from jobmill.core.recurrence import first_occurrence, recurrence
from jobmill.core.retry import backoff as to_backoff
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import NOW, Claim, Claimed, NewJob, QueueChange, RateLimit, Refused, Report, after, at
from jobmill.stores.redis import RedisStore
from tests.interop.node_side import BACKOFF, LEASE_MS, TOKEN, WORKER, NodeSide

NAMES = {"send": 1_000, "child": 1_000, "parent": 1_000}


class OurSide:
    """A prefix at a URL, where our store does everything but what only Node can."""

    def __init__(self, store: RedisStore, node: NodeSide) -> None:
        self.store = store
        self.node = node
        self.redis = node.redis
        self.prefix = node.prefix
        self.running: dict[str, Claimed] = {}

    def queue(self, name: str) -> Queue:
        """What BullMQ has and the port has not."""
        return Queue(self.store, name)

    # ------------------------------------------------------------------------------------------------ in

    async def add(self, id: str | None = None, *, queue: str = "mail", **about: Any) -> Any:
        """One job: through the port where it has an id and nothing that only BullMQ knows."""
        if id is None or {"lifo", "deduplication"} & about.keys():
            return await self.queue(queue).add(**_in_our_words(id, **about))
        (receipt,) = await self.store.enqueue([_new_job(id, queue, **about)])
        return _short(receipt.id)

    async def add_bulk(self, *jobs: dict[str, Any], queue: str = "mail") -> Any:
        """Several jobs in one call."""
        if all("id" in job for job in jobs):
            receipts = await self.store.enqueue([_new_job(queue=queue, **job) for job in jobs])
            return [_short(receipt.id) for receipt in receipts]
        return await self.queue(queue).add_bulk([Add(**_in_our_words(**job)) for job in jobs])

    async def add_unique(self, id: str, key: str, **about: Any) -> Any:
        """A job with a unique key of ours, which BullMQ knows as a deduplication id."""
        (receipt,) = await self.store.enqueue([msgspec.structs.replace(_new_job(id, "mail", **about), unique_key=key)])
        return _short(receipt.id)

    async def add_by_policy(self, id: str, key: str, policy: str, *, ms: int = 0, **about: Any) -> Any:
        """The same with a policy: "for", "debounce", "replace" or "cancel"."""
        fields: dict[str, Any] = {"for": {"for_ms": ms}, "debounce": {"debounce_ms": ms}}
        rules = UniquePolicy(**fields.get(policy, {"when_live": policy}))
        job = _new_job(id, "mail", delay=ms if policy == "debounce" else about.pop("delay", 0), **about)
        (receipt,) = await self.store.enqueue([msgspec.structs.replace(job, unique_key=key, policy=rules)])
        return _short(receipt.id)

    async def add_recurring(self, id: str, key: str, **rule: Any) -> Any:
        """A recurring job of ours, which BullMQ knows as a job scheduler."""
        made = recurrence(key=key, **rule)
        slot = first_occurrence(made, self.store.now())
        assert slot is not None
        job = msgspec.structs.replace(_new_job(id, "mail"), unique_key=key, recurrence=made, due=at(slot))
        assert [receipt.status for receipt in await self.store.enqueue([job])] == ["created"]

    async def node_add(self, id: str | None = None, **about: Any) -> Any:
        """A job with Node's own options and defaults, added by Node on both sides."""
        await self.node.node_add(id, **about)

    async def flow(self, tree: dict[str, Any]) -> Any:
        """A flow, added by Node on both sides."""
        await self.node.flow(tree)

    async def tree(self, tree: dict[str, Any]) -> Any:
        """The same flow, added by us: parents first, as Node does."""
        made = [waiting_job(tree)]
        trees = [tree]
        while trees:
            children = trees.pop(0).get("children", ())
            made += map(waiting_job, children)
            trees += children
        assert {receipt.status for receipt in await self.store.enqueue(made)} == {"created"}

    async def schedule(self, id: str, *, queue: str = "mail", **about: Any) -> Any:
        """Add or update a job scheduler."""
        words = {"startDate": "start_ms", "endDate": "end_ms"}
        await self.queue(queue).upsert_scheduler(id, **{words.get(word, word): value for word, value in about.items()})

    async def unschedule(self, id: str, *, queue: str = "mail") -> Any:
        """Remove a job scheduler."""
        await self.queue(queue).remove_scheduler(id)

    # ------------------------------------------------------------------------------------------------ work

    def _claim(self, n: int, queue: str) -> Claim:
        return Claim(queues=(queue,), names=NAMES, n=n, lease_ms=LEASE_MS, worker=WORKER, token=TOKEN)

    def _claimed(self, claimed: Sequence[object]) -> list[str]:
        whole = [one for one in claimed if isinstance(one, Claimed)]
        assert len(whole) == len(claimed), f"broken jobs among {claimed!r}"
        self.running |= {_short(one.job.id): one for one in whole}
        return [_short(one.job.id) for one in whole]

    async def claim(self, n: int = 1, *, queue: str = "mail") -> Any:
        """Claim up to n jobs in one call."""
        return self._claimed((await self.store.exchange([], self._claim(n, queue))).claimed)

    async def end(self, id: str, outcome: Outcome, *, queue: str = "mail", next: bool = False) -> Any:
        """Settle as a worker does; with `next` the same call claims another job."""
        claimed = self.running.pop(id)
        rules, now_ms = policy(claimed.job.options), self.store.now()
        settlement = begin(claimed, rules, now_ms) or settle(claimed, outcome, rules, now_ms)
        exchanged = await self.store.exchange([settlement], self._claim(1, queue) if next else None)
        if isinstance(refused := exchanged.settled[0], Refused):
            # As a worker does.
            errored = settle(claimed, Errored(error=refused.why), rules, now_ms)
            instead = errored if refused.is_temporary else fails_instead(settlement, refused, rules)
            exchanged = await self.store.exchange([instead], None)
        assert exchanged.settled == ["done"], exchanged
        return self._claimed(exchanged.claimed)

    async def complete(self, id: str, value: object = None, **about: Any) -> Any:
        """The handler returns."""
        return await self.end(id, Succeeded(msgspec.json.encode(value)), **about)

    async def error(self, id: str, error: str = "no luck", *, final: bool = False, **about: Any) -> Any:
        """The handler raises: the job is tried again, or not, as each side decides."""
        return await self.end(id, Errored(error=error, traceback=f"Traceback of {error}", final=final), **about)

    async def snooze(self, id: str, ms: int, **about: Any) -> Any:
        """The handler asks to be run later."""
        return await self.end(id, Snoozed(ms), **about)

    async def release(self, id: str, **about: Any) -> Any:
        """The worker gives the job back."""
        return await self.end(id, Released(), **about)

    async def claim_run(self, scheduler: str) -> Any:
        """Claim the run of a scheduler that is due."""
        return await self.claim()

    async def complete_run(self, scheduler: str, value: object) -> Any:
        """The handler of a scheduler's run returns."""
        await self.complete(f"repeat:{scheduler}", value)

    async def error_run(self, scheduler: str, *, final: bool = False) -> Any:
        """The handler of a scheduler's run raises."""
        await self.error(f"repeat:{scheduler}", final=final)

    async def extend(self, id: str, ms: int, *, queue: str = "mail") -> Any:
        """Prolong the lease."""
        assert await self.store.extend([self.running[id].lease], ms) == []

    async def progress(self, id: str, value: float, *, queue: str = "mail") -> Any:
        """Say how far a job is."""
        assert await self.store.report([Report(lease=self.running[id].lease, progress=Progress(value))]) == []

    async def log(self, id: str, line: str, *, queue: str = "mail") -> Any:
        """Add a line to a job's log."""
        assert (
            await self.store.report([Report(lease=self.running[id].lease, lines=(line,), attempt=1, level="warning")])
            == []
        )

    async def take_over(self, *, queue: str = "mail") -> Any:
        """Claim a job whose lock has ended."""
        return await self.claim(queue=queue)

    # ------------------------------------------------------------------------------------------------ change

    async def _change(self, id: str, queue: str, change: Change) -> None:
        changed = await self.store.change([f"{queue}:{id}"], change)
        assert changed.refused == {}, changed

    async def promote(self, id: str, *, queue: str = "mail") -> Any:
        """A delayed job is due now."""
        await self._change(id, queue, Reschedule(NOW))

    async def promote_all(self, *, queue: str = "mail") -> Any:
        """All delayed jobs are due now."""
        await self.queue(queue).promote_all()

    async def change_delay(self, id: str, ms: int, *, queue: str = "mail") -> Any:
        """A delayed job is due at another time."""
        await self._change(id, queue, Reschedule(after(ms)))

    async def change_priority(self, id: str, priority: int, *, queue: str = "mail") -> Any:
        """A waiting job has another priority."""
        await self._change(id, queue, Reprioritize(priority))

    async def remove(self, id: str, *, queue: str = "mail") -> Any:
        """A job leaves."""
        await self._change(id, queue, Remove())

    async def requeue(self, id: str, state: str = "failed", *, queue: str = "mail") -> Any:
        """A finished job waits again, with fresh budgets."""
        await self._change(id, queue, Requeue())

    async def purge(self) -> Any:
        """Remove what is past its retention, as a worker does from time to time."""
        await self.store.purge()

    async def retry_all(self, *, queue: str = "mail", state: Literal["failed", "completed"] = "failed") -> Any:
        """All finished jobs of a state wait again."""
        await self.queue(queue).retry_all(state=state)

    # ------------------------------------------------------------------------------------------------ the queue

    async def pause(self, *, queue: str = "mail") -> Any:
        """No more claims."""
        await self.store.configure(queue, QueueChange(paused=True))

    async def resume(self, *, queue: str = "mail") -> Any:
        """Claims again."""
        await self.store.configure(queue, QueueChange(paused=False))

    async def drain(self, *, delayed: bool = False, queue: str = "mail") -> Any:
        """All waiting jobs leave."""
        await self.queue(queue).drain(delayed=delayed)

    async def clean(self, grace_ms: int, limit: int, state: Any, *, queue: str = "mail") -> Any:
        """Jobs of a state leave that have been in it for longer."""
        return sorted(await self.queue(queue).clean(grace_ms, limit, state))

    async def rate_limit(self, ms: int, *, queue: str = "mail") -> Any:
        """No claims for a while."""
        await self.queue(queue).rate_limit(ms)

    async def set_rate_limit(self, count: int | None, per_ms: int = 0, *, queue: str = "mail") -> Any:
        """At most so many claims in each window; None takes the limit away."""
        limit = None if count is None else RateLimit(count, per_ms)
        await self.store.configure(queue, QueueChange(rate_limit=limit))

    async def set_running_limit(self, limit: int | None, *, queue: str = "mail") -> Any:
        """At most so many running jobs; None takes the limit away."""
        await self.store.configure(queue, QueueChange(running_limit=limit))


def _short(id: str) -> str:
    """The id as BullMQ knows it."""
    return id.partition(":")[2] or id


def _new_job(
    id: str,
    queue: str,
    *,
    name: str = "send",
    data: object = None,
    delay: int = 0,
    priority: int = 0,
    attempts: int = 3,
    backoff: Any = BACKOFF,
    remove_on_complete: Any = None,
    remove_on_fail: Any = None,
) -> NewJob:
    options = JobOptions(
        max_attempts=attempts,
        backoff=to_backoff(backoff),
        keep_succeeded=_keep(remove_on_complete),
        keep_failed=_keep(remove_on_fail),
    )
    payload = msgspec.json.encode({"to": "ada"} if data is None else data)
    return NewJob(
        id=id, name=name, queue=queue, payload_json=payload, due=after(delay), priority=priority, options=options
    )


def waiting_job(tree: dict[str, Any]) -> NewJob:
    """A job of a flow, which waits for its children."""
    about = {word: value for word, value in tree.items() if word not in ("children", "if_failed")}
    waits = tuple(After(child["id"], child["if_failed"]) for child in tree.get("children", ()))
    return msgspec.structs.replace(_new_job(**about), after=waits)


def _keep(said: Any) -> Keep | None:
    match said:
        case None:
            return None
        case bool():
            return Keep(last=0) if said else Keep()
        case int():
            return Keep(last=said)
    age = said.get("age")
    return Keep(last=said.get("count"), age_ms=None if age is None else age * 1_000)


def _in_our_words(
    id: str | None = None,
    *,
    name: str = "send",
    data: object = None,
    attempts: int = 3,
    backoff: Any = BACKOFF,
    deduplication: dict[str, Any] | None = None,
    **about: Any,
) -> dict[str, Any]:
    if deduplication is not None:
        words = {"keepLastIfActive": "keep_last_if_active"}
        said = {words.get(word, word): value for word, value in deduplication.items()}
        about["deduplication"] = Deduplication(**said)
    described = {"name": name, "data": {"to": "ada"} if data is None else data, "attempts": attempts}
    return described | {"backoff": backoff, "job_id": id} | about
