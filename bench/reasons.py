"""Why targets are missed, where somebody has looked into it."""

from __future__ import annotations

from bench.figures import Verdict

NOT_YET = "not yet looked into"

#: By the name of a measure, or of one of its figures (`redis drain: drain at 1 slot, …`), one sentence.
REASONS: dict[str, str] = {
    "drain: CPU per job, drain at 50 slots (an aim)": "by less than runs differ from each other (22 to 34 us)",
    "depth": "not known; five rounds, once before and once after this run, had medians of at most 1.11",
    "postgres drain: drain at 100 slots, against graphile, local queue of 500 (an aim)": (
        "it takes 500 jobs at a time into its memory and runs them from there, however few its slots are; a worker of "
        "ours claims no job beyond its free slots, so that a crash holds up no job that had not begun"
    ),
    "postgres drain: server CPU per job, settle and claim at batch 100 (an aim)": (
        "an exchange is one call of a function that writes two tables; no form of it was found that costs less"
    ),
    "redis drain: drain at 1 slot, against Node's (an aim)": (
        "with one slot both wait for one round trip a job; runs of one day, most of them quick, gave 1.0 to 1.4"
    ),
    "redis bytes": (
        "a field in each hash says that the job is ours and where it stands in the order; Node's jobs with the "
        "retries that ours have are larger"
    ),
    "mongo drain": (
        "at 50 slots a call settles and claims 25 jobs: two updates each, with their indexes and the log of the "
        "replica set, are about two thirds of the server's work; until 2026-11-16 a claim also walked over the "
        "entries that claimed jobs leave in the index"
    ),
}


def of(verdict: Verdict) -> str:
    """The sentence about this figure, or about all of its measure."""
    known = (f"{verdict.measure}: {verdict.what}", verdict.measure)
    return next((REASONS[one] for one in known if one in REASONS), NOT_YET)
