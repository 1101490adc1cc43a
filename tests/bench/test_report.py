"""The page of a benchmark: what it says of targets that were missed, of what is not here, and of rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import reasons
from bench.figures import Figure, Verdict
from bench.guarantees import words
from bench.ours.about import ON_REDIS as OURS
from bench.peers.about import About
from bench.report import Report, write
from bench.scale import FULL

REDIS = {"saq": "repeated: by time", "bullmq, Python": "lost", "bullmq, Node.js": "kept: by a lock", "bare loop": "–"}


def about(name: str, guarantee: str) -> About:
    return About(name=name, package=None, settings="", guarantee=guarantee)


def verdict(measure: str, what: str, met: bool | None) -> Verdict:
    return Verdict(what=what, target="at least 2 x", measured="1.5 x", met=met, measure=measure)


def page(place: Path, **told: object) -> str:
    said: dict[str, object] = {
        "date": "2026-01-02", "stores": ("redis",), "minutes": 1, "incomplete": None, "seed": 1, "machine": {},
        "scale": FULL, "contenders": (), "measures": {}, "verdicts": [], "figures": [], "faults": {}, **told,
    }  # fmt: skip
    return write(Report(**said), place, "r")[0].read_text("utf-8")  # type: ignore[arg-type]


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_a_missed_target_stands_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"redis drain": "the server is full", "redis drain: at 1 slot": "a round trip is a round trip"}
    monkeypatch.setattr(reasons, "REASONS", known)
    text = page(
        tmp_path,
        verdicts=[
            verdict("redis drain", "at 50 slots", met=False),
            verdict("redis drain", "at 1 slot", met=False),
            verdict("redis pickup", "p50", met=False),
            verdict("redis enqueue", "bulk", met=True),
        ],
    )
    missed = section(text, "What is missed, and why").splitlines()
    assert [row.split(" | ")[-1].removesuffix(" |") for row in missed if row.startswith("| redis")] == [
        "the server is full",
        "a round trip is a round trip",
        "not yet looked into",
    ]
    assert "bulk" not in section(text, "What is missed, and why")


def test_where_all_is_met_the_page_says_so(tmp_path: Path) -> None:
    text = page(tmp_path, verdicts=[verdict("redis enqueue", "bulk", met=True), verdict("load", "p50", met=None)])
    assert section(text, "What is missed, and why").strip() == "Nothing: every target that was measured is met."


def test_what_is_not_here_is_named(tmp_path: Path) -> None:
    figure = Figure(measure="redis drain", what="50 slots", who="jobmill", unit="jobs/s", values=[1.0])
    text = page(
        tmp_path,
        measures={"redis drain": "runs", "limit": "bare loops", "memory": "resident"},
        figures=[figure],
        faults={"memory": "Traceback"},
        missing={"redis-benchmark": "no wheel has one"},
    )
    lines = section(text, "What is not here").strip().splitlines()
    assert lines[:2] == ["- redis-benchmark: no wheel has one", "- memory: it broke, see there"]
    assert lines[2].startswith("- limit: no figure; ")
    assert len(lines) == 3


def test_the_head_says_what_no_brackets_mean(tmp_path: Path) -> None:
    assert "A figure without brackets was measured once" in page(tmp_path)


def test_a_guarantee_stands_beside_each_figure_of_its_store(tmp_path: Path) -> None:
    rows = (("redis drain", "saq"), ("redis drain", "jobmill, asyncio's loop"), ("redis drain", "bullmq, Node.js"))
    figures = [
        Figure(measure=measure, what="50 slots", who=who, unit="jobs/s", values=[1.0])
        for measure, who in (*rows, ("memory", "saq on PostgreSQL"), ("memory", "a process that does nothing"))
    ]
    known = {
        "redis": words([*(about(name, guarantee) for name, guarantee in REDIS.items()), OURS]),
        "postgres": words([about("saq", "lost: nobody runs them")]),
    }
    text = page(tmp_path, measures={"redis drain": "runs", "memory": "MB"}, figures=figures, guarantees=known)
    told = {
        row.split(" | ")[0]: row.split(" | ")[-1].removesuffix(" |") for row in text.splitlines() if "50 slots" in row
    }
    assert told == {
        "| saq": "repeated",
        "| jobmill, asyncio's loop": "kept",
        "| bullmq, Node.js": "kept",
        "| saq on PostgreSQL": "lost",
        "| a process that does nothing": "–",
    }


def test_where_nothing_is_known_there_is_no_such_column(tmp_path: Path) -> None:
    figure = Figure(measure="redis drain", what="50 slots", who="jobmill", unit="jobs/s", values=[1.0])
    assert "| after kill -9 |" not in page(tmp_path, measures={"redis drain": "runs"}, figures=[figure])
