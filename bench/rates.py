"""First guesses: how many no-op jobs per second one worker process ran, once, on a machine with two cores.

They only spare trials: whoever is faster gets more jobs, whoever is slower takes a little longer.
"""

from __future__ import annotations

from bench.calibrating import SOME_RATE

#: By the store and by what stands before the first comma of a name, or by all of it: with one slot, and with many.
RATES: dict[str, dict[str, tuple[float, float]]] = {
    "sqlite": {"jobmill": (2_200, 37_000), "huey": (4_000, 3_100)},
    "postgres": {
        "jobmill": (1_300, 30_000),
        "pgqueuer": (650, 12_000),
        "procrastinate": (450, 600),
        "saq": (220, 550),
        "chancy": (250, 1_800),
        "graphile": (1_400, 2_800),
        "graphile, local queue of slots + 1": (20_000, 29_000),
        "graphile, local queue of 500": (40_000, 40_000),
        "pg-boss": (580, 20_000),
    },
    "redis": {
        "jobmill": (4_000, 38_000),
        "jobmill, exchange alone": (4_000, 25_000),
        "bullmq, Node.js": (3_200, 14_000),
        "bullmq, Python": (1_950, 2_300),
        "huey": (2_700, 2_200),
        "rq": (300, 300),
        "saq": (1_050, 2_450),
        "taskiq": (2_500, 3_000),
        "dramatiq": (260, 3_000),
        "celery": (980, 980),
        "arq": (900, 1_900),
    },
    "mongo": {
        "jobmill": (350, 4_300),
        "jobmill, Monque's indexes": (250, 2_900),
        "find and modify": (300, 500),
        "agenda": (250, 220),
    },
}


def rate(store: str, who: str, slots: int) -> float:
    """A guess for one worker process with so many slots."""
    known = RATES[store]
    one, many = known.get(who) or known.get(who.partition(",")[0]) or (SOME_RATE, SOME_RATE)
    # A few slots bring a little less than as many times the rate of one.
    return one if slots == 1 else min(many, one * slots * 0.8) if one < many else many
