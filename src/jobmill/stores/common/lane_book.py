"""For stores that hold whole jobs in Python: which jobs get slots of lanes, and what else is known of lanes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from jobmill.core.due import in_lane
from jobmill.core.job import LIVE, Job
from jobmill.core.lanes import (
    LaneLimits,
    LanePosition,
    LaneWindow,
    admitted_fields,
    changed_lane,
    moves,
    pushed_back_fields,
)
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings
from jobmill.core.values import LANE_LIMIT, Lane


class JobsOfLane(Struct):
    """The live jobs of one lane that nothing else holds, in the order of the lane."""

    ready: list[LanePosition] = field(default_factory=list)
    later: list[LanePosition] = field(default_factory=list)
    admitted: list[LanePosition] = field(default_factory=list)
    running: int = 0

    def last_admitted(self, count: int) -> list[LanePosition]:
        """The last admitted jobs, the last one first."""
        return self.admitted[::-1][:count]


class LaneBook(Struct):
    """What is known of lanes, by "queue, line feed, lane"; neither name has control characters."""

    settings: dict[str, LaneSettings] = field(default_factory=dict)
    windows: dict[str, LaneWindow] = field(default_factory=dict)
    #: When the rate of a lane allows more of its ready jobs.
    again: dict[str, int] = field(default_factory=dict)
    #: When jobs with a slot joined their lanes, by id.
    joined: dict[str, int] = field(default_factory=dict)

    def configure(self, queue: str, lane: str, change: LaneChange) -> LaneSettings:
        """Change what is set for a lane."""
        key = f"{queue}\n{lane}"
        settings = self.settings[key] = changed_lane(self.settings.get(key, LaneSettings()), change)
        return settings

    def limits(self, queue: str, lane: str, rule: LaneRule | None) -> LaneLimits:
        """The limits of a lane under the rule of its queue."""
        return LaneLimits.of(rule, self.settings.get(f"{queue}\n{lane}"))

    def fill(
        self, jobs: Iterable[tuple[int, Job]], rules: Mapping[str, LaneRule | None], now_ms: int
    ) -> dict[str, dict[str, object]]:
        """Give free slots to the next jobs of all lanes: new fields by the ids of jobs. `jobs`: all, with seqs."""
        fields: dict[str, dict[str, object]] = {}
        joined: dict[str, int] = {}
        for key, own in self._lanes(jobs, now_ms).items():
            queue, lane = key.split("\n")
            limits, window = self.limits(queue, lane, rules.get(queue)), self.windows.get(key, LaneWindow())
            decided = moves(limits, own.ready, len(own.admitted), own.running, own.last_admitted, window, now_ms)
            self.windows[key] = decided.window
            self.again.pop(key, None)
            if decided.again_ms is not None:
                self.again[key] = decided.again_ms
            fields |= {id: pushed_back_fields(at_ms, now_ms) for _, at_ms, _, id in decided.push_back}
            fields |= {id: admitted_fields(now_ms) for *_, id in decided.admit}
            joined |= {id: at_ms for _, at_ms, _, id in (*own.admitted, *decided.admit)}
        self.joined = joined
        return fields

    def next_ms(self, queue: str, jobs: Iterable[Job], now_ms: int) -> int | None:
        """When a lane of a queue may give a slot without a settlement. `jobs`: those of the queue."""
        later = [job.held.due.at_ms or 0 for job in jobs if job.held is not None and in_lane(job.held)]
        again = [at_ms for key, at_ms in self.again.items() if key.startswith(f"{queue}\n")]
        return min((at_ms for at_ms in later + again if at_ms > now_ms), default=None)

    def lanes(
        self,
        queue: str,
        jobs: Iterable[tuple[int, Job]],
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
        now_ms: int,
    ) -> list[Lane]:
        """The lanes of a queue, by name."""
        own = self._lanes(jobs, now_ms)
        keys = {*own, *self.settings}
        known = sorted(lane for owner, lane in (key.split("\n") for key in keys) if owner == queue)
        wanted = [lane for lane in known if (names is None or lane in names) and (after is None or lane > after)]
        found = [self._lane(queue, lane, own.get(f"{queue}\n{lane}", JobsOfLane())) for lane in wanted]
        return [one for one in found if one != Lane(queue=queue, name=one.name)][:limit]

    def _lane(self, queue: str, name: str, jobs: JobsOfLane) -> Lane:
        key = f"{queue}\n{name}"
        return Lane(
            queue=queue,
            name=name,
            settings=self.settings.get(key, LaneSettings()),
            running=min(jobs.running, LANE_LIMIT),
            admitted=min(len(jobs.admitted), LANE_LIMIT),
            ready=min(len(jobs.ready), LANE_LIMIT),
            later=min(len(jobs.later), LANE_LIMIT),
            limited_until_ms=self.again.get(key),
        )

    def _lanes(self, jobs: Iterable[tuple[int, Job]], now_ms: int) -> dict[str, JobsOfLane]:
        lanes: defaultdict[str, JobsOfLane] = defaultdict(JobsOfLane)
        for seq, job in jobs:
            if job.lane is None or job.state not in LIVE:
                continue
            own = lanes[f"{job.queue}\n{job.lane}"]
            if job.state == "running":
                own.running += 1
            elif job.held is None:
                own.admitted.append((job.priority, self.joined.get(job.id, job.due_ms), seq, job.id))
            elif in_lane(job.held):
                joined_ms = job.held.due.at_ms or 0
                positions = own.ready if joined_ms <= now_ms else own.later
                positions.append((job.priority, joined_ms, seq, job.id))
        for own in lanes.values():
            own.ready.sort()
            own.admitted.sort()
        return lanes
