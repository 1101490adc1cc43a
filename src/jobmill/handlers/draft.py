"""Drafts and groups: jobs as values, which may wait for each other, before they are in a store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct, structs

from jobmill.core.flows import After, IfFailed
from jobmill.core.limits import check_known_id
from jobmill.errors import InvalidValue
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.options import Options
from jobmill.handlers.placeholders import JobOutcome, Kind, Placeholder

if TYPE_CHECKING:
    from jobmill.handlers.flow import Flow
    from jobmill.handlers.hooks import Hooks

R = TypeVar("R", covariant=True)


class EnqueuesDrafts(Protocol):
    """What drafts and handlers use of a client."""

    hooks: Hooks

    def enqueue_many(
        self, drafts: Iterable[Draft[Any]], *, within: Any = None
    ) -> Coroutine[Any, Any, list[Enqueued[Any]]]:
        """Enqueue drafts, and all drafts that they wait for, in one call to the store."""

    async def enqueue_group(self, group: Group[Any], *, within: Any = None) -> Flow:
        """Enqueue the drafts of a group, and all drafts that they wait for, in one call to the store."""


class Need(Struct, frozen=True, eq=False):
    """What a draft waits for: another draft, the drafts of a group, or a job in the store by its id."""

    source: Draft[Any] | Group[Any] | str
    if_failed: IfFailed

    @property
    def parts(self) -> tuple[Draft[Any] | str, ...]:
        """The drafts or the id; each gets an edge."""
        return self.source.drafts if isinstance(self.source, Group) else (self.source,)


class Needs:
    """Collects what a draft waits for. The position of a part is the number of its edge."""

    def __init__(self, needs: Iterable[Need] = ()) -> None:
        self.list = list(needs)

    def add(self, source: Draft[Any] | Group[Any] | str, if_failed: IfFailed) -> int:
        """Add a need, unless there is one for the same source; the number of its first edge.

        Who needs a result cannot run without it, whatever other needs say.
        """
        first = 0
        for at, need in enumerate(self.list):
            if need.source is source or (isinstance(source, str) and need.source == source):
                if if_failed == "fail":
                    self.list[at] = Need(source, if_failed)
                return first
            first += len(need.parts)
        self.list.append(Need(source, if_failed))
        return first


class Draft(Struct, Generic[R], frozen=True):
    """A validated job that is not in a store yet. `R` is the type that its handler returns.

    `handler.draft(...)` makes it. Give `result` or `outcome` to drafts of other handlers as arguments: these then wait
    for this job. `enqueue` also enqueues all drafts that it waits for.
    """

    name: str
    payload_json: bytes
    options: Options
    client: EnqueuesDrafts
    needs: tuple[Need, ...] = ()

    def __repr__(self) -> str:
        """Name and payload."""
        return f"Draft({self.name!r}, {self.payload_json[:200].decode(errors='replace')})"

    @property
    def result(self) -> R:
        """What this job will return, as an argument of another draft: that job fails if this one does."""
        return cast(R, Placeholder(self, "$result"))

    @property
    def outcome(self) -> JobOutcome[R]:
        """How this job will end, as an argument of another draft: that job runs, however this one ends."""
        return cast(JobOutcome[R], Placeholder(self, "$outcome"))

    def after(self, *others: Awaited, even_if_failed: bool = False) -> Draft[R]:
        """The same draft, to run after other drafts, groups or jobs in the store. It fails if one of them fails.

        With `even_if_failed` it runs when they have ended, in whatever way.
        """
        needs = Needs(self.needs)
        for other in others:
            needs.add(_source(other), "run" if even_if_failed else "fail")
        return structs.replace(self, needs=tuple(needs.list))

    async def enqueue(self, *, within: Any = None) -> Enqueued[R]:
        """Enqueue this job and all drafts that it waits for, in one call: all of them or none."""
        return (await self.client.enqueue_many((self,), within=within))[0]


class Group(Generic[R]):
    """Several drafts, whose results are one argument of another draft. `jobs.group(...)` makes it."""

    __slots__ = ("client", "drafts", "id")

    def __init__(self, client: EnqueuesDrafts, drafts: tuple[Draft[R], ...], id: str | None = None) -> None:
        self.client = client
        self.drafts = drafts
        #: The id of its flow, if the caller gave one.
        self.id = id

    def __repr__(self) -> str:
        """How many drafts it has."""
        return f"<group of {len(self.drafts)} drafts>"

    def __len__(self) -> int:
        """How many drafts it has."""
        return len(self.drafts)

    def __iter__(self) -> Iterator[Draft[R]]:
        """Its drafts."""
        return iter(self.drafts)

    @property
    def results(self) -> list[R]:
        """What these jobs will return, as an argument of a draft: that job fails if one of these does."""
        return cast(list[R], Placeholder(self, "$results"))

    @property
    def outcomes(self) -> list[JobOutcome[R]]:
        """How these jobs will end, as an argument of a draft: that job runs, however these end."""
        return cast(list[JobOutcome[R]], Placeholder(self, "$outcomes"))

    def after(self, *others: Awaited, even_if_failed: bool = False) -> Group[R]:
        """The same drafts, each to run after other drafts, groups or jobs in the store."""
        drafts = tuple(draft.after(*others, even_if_failed=even_if_failed) for draft in self.drafts)
        return Group(self.client, drafts, self.id)

    async def enqueue(self, *, within: Any = None) -> Flow:
        """Enqueue all drafts, and all that they wait for, in one call: all of them or none."""
        return await self.client.enqueue_group(self, within=within)


#: What a draft can wait for.
Awaited: TypeAlias = Draft[Any] | Group[Any] | Enqueued[Any] | str


def _source(other: Any) -> Draft[Any] | Group[Any] | str:
    if isinstance(other, Draft | Group):
        return other
    if isinstance(other, Enqueued):
        return other.id
    if isinstance(other, str):
        return check_known_id(other)
    raise InvalidValue("after", "drafts, groups, enqueued jobs or ids", other)


def first_edge(needs: Needs, placeholder: Placeholder) -> int | list[int]:
    """What a placeholder says in a payload: the number of its edge; of a group the first one, and how many."""
    kind: Kind = placeholder.kind
    first = needs.add(placeholder.source, "fail" if kind.startswith("$result") else "run")
    return [first, len(placeholder.source)] if kind.endswith("s") else first


def waiting_draft(
    name: str, encode: Callable[[Callable[[Placeholder], Any]], bytes], options: Options, client: EnqueuesDrafts
) -> Draft[Any]:
    """A draft with results of other drafts as arguments: it waits for those. `encode` gets what marks them."""
    if options.dedupe:
        advice = "the results are not known yet; give a unique_key of your own"
        raise InvalidValue("dedupe", "arguments that are no results of other drafts", True, advice)
    needs = Needs()
    payload = encode(lambda one: first_edge(needs, one))
    return Draft(name, payload, options, client, tuple(needs.list))


def afters(needs: Iterable[Need], ids: dict[int, str]) -> tuple[After, ...]:
    """The edges of a draft. `ids` has the ids of all drafts by their identity: equal drafts are different jobs."""
    return tuple(
        After(part if isinstance(part, str) else ids[id(part)], need.if_failed) for need in needs for part in need.parts
    )
