"""What is measured: each measure is written once, for every store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from bench.child import BEGUN, READY, SETTLED, Broken, Child, begin
from bench.child import run as in_child
from bench.clocks import Crowd, Looked, Pickups, Ran
from bench.contenders import ISOLATED, MONGODB_CRON, Contender
from bench.far import far
from bench.figures import CLIENT, RATE, percentile
from bench.grounds import SERVER
from bench.lab import Lab, Turn
from bench.machine import busy_s
from bench.peers import crontab
from bench.resident import MB, resident

BULK = 1_000
MORE_THAN_ENOUGH = 10_000_000
#: Long enough for a worker to fall asleep again.
GAPS_S = (0.01, 0.05)
#: How long the handlers take whose jobs are cancelled, and those whose results are awaited.
HELD_S = {"cancel": 60.0, "result": 0.5}
P50, P95, P99 = "p50 ms", "p95 ms", "p99 ms"
BARE, OTHERS, CORES = "the driver alone", "other processes", "busy cores"
#: The number of processes that make the final jobs of `operations`, one after the other.
PARTS = 4
SHALLOW = 1_000
#: After this time nobody waits for a job to be started again.
RECOVERY_S = 90.0
STARTS_WITHIN_S = 30.0
FAR_S = 0.002
#: How many jobs are settled in `flows`, and how many of them another one waits for.
FLOW_JOBS = 10_000
PLAIN = "nobody waits"
EACH = {PLAIN: 0, "one waits for 100": 100, "one waits for 10,000": 10_000, "one waits for each": 1}
HOW = ("settle", "drain")
#: In `lanes`: the number of lanes and their limit. On MongoDB there are fewer lanes and a smaller backlog.
NO_LANES = "no lanes"
LANES = {NO_LANES: (0, 0), "1 lane": (1, 1_000), "1,000 lanes": (1_000, 2), "100,000 lanes": (100_000, 2)}
LANE_JOBS, BACKLOG = 5_000, 300_000
FEWER = {"mongo": {100_000: 30_000, BACKLOG: 60_000}}
TOGETHER = "client and server CPU us/job"
MS_PER_POLL = "server ms/poll"
POLLS, THEIR_POLLS = 200, 10
#: How long the handlers of a drain take, beside those that do nothing.
HANDLERS_MS = (5, 50)


def drain(lab: Lab) -> None:
    """One worker process runs jobs that wait: no-op jobs, and jobs whose handlers take some time."""
    ground = lab.ground
    turns: dict[str, Turn] = {}
    once: list[str] = []
    for contender in lab.contenders:
        for slots in sorted(
            {contender.takes(slots) for slots in ((ground.judged,) if lab.scale.quick else ground.slots)}
        ):
            turns[name := f"{contender.name}, {slots} slots"] = partial(_drain, lab, contender, slots)
            if not lab.is_often(contender) or slots not in (1, 50, ground.judged):
                once.append(name)
        if lab.is_often(contender) and not contender.is_on_node:
            for ms in HANDLERS_MS:
                slots = contender.takes(50)
                turns[f"{contender.name}, {slots} slots, {ms} ms"] = partial(_drain, lab, contender, slots, ms)
    lab.alternate(turns, once)


def _drain(lab: Lab, contender: Contender, slots: int, ms: int = 0) -> None:
    one, many = contender.rate
    what, arguments = f"{slots} slots", {"slots": slots}
    if ms:
        what, arguments = f"{what}, handlers of {ms} ms", {"slots": slots, "ms": ms}

    def run(jobs: int) -> Ran:
        with lab.ground.filled(contender, jobs) as url:
            return lab.record_run(what, contender.name, contender.begin("drain", Ran, url=url, jobs=jobs, **arguments))

    rate = one if slots == 1 else min(many, one * slots)
    lab.sized(f"{contender.name}, {what}", min(rate, 1000 * slots / ms) if ms else rate, run)


def enqueue(lab: Lab) -> None:
    """One by one, from concurrent callers, and many jobs in a call."""
    callers = lab.ground.callers
    turns: dict[str, Turn] = {}
    once: list[str] = []
    for contender in lab.contenders:
        ways = {"one by one": 1, f"{callers} callers": callers} | (
            {f"{BULK:,} a call": 0} if contender.has_bulk else {}
        )
        for what, count in ways.items():
            turns[name := f"{contender.name}, {what}"] = partial(_enqueue, lab, contender, what, count)
            if not lab.is_often(contender):
                once.append(name)
    lab.alternate(turns, once)


def _enqueue(lab: Lab, contender: Contender, what: str, callers: int) -> None:
    with lab.ground.filled(contender, 0) as url:
        lab.record_run(what, contender.name, _enqueueing(lab, contender, url, callers))


def _enqueueing(lab: Lab, contender: Contender, url: str, callers: int) -> Child[Ran]:
    """One by one, or with 0 callers many in a call."""
    limits = {"url": url, "jobs": MORE_THAN_ENOUGH, "seconds": lab.scale.enqueue_s}
    if callers:
        return contender.begin("enqueue", Ran, callers=callers, **limits)
    return contender.begin("bulk", Ran, size=BULK, **limits)


def isolated(lab: Lab) -> None:
    """One worker runs no-op handlers in processes of their own."""
    wanted = [(one, slots) for one, numbers in ISOLATED for slots in numbers if lab.run.wants(one)]
    lab.alternate({f"{one.name}, {slots} slots": partial(_isolated, lab, one, slots) for one, slots in wanted})


def _isolated(lab: Lab, contender: Contender, slots: int) -> None:
    def run(jobs: int) -> Ran:
        with lab.ground.filled(contender, jobs) as url:
            ran = contender.run("isolated", Ran, url=url, jobs=jobs, slots=slots)
        lab.record(f"{slots} slots", contender.name, RATE, ran.jobs / ran.seconds)
        return ran

    lab.sized(f"{contender.name}, {slots}", contender.rate[slots > 1], run)


def pickup(lab: Lab) -> None:
    """From an enqueue in one process to the start of its job in an idle worker of another."""
    turns: dict[str, Turn] = {one.name: partial(_pickup, lab, one) for one in lab.contenders}
    lab.alternate(turns, [one.name for one in lab.contenders if not lab.is_often(one)])


def _pickup(lab: Lab, contender: Contender) -> None:
    jobs = lab.scale.pickups
    gaps = [lab.random.uniform(*GAPS_S) for _ in range(jobs)]
    slots = contender.takes(50)
    with (
        lab.ground.filled(contender, 0) as url,
        contender.begin("pickup", list[int], url=url, jobs=jobs, seconds=30, slots=slots) as worker,
    ):
        worker.wait_for(READY)
        calls = contender.run("pickupEnqueue", Pickups, url=url, gaps=gaps)
        started = worker.result()
    if 0 in started:
        raise Broken(f"only {sum(map(bool, started))} of {jobs} jobs were started in time")
    for what, since in (("since the call", calls.called), ("since its return", calls.returned)):
        latencies = [(start - instant) / 1e6 for start, instant in zip(started, since, strict=True)]
        lab.record(what, contender.name, P50, percentile(latencies, 50))
        lab.record(what, contender.name, P99, percentile(latencies, 99))


def latency(lab: Lab) -> None:
    """How late handlers of another process stop when their jobs are cancelled, and how late `result()` returns."""
    lab.alternate({what: partial(_latency, lab, what) for what in ("cancel", "result")})


def _latency(lab: Lab, what: str) -> None:
    ours, jobs = lab.ground.ours, lab.scale.looks
    gaps = [lab.random.uniform(0.0, jobs * GAPS_S[1] / 2) for _ in range(jobs)]
    held = {"jobs": jobs, "seconds": 90, "slots": jobs, "takes_s": HELD_S[what]}
    with lab.ground.filled(ours, 0) as url, ours.begin("pickup", list[int], url=url, **held) as worker:
        worker.wait_for(READY)
        called = ours.run("own", list[int], url=url, verb="ends", gaps=gaps, cancels=what == "cancel")
        late = [abs(end - call) / 1e6 for end, call in zip(worker.result(), called, strict=True)]
    lab.record(what, ours.name, P50, percentile(late, 50))
    lab.record(what, ours.name, P95, percentile(late, 95))


def scaling(lab: Lab) -> None:
    """Worker processes with 50 slots each run the jobs of one queue: no-op jobs, and handlers that take 5 ms."""
    lab.alternate({f"{many}, {ms} ms": partial(_scaling, lab, many, ms) for ms in (0, 5) for many in (1, 2, 4)})


def _scaling(lab: Lab, processes: int, ms: int) -> None:
    ours, what = lab.ground.ours, f"{processes} x 50 slots" + f", handlers of {ms} ms" * bool(ms)

    def run(jobs: int) -> Ran:
        with lab.ground.filled(ours, jobs) as url, ExitStack() as opened:
            begun = [ours.begin("drain", Ran, url=url, jobs=0, slots=50, ms=ms) for _ in range(processes)]
            workers = [opened.enter_context(child) for child in begun]
            for word in (BEGUN, SETTLED):  # all stand still at their first job, and then go on together
                for child in workers:
                    child.wait_for(word)
                for child in workers:
                    child.go_on()
            each = [child.result() for child in workers]
        seconds, cpu = max(one.seconds for one in each), sum(one.cpu_seconds for one in each)
        lab.record(what, ours.name, RATE, jobs / seconds)
        lab.record(what, ours.name, CLIENT, cpu / jobs * 1e6)
        return Ran(jobs=jobs, seconds=seconds, cpu_seconds=cpu)

    lab.sized(what, min(ours.rate[1], 50_000 / ms) if ms else ours.rate[1], run)


def depth(lab: Lab) -> None:
    """Our worker takes some jobs while few others wait, or very many, and as many are delayed by a day."""
    ground, ours, deep = lab.ground, lab.ground.ours, lab.scale.deep
    taken = lab.scale.depth_jobs + 10 * ground.judged
    lab.run.progress(f"{lab.measure}, making {deep:,} waiting and {deep:,} delayed jobs")
    with ground.fresh(ours) as many:
        ours.run("fill", type(None), url=many, jobs=deep + taken * lab.scale.rounds, delayed=deep)

        def turn(url: str, what: str) -> None:
            ground.settle(url)
            arguments = {"url": url, "jobs": lab.scale.depth_jobs, "slots": ground.judged, "leave": True}
            lab.record_run(what, ours.name, ours.begin("drain", Ran, **arguments))

        def few() -> None:
            with ground.filled(ours, SHALLOW + taken) as url:
                turn(url, f"{SHALLOW:,} waiting")

        lab.alternate({"few": few, "many": lambda: turn(many, f"{deep:,} waiting and {deep:,} delayed")})


def flows(lab: Lab) -> None:
    """Jobs that others wait for, against jobs that nobody waits for: settled by the store alone, and by a worker."""
    lab.alternate({f"{how}, {what}": partial(_flows, lab, how, what) for how in HOW for what in EACH})


def _flows(lab: Lab, how: str, what: str) -> None:
    ours, each = lab.ground.ours, EACH[what]
    jobs = {"jobs": FLOW_JOBS // (10 if lab.scale.quick else 1)}
    with lab.ground.fresh(ours) as url:
        if how == "settle":
            child = ours.begin("own", Ran, url=url, verb="settle", each=each, **jobs)
        else:
            ours.run("own", type(None), url=url, verb="fill_flows", each=each, **jobs)
            lab.ground.settle(url)
            all_jobs = jobs["jobs"] + (-(-jobs["jobs"] // each) if each else 0)
            child = ours.begin("drain", Ran, url=url, jobs=all_jobs, slots=50)
        lab.record_run(f"{how}, {what}", ours.name, child)
        _together(lab, f"{how}, {what}")


def lanes(lab: Lab) -> None:
    """Jobs are claimed and settled by the store alone, 50 a call: with lanes and without, of which few or many wait."""
    ground, ours, fewer = lab.ground, lab.ground.ours, FEWER.get(lab.ground.name, {})
    deep = fewer.get(BACKLOG, BACKLOG) // (10 if lab.scale.quick else 1)
    turns: dict[str, Turn] = {}

    def fill(url: str, jobs: int, about: dict[str, int]) -> None:
        ours.run("own", type(None), url=url, verb="fill_lanes", jobs=jobs, **about)
        ground.settle(url)

    def exchange(url: str, what: str, there: int, about: dict[str, int]) -> None:
        asked = {"verb": "exchange", "jobs": LANE_JOBS, "there": there + LANE_JOBS, **about}
        lab.record_run(what, ours.name, ours.begin("own", Ran, url=url, **asked))
        _together(lab, what)

    def few(what: str, about: dict[str, int]) -> None:
        with ground.fresh(ours) as url:
            fill(url, SHALLOW + LANE_JOBS, about)
            exchange(url, what, SHALLOW, about)

    with ExitStack() as opened:
        for what, (number, limit) in LANES.items():
            about = {"lanes": fewer.get(number, number), "limit": limit}
            lab.run.progress(f"{lab.measure}, making {deep:,} jobs: {what}")
            url = opened.enter_context(ground.fresh(ours))
            fill(url, deep + LANE_JOBS * (lab.scale.rounds + 1), about)
            turns[f"{what}, few"] = partial(few, f"{what}, few wait", about)
            turns[f"{what}, many"] = partial(exchange, url, f"{what}, many wait", deep, about)
        lab.alternate(turns)


def _together(lab: Lab, what: str) -> None:
    units = [value for _, _, unit, value in lab.recorded if unit in (CLIENT, SERVER)]
    lab.record(what, lab.ground.ours.name, TOGETHER, sum(units))


def memory(lab: Lab) -> None:
    """Resident memory of a worker process at 50 slots, with the harness in it: idle, and at most when it is busy."""

    def plain() -> None:
        with begin("bench.scenarios:nothing", type(None)) as child:
            child.wait_for(READY)
            lab.record("idle", "a process of the harness that does nothing", "MB", resident(child.pid).now / MB)

    turns: dict[str, Turn] = {"harness": plain}
    turns |= {one.name: partial(_memory, lab, one) for one in lab.contenders}
    lab.alternate(turns, rounds=1)


def _memory(lab: Lab, contender: Contender) -> None:
    slots, jobs = contender.takes(50), lab.scale.memory_jobs
    with TemporaryDirectory() as folder, lab.ground.filled(contender, 0) as url:
        path = str(Path(folder) / "started")
        with contender.begin("work", type(None), url=url, slots=slots, path=path) as worker:
            worker.wait_for(READY)
            time.sleep(1.0)
            lab.record("idle", contender.name, "MB", resident(worker.pid).now / MB)
    with (
        lab.ground.filled(contender, jobs) as url,
        contender.begin("drain", Ran, url=url, jobs=jobs, slots=slots) as worker,
    ):
        worker.wait_for(BEGUN)
        worker.go_on()
        worker.wait_for(SETTLED)
        lab.record("busy, at most", contender.name, "MB", resident(worker.pid).most / MB)


def recovery(lab: Lab) -> None:
    """A worker is killed with kill -9 while it runs a job, and another one stands by; all at the same time."""

    def all_at_once() -> None:
        there = lab.contenders
        with ExitStack() as opened, TemporaryDirectory() as folder:
            urls = [opened.enter_context(lab.ground.filled(one, 0)) for one in there]
            files = [Path(folder) / str(number) for number in range(len(there))]
            with ThreadPoolExecutor(len(there)) as pool:
                waits = [pool.submit(_started_again, *each) for each in zip(there, urls, files, strict=True)]
            for contender, wait in zip(there, waits, strict=True):
                try:
                    seconds = wait.result()
                except Broken as error:
                    lab.run.results.fault(lab.measure, f"{contender.name}: {error}")
                    continue
                lab.record("started again within 90 s", contender.name, "1: yes, 0: no", float(seconds is not None))
                if seconds is not None:
                    lab.record("started again within 90 s", contender.name, "s", seconds)

    lab.alternate({"all": all_at_once}, rounds=1)


def _started_again(contender: Contender, url: str, file: Path) -> float | None:
    """Seconds from the kill until another worker, with all defaults, starts the job again."""
    file.touch()
    slots = contender.takes(10)

    def has_started(times: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while len(file.read_text("utf-8").splitlines()) < times:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    with ExitStack() as workers:

        def worker() -> Child[None]:
            child = contender.begin("work", type(None), url=url, slots=slots, path=str(file))
            workers.enter_context(child).wait_for(READY)
            return child

        first = worker()
        contender.run("hold", type(None), url=url)
        if not has_started(1, STARTS_WITHIN_S):
            raise Broken(f"its worker did not start the job within {STARTS_WITHIN_S:.0f} s")
        worker()
        time.sleep(1.0)
        first.kill()
        killed = time.monotonic()
        return time.monotonic() - killed if has_started(2, RECOVERY_S) else None


def roundtrip(lab: Lab) -> None:
    """Drain and enqueue through a proxy that adds 2 ms to every round trip, and some time of its own."""
    turns: dict[str, Turn] = {}
    for contender in lab.contenders:
        for what in ("drain, 50 slots", "enqueue one by one", f"enqueue {BULK:,} a call"):
            if contender.has_bulk or "a call" not in what:
                turns[f"{contender.name}, {what}"] = partial(_far, lab, contender, what)
    lab.alternate(turns, [name for name in turns if not name.startswith("jobmill,")])


def _far(lab: Lab, contender: Contender, what: str) -> None:
    slots = contender.takes(50)

    def run(jobs: int) -> Ran:
        with lab.ground.filled(contender, jobs) as near, far(near, FAR_S) as url:
            if what.startswith("drain"):
                child = contender.begin("drain", Ran, url=url, jobs=jobs, slots=slots)
            else:
                child = _enqueueing(lab, contender, url, int("one by one" in what))
            return lab.record_run(what, contender.name, child)

    if what.startswith("drain"):
        lab.sized(f"{contender.name}, {what}", contender.rate[1] / 4, run)
    else:
        run(0)


def operations(lab: Lab) -> None:
    """What operators look at, each call right after a write, with few workers and very many jobs in all states."""
    ground, jobs = lab.ground, lab.scale.crowd
    running, waiting, full = jobs // 1_000, jobs // 10, jobs // 80
    part = (jobs - running - waiting) // PARTS
    live = Crowd(queue="default", waiting=waiting, running=running)
    first = [*[Crowd(queue="default", final=part)] * PARTS, live]
    # Above the limit of `depths`, both of due and of succeeded jobs.
    more = [Crowd(queue=f"queue-{number}", waiting=full, final=full) for number in range(3)]
    with ground.fresh(ground.ours) as url:
        crowds: list[Crowd] = []
        for what, added in ((f"{jobs:,} jobs in one queue", first), ("and three more full queues", more)):
            lab.run.progress(f"{lab.measure}, making {what}")
            ground.crowd(url, added)
            crowds += added
            lab.alternate({what: partial(_operations, lab, url, what, tuple(crowds))})


def _operations(lab: Lab, url: str, what: str, crowds: Sequence[Crowd]) -> None:
    ours = lab.ground.ours
    asked = {"verb": "operations", "crowds": crowds, "looks": lab.scale.looks}
    with ours.begin("own", Looked, url=url, **asked) as child:
        child.wait_for(BEGUN)
        server, busy, began = lab.ground.spent(), busy_s(), time.monotonic()
        child.go_on()
        child.wait_for(SETTLED)
        seconds, busy = time.monotonic() - began, busy_s() - busy
        server_s = (lab.ground.spent().get(SERVER, 0.0) - server.get(SERVER, 0.0)) / 1e6
        child.go_on()
        looked = child.result()
    for operation, took in looked.took.items():
        if not took:
            lab.run.results.missing[f"{lab.measure}: {operation}; {what}"] = "it took longer than its deadline"
            continue
        for unit, value in ((P95, percentile(took, 95)), ("min ms", min(took)), ("calls", len(took))):
            lab.record(f"{operation}; {what}", ours.name, unit, value)
    lab.record(f"bare query; {what}", BARE, P95, percentile(looked.bare, 95))
    lab.record(f"bare query; {what}", BARE, "min ms", min(looked.bare))
    lab.record(f"while measured; {what}", OTHERS, CORES, max(0.0, (busy - looked.cpu_seconds - server_s) / seconds))


def crontab_drain(lab: Lab) -> None:
    """Due no-op documents of a MongoDB collection are run."""
    jobs = lab.scale.documents

    def turn(who: str, slots: int) -> None:
        with lab.ground.fresh(MONGODB_CRON) as url:
            in_child(crontab.fill, url=url, jobs=jobs)
            lab.ground.settle(url)
            arguments = {"url": url, "jobs": jobs, "slots": slots}
            if who == MONGODB_CRON.name:
                child = MONGODB_CRON.begin("drain", Ran, **arguments)
            else:
                child = begin("bench.peers.crontab:drain", Ran, **arguments)
            lab.record_run(f"concurrency {slots}", who, child)

    names = [crontab.ABOUT.name, *(one.name for one in lab.contenders)]
    lab.alternate({f"{who}, {slots}": partial(turn, who, slots) for who in names for slots in (1, 100)})


def crontab_idle(lab: Lab) -> None:
    """A poll that finds nothing while many documents sleep, by the server's own clock."""
    with lab.ground.fresh(MONGODB_CRON) as url:
        in_child(crontab.fill, url=url, jobs=lab.scale.sleeping, due=False)
        what = f"{lab.scale.sleeping:,} documents sleep"

        def ours() -> None:
            lab.record(what, crontab.ABOUT.name, MS_PER_POLL, in_child(crontab.poll, url=url, polls=POLLS))

        def theirs() -> None:
            cost = MONGODB_CRON.run("poll", float, url=url, polls=THEIR_POLLS)
            lab.record(what, MONGODB_CRON.name, MS_PER_POLL, cost)

        lab.alternate({"ours": ours} | ({"theirs": theirs} if lab.contenders else {}))


class Measure(Struct, frozen=True):
    """What is done on which stores, and how much of the run's time it takes."""

    run: Callable[[Lab], None]
    stores: tuple[str, ...]
    weight: float
    #: A quick run takes no others, unless they are named.
    is_quick: bool = False
    #: It compares Jobmill with itself: it runs only if it is named, so that a full run has the time for peers.
    is_own: bool = False

    @property
    def about(self) -> str:
        """What is measured."""
        return (self.run.__doc__ or "").strip().rstrip(".")


SERVERS = ("postgres", "redis", "mongo")
SHARED = ("sqlite", *SERVERS)

#: By kind; a crontab has its own.
MEASURES: dict[str, tuple[Measure, ...]] = {
    "drain": (
        Measure(drain, ("memory", *SHARED), 10, is_quick=True),
        Measure(crontab_drain, ("crontab",), 3, is_quick=True),
    ),
    "isolated": (Measure(isolated, ("redis",), 4),),
    "enqueue": (Measure(enqueue, SHARED, 4, is_quick=True),),
    "pickup": (Measure(pickup, SHARED, 3, is_quick=True),),
    "latency": (Measure(latency, SHARED, 3),),
    "scaling": (Measure(scaling, SHARED, 4),),
    "depth": (Measure(depth, SHARED, 5),),
    "flows": (Measure(flows, SHARED, 3, is_own=True),),
    "lanes": (Measure(lanes, ("memory", *SHARED), 5, is_own=True),),
    "roundtrip": (Measure(roundtrip, SERVERS, 3),),
    "memory": (Measure(memory, SHARED, 2),),
    "recovery": (Measure(recovery, SHARED, 5),),
    "operations": (Measure(operations, ("memory", *SHARED), 3, is_own=True),),
    "idle": (Measure(crontab_idle, ("crontab",), 2),),
}


def chosen(kinds: Sequence[str], stores: Sequence[str], quick: bool) -> list[tuple[str, str, Measure]]:
    """The name, the store and the measure of each that runs, in the order of the stores."""
    return [
        (f"{store} {kind}", store, measure)
        for store in stores
        for kind, measures in MEASURES.items()
        for measure in measures
        if store in measure.stores and (kind in kinds if kinds else measure.is_quick or not (quick or measure.is_own))
    ]
