"""New jobs whose unique keys have policies: look up what they meet, decide, and write under a guard.

Nothing is locked between the two calls, and the second is one statement: it does all for a job, or nothing. It compares
the owner of each key with what was seen. Where they differ, its answer is "again", and the caller repeats both.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, structs

from jobmill.core.changes import Cancel, Patch, Subject, decide, kept
from jobmill.core.events import Event
from jobmill.core.job import keep_cancelled
from jobmill.core.unique_policy import Owner, Replace, UniquePolicy, is_suspended, when_taken
from jobmill.core.values import NOW, NewJob
from jobmill.stores.postgres.codec import new_job_columns, patch_columns, read_held

if TYPE_CHECKING:
    from jobmill.stores.postgres.enqueue import CallFunction, FirstParameters

#: Queue, name, unique key.
Key: TypeAlias = tuple[str, str, str | None]
#: What became of a job that was not created: the id of the job that is there instead, and how.
Answer: TypeAlias = tuple[str | None, str]


class Plan(Struct, frozen=True, kw_only=True):
    """What is done for a new job: the last columns of enqueue_by_policy, in their order."""

    do: Literal["insert", "replace", "cancel", "pass"] = "insert"
    owner: str | None = None
    version: str | None = None
    #: The owner takes over the due time.
    moves: bool = False
    #: The columns of an owner that is cancelled, and whether it leaves the store.
    due_ms: int | None = None
    expires_ms: int | None = None
    keep_last: int | None = None
    leaves: bool = False
    for_ms: int | None = None
    #: The events of the owner. They are no column.
    events: tuple[Event, ...] = ()


#: The types of the columns of plans.
PLAN_TYPES = ("text", "text", "text", "boolean", "bigint", "bigint", "integer", "boolean", "bigint")


def runs_of_policies(new_jobs: Iterable[NewJob]) -> list[list[NewJob]]:
    """Runs of jobs without a policy, and of jobs with one in which a key comes again only if they can be merged."""
    runs: list[list[NewJob]] = []
    policies: dict[Key, UniquePolicy] = {}
    for new in new_jobs:
        key, policy = _key(new), new.policy
        is_other_kind = not runs or (runs[-1][0].policy is None) is not (policy is None)
        if is_other_kind or (policy is not None and key in policies and not _can_merge(policies[key], policy)):
            runs.append([])
            policies = {}
        runs[-1].append(new)
        if policy is not None:
            policies[key] = policy
    return runs


async def insert_by_policy(
    call: CallFunction,
    new_jobs: Sequence[NewJob],
    first: FirstParameters,
    awaited: Set[str],
    cancelled: MutableMapping[str, Sequence[Event]],
) -> Sequence[Iterable[Any]]:
    """Enqueue a run of `runs_of_policies`. The rows are those of enqueue_jobs; also "updated".

    `awaited`: the jobs that others of the call wait for. Events of jobs that were cancelled are added to `cancelled`.
    """
    leaders: dict[Key, NewJob] = {}
    for new in new_jobs:
        leaders[_key(new)] = _merged(leaders[_key(new)], new) if _key(new) in leaders else new
    answers = await _enqueue(call, list(leaders.values()), first, awaited, cancelled)
    if isinstance(answers, str):
        return [(0, None, answers)]
    rows: list[tuple[int, str | None, str]] = []
    for number, new in enumerate(new_jobs, 1):
        leader = leaders[_key(new)]
        answer = answers.get(leader.id)
        if new.id != leader.id:
            answer = _following(new, leader.id, answer)
        if answer is not None:
            rows.append((number, *answer))
    return rows


async def _enqueue(
    call: CallFunction,
    new_jobs: Sequence[NewJob],
    first: FirstParameters,
    awaited: Set[str],
    cancelled: MutableMapping[str, Sequence[Event]],
) -> dict[str, Answer] | str:
    """Enqueue jobs with different keys: an answer for each that was not created; or why nothing was done."""
    at_ms, told, inside, home = first
    keys = [[new.id for new in new_jobs], *map(list, zip(*map(_key, new_jobs), strict=True))]
    found = await call("key_owners", (at_ms, home, *keys))
    if not found:
        return "elsewhere"
    answers: dict[str, Answer] = {}
    plans: dict[str, Plan] = {}
    for new, row in zip(new_jobs, found, strict=True):
        plan = _plan(new, *row)
        if isinstance(plan, Plan):
            plans[new.id] = plan
        else:
            answers[new.id] = plan
    if not plans:
        return answers
    sent = [new for new in new_jobs if new.id in plans]
    columns = zip(*(structs.astuple(plan)[: len(PLAN_TYPES)] for plan in plans.values()), strict=True)
    lanes = [new.lane for new in sent] if any(new.lane for new in sent) else []
    parameters = (*new_job_columns(sent), [id in awaited for id in plans], *map(list, columns), lanes)
    for number, id, how in await call("enqueue_by_policy", (at_ms, told, inside, *parameters)):
        if how == "feed":
            return "feed"
        answers[sent[number - 1].id] = (id, how)
    cancelled.update((id, plan.events) for id, plan in plans.items() if plan.events and id not in answers)
    return answers


def _key(new: NewJob) -> Key:
    return new.queue, new.name, new.unique_key


# ---------------------------------------------------------------------------------------------------- decisions


def _plan(
    new: NewJob,
    now_ms: int,
    is_stored: bool,
    holder: str | None,
    id: str | None,
    version: str | None,
    is_running: bool | None,
    recurs: bool | None,
    held_json: str | None,
    *rest: Any,
) -> Plan | Answer:
    """What is done for a new job, by its row of key_owners; or its answer, where nothing is to be done."""
    for_ms = None if new.policy is None else new.policy.for_ms
    if is_stored:
        return new.id, "exists"
    if id is None:
        is_taken = for_ms is not None and holder is not None
        return (holder, "duplicate") if is_taken else Plan(for_ms=for_ms)
    due_ms, started_ms, waits_for, errors, options, has_dependents = rest
    held = read_held(held_json)
    state: Literal["running", "waiting"] = "running" if is_running else "waiting"
    suspended = is_suspended(held, started_ms, waits_for)
    owner = Owner(id=id, state=state, held=held, is_recurring=bool(recurs), is_suspended=suspended)
    taken = when_taken(new.policy, new.due, owner, now_ms)
    if taken == "duplicate":
        return id, "duplicate"
    plan = Plan(do="pass", owner=id, version=version)
    if isinstance(taken, Replace):
        return structs.replace(plan, do="replace", moves=not taken.fields.keys().isdisjoint(("due_ms", "held")))
    if taken == "pass":
        return plan
    keep = keep_cancelled(options)
    subject = Subject(
        id=id, name=new.name, queue=new.queue, state=state, due_ms=due_ms, errors=errors, held=held, keep_failed=keep
    )
    patch = decide(Cancel(), subject, now_ms)
    assert isinstance(patch, Patch)
    patch = kept(patch) if has_dependents else patch
    columns = patch_columns(id, patch, now_ms)
    written = {name: columns.get(name) for name in ("due_ms", "expires_ms", "keep_last")}
    return structs.replace(plan, do="cancel", leaves=patch.removes, events=patch.events, **written)


def _can_merge(first: UniquePolicy, second: UniquePolicy) -> bool:
    return first == second and first.when_live != "cancel"


def _merged(first: NewJob, second: NewJob) -> NewJob:
    """What two new jobs with the same key and an equal policy become, if the first one is not there already."""
    if not _takes_over(second):
        return first
    return structs.replace(first, payload_json=second.payload_json, due=first.due if second.due == NOW else second.due)


def _following(new: NewJob, leader: str, answer: Answer | None) -> Answer:
    """The answer of a job that was merged into another one: `leader`, or the job that took over its payload."""
    id, how = answer or (leader, "created")
    if how in ("exists", "again"):
        return None, "again"
    return id, "duplicate" if how == "duplicate" or not _takes_over(new) else "updated"


def _takes_over(new: NewJob) -> bool:
    """Whether a job that waits takes over the payload of this one."""
    return isinstance(when_taken(new.policy, new.due, Owner(id="", state="waiting"), 0), Replace)
