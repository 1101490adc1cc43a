"""What processes record about the runs of jobs with lanes, and the rule that tells whether a lane had too many.

All times are those of CLOCK_MONOTONIC, in seconds: one clock for all processes of a machine.

A run counts only while it certainly had a slot: from the return of the call that claimed it until the call that settled
it, or until its process was killed, or until its lease ended, or until somebody asked for its cancellation; whichever
was first. If the job was recovered, its slot has passed to the next run, so it counts until that run begins.

A run may begin if the runs of its lane that count at this moment, with itself, are not more than the highest limit that
was in force since the call began that claimed it. While a limit is changed, both limits are in force. On a store that
hands a slot on without a lock of the lane, a call that is in flight while the limit is lowered may hand one on by the
old limit. There a job that was admitted before, or meanwhile, may begin within `lag_s`: an admitted job is due at the
time of its admission. A run after a lost one is not judged: it has kept the slot, whatever the limit is now. The same
holds for a run after one that nobody has recorded, because its process was killed too soon.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

#: The clocks of a server and of its clients differ by less than this.
CLOCKS_S = 0.05
PAUSED = 0


class Begun(Struct, frozen=True, tag="begun"):
    """A job was claimed by a call that began and returned at these times."""

    lane: str
    id: str
    #: Which claim of the job it is.
    claim: int
    called: float
    returned: float
    #: When the job got its slot, and when the lease ends.
    admitted: float
    lease_ends: float
    #: Whether another lease on the job had ended.
    is_recovered: bool = False


class Ending(Struct, frozen=True, tag="ending"):
    """The claimer is about to settle a run, or forgets it: "forgotten"."""

    id: str
    claim: int
    at: float
    outcome: str


class Ended(Struct, frozen=True, tag="ended"):
    """The answer to the settlement of a run."""

    id: str
    claim: int
    at: float
    answer: str


class Asked(Struct, frozen=True, tag="asked"):
    """A call without a lease, which changed this job: "cancelled" or "requeued"."""

    id: str
    called: float
    returned: float
    what: str


Record: TypeAlias = Begun | Ending | Ended | Asked


class LimitChange(NamedTuple):
    """A call that changed the limit of a lane; 0: it was paused."""

    called: float
    returned: float
    limit: int


class Overrun(NamedTuple):
    """A run that began while its lane was full."""

    lane: str
    id: str
    at: float
    counted: int
    allowed: int


class Span(NamedTuple):
    """A run while it certainly had a slot, and whether it got that slot itself."""

    begun: Begun
    start: float
    end: float
    is_new: bool


def read(path: Path) -> list[Record]:
    """The records of one process. A killed process may have written a part of its last one."""
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [msgspec.json.decode(line, type=Record) for line in whole.splitlines()]


def write(records: Iterable[Record]) -> bytes:
    """Records as lines, to be written with one call."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in records)


class History:
    """All records of a test: those of claimers, by process, and those of the test itself."""

    def __init__(self, claimers: Iterable[Sequence[Record]], killed: Sequence[float | None], asked: Sequence[Asked]):
        #: By job.
        self.runs: defaultdict[str, list[Begun]] = defaultdict(list)
        self.ending: dict[tuple[str, int], Ending] = {}
        self.ended: dict[tuple[str, int], Ended] = {}
        self.asked: defaultdict[str, list[Asked]] = defaultdict(list)
        self._killed: dict[tuple[str, int], float | None] = {}
        for records, killed_at in zip(claimers, killed, strict=True):
            self._take(records, killed_at)
        for one in asked:
            self.asked[one.id].append(one)
        for runs in self.runs.values():
            runs.sort(key=lambda run: run.claim)

    def _take(self, records: Sequence[Record], killed_at: float | None) -> None:
        for record in records:
            if isinstance(record, Begun):
                self.runs[record.id].append(record)
                self._killed[record.id, record.claim] = killed_at
            elif isinstance(record, Ending):
                self.ending[record.id, record.claim] = record
            elif isinstance(record, Ended):
                self.ended[record.id, record.claim] = record

    # ------------------------------------------------------------------------------------------------ limits

    def spans(self) -> dict[str, list[Span]]:
        """The runs of each lane while they certainly had slots, by their begin."""
        found: defaultdict[str, list[Span]] = defaultdict(list)
        for runs in self.runs.values():
            for before, run, after in zip([None, *runs[:-1]], runs, [*runs[1:], None], strict=True):
                is_next = run.claim == (1 if before is None else before.claim + 1)
                is_new = is_next and not run.is_recovered and (before is None or not self._is_lost(before))
                found[run.lane].append(Span(run, run.returned, self._end(run, after), is_new))
        return {lane: sorted(spans, key=lambda span: span.start) for lane, spans in found.items()}

    def _is_lost(self, run: Begun) -> bool:
        """Whether nobody has tried to settle it."""
        ending = self.ending.get((run.id, run.claim))
        return ending is None or ending.outcome == "forgotten"

    def _end(self, run: Begun, after: Begun | None) -> float:
        key = run.id, run.claim
        killed_at = self._killed[key]
        ends = [run.lease_ends - CLOCKS_S]
        if not self._is_lost(run):
            ends.append(self.ending[key].at)
        elif after is not None and after.is_recovered:
            ends = [after.returned]  # an ended lease keeps its slot
        elif killed_at is not None:
            ends.append(killed_at)
        ends += [
            one.called for one in self.asked.get(run.id, ()) if one.what == "cancelled" and one.returned > run.called
        ]
        return min(ends)

    def overruns(
        self, limit: int, changes: Mapping[str, Sequence[LimitChange]], lag_s: float = 0.0
    ) -> tuple[list[Overrun], int]:
        """The runs that began while their lane was full, and how many began that filled it."""
        found: list[Overrun] = []
        full = 0
        for lane, spans in self.spans().items():
            limits = Limits(limit, changes.get(lane, ()))
            counting: list[float] = []
            for span in spans:
                if span.end <= span.start:
                    continue
                counting = [*(end for end in counting if end > span.start), span.end]
                run, counted = span.begun, len(counting)
                since = max(min(run.admitted - CLOCKS_S, run.called), run.called - lag_s)
                allowed = limits.highest(since, run.returned)
                full += counted == allowed
                if counted > allowed and span.is_new:
                    found.append(Overrun(lane, run.id, span.start, counted, allowed))
        return found, full

    def admissions(self) -> dict[str, list[float]]:
        """By lane: when jobs got slots that then ran, in order. A run after a lost one has the slot of that one."""
        found: defaultdict[str, set[tuple[str, float]]] = defaultdict(set)
        for id, runs in self.runs.items():
            for run in runs:
                found[run.lane].add((id, run.admitted))
        return {lane: sorted(at for _, at in slots) for lane, slots in found.items()}

    # ------------------------------------------------------------------------------------------------ ends

    def wrong_ends(self, states: Mapping[str, str]) -> list[str]:
        """The jobs whose states do not follow from the records.

        A job ends once, and once more for each time that it was requeued. A claimer that was killed may have ended a
        job without a record of the answer.
        """
        return [text for id, state in states.items() if (text := self._wrong_end(id, state)) is not None]

    def _wrong_end(self, id: str, state: str) -> str | None:
        #: When each end was asked for and answered; None: nobody knows whether it was answered.
        ends: list[tuple[float, float | None, str]] = []
        for run in self.runs.get(id, ()):
            ending, ended = self.ending.get((id, run.claim)), self.ended.get((id, run.claim))
            if ending is None or ending.outcome not in ("succeeded", "failed", "cancelled"):
                continue
            if ended is None or self._is_changed_meanwhile(ending, ended):
                ends.append((ending.at, None, ending.outcome))
            elif ended.answer == "done":
                ends.append((ending.at, ended.at, ending.outcome))
        asked = Counter(one.what for one in self.asked.get(id, ()))
        ends += [(one.called, one.returned, one.what) for one in self.asked.get(id, ()) if one.what == "cancelled"]
        certain = sum(answered is not None for _, answered, _ in ends)
        if not certain <= 1 + asked["requeued"] <= len(ends):
            return (
                f"{id} is {state}, but ended {certain} to {len(ends)} times and was requeued {asked['requeued']} times"
            )
        last_called = max((called for called, answered, _ in ends if answered is not None), default=0.0)
        possible = {what for called, answered, what in ends if answered is None or answered >= last_called}
        return None if state in possible else f"{id} is {state}, but its last end was one of {sorted(possible)}"

    def _is_changed_meanwhile(self, ending: Ending, ended: Ended) -> bool:
        """Whether a settlement may have been written although the answer is "lost".

        MongoDB may look for what a call has written after somebody has already requeued a job that it ended; or after
        somebody has changed a job that it lets try again, or another process has run that one and settled it.
        """
        is_retried = ending.outcome == "retried"
        return ended.answer == "lost" and (
            any(
                (is_retried or one.what == "requeued") and one.called < ended.at and one.returned > ending.at
                for one in self.asked.get(ending.id, ())
            )
            or (is_retried and self._is_run_again(ending, ended.at))
        )

    def _is_run_again(self, ending: Ending, until: float) -> bool:
        """Whether the next run of a job has ended before this time, without a recovery."""
        after = self.ending.get((ending.id, ending.claim + 1))
        runs = [run for run in self.runs[ending.id] if run.claim == ending.claim + 1 and not run.is_recovered]
        return after is not None and after.at < until and bool(runs)

    def wrong_losses(self) -> list[str]:
        """The jobs whose run could not be settled, although its lease had not ended and nobody had cancelled it."""
        lost = {key: ended for key, ended in self.ended.items() if ended.answer == "lost"}
        runs = [run for runs in self.runs.values() for run in runs if (run.id, run.claim) in lost]
        return [run.id for run in runs if not self._may_be_lost(run, lost[run.id, run.claim])]

    def _may_be_lost(self, run: Begun, ended: Ended) -> bool:
        is_cancelled = any(
            one.what == "cancelled" and one.called < ended.at and one.returned > run.called
            for one in self.asked.get(run.id, ())
        )
        is_late = ended.at > run.lease_ends - CLOCKS_S
        return is_late or is_cancelled or self._is_changed_meanwhile(self.ending[run.id, run.claim], ended)


class Limits:
    """The limits of one lane in the course of time."""

    def __init__(self, first: int, changes: Sequence[LimitChange]) -> None:
        self._changes = [LimitChange(0.0, 0.0, first), *changes]
        self._returned = [change.returned for change in self._changes]

    def highest(self, since: float, until: float) -> int:
        """The highest limit that was in force between these times."""
        before = bisect_right(self._returned, since) - 1
        return max(change.limit for change in self._changes[before:] if change.called <= until)
