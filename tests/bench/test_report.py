"""The report of the benchmark: targets with their verdicts, what is missing, and pictures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.figures import CLIENT, RATE, Figure, Results, Verdict
from bench.lab import FULL
from bench.measures import MEASURES
from bench.plots import OVERVIEW, pictures
from bench.queues import About
from bench.report import Report, write
from bench.targets import TARGETS, verdicts

HUEY = About(name="huey", settings="as it comes", guarantee="lost: a task is deleted before it runs")


def _figure(
    who: str, *values: float, measure: str = "sqlite drain", what: str = "50 slots", unit: str = RATE
) -> Figure:
    return Figure(measure=measure, what=what, who=who, unit=unit, values=list(values))


def _results(*figures: Figure) -> Results:
    results = Results()
    results.figures += figures
    return results


def _report(figures: list[Figure], judged: list[tuple[Verdict, str]] | None = None, **more: object) -> Report:
    given: dict[str, object] = {"faults": {}, "missing": {}, "interrupted": False} | more
    return Report(
        date="2026-01-02",
        stores=("sqlite",),
        minutes=3,
        seed=1,
        machine={"processor": "a fast one"},
        scale=FULL,
        contenders={"sqlite": (HUEY,)},
        measures={"sqlite drain": "One worker process runs no-op jobs"},
        verdicts=judged or [],
        figures=figures,
        **given,  # type: ignore[arg-type]
    )


def test_every_target_belongs_to_a_measure() -> None:
    there = {f"{store} {kind}" for kind, all in MEASURES.items() for one in all for store in one.stores}
    assert {target.measure for target in TARGETS} <= there


def test_a_ratio_is_taken_round_by_round_against_the_best_of_the_peer() -> None:
    results = _results(
        _figure("jobmill", 800, 2_000, 900),
        _figure("huey", 100, 200, 100),
        _figure("huey", 10, 10, 10, what="1 slots"),
    )
    (first, _), *_ = verdicts(results, ["sqlite drain"])
    assert first.measured == "9 (8 – 10) x"
    assert first.met


def test_a_missed_target_says_why() -> None:
    two = _figure("jobmill", 10, measure="mongo scaling", what="2 x 50 slots")
    one = _figure("jobmill", 20, measure="mongo scaling", what="1 x 50 slots")
    (verdict, why), (not_measured, _) = verdicts(_results(two, one), ["mongo scaling"])
    assert (verdict.word, not_measured.word) == ("missed", "–")
    assert "look at the same jobs first" in why


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {one.word for one, _ in verdicts(Results(), ["redis drain"])} == {"–"}


def test_the_page_has_everything_and_replaces_older_pictures(tmp_path: Path) -> None:
    old = tmp_path / "performance" / "old.svg"
    old.parent.mkdir()
    old.touch()
    figures = [_figure("jobmill", 10, 12), _figure("huey", 2), _figure("huey", 30, unit=CLIENT)]
    missed = Verdict(what="drain", target="at least 8 x", measured="5 x", met=False, measure="sqlite drain")
    report = _report(figures, [(missed, "the disk")], missing={"arq": "not installed"}, faults={"sqlite drain": "boom"})
    page, folder = write(report, tmp_path)
    text = page.read_text("utf-8")
    for part in (
        "| jobmill | 50 slots | 11 (10 – 12) | – | – |",
        "| huey | 50 slots | 2 | 30 | lost |",
        "| sqlite drain | drain | at least 8 x | 5 x | the disk |",
        "- arq: not installed",
        "boom",
        "(performance/overview.svg)",
        "(performance/sqlite-drain.svg)",
    ):
        assert part in text
    assert sorted(one.name for one in folder.iterdir()) == ["overview.svg", "sqlite-drain.svg"]


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    page, _ = write(_report([], interrupted=True), tmp_path)
    assert "It was interrupted" in page.read_text("utf-8")


def test_the_overview_has_the_best_of_each_program_the_longest_bar_first() -> None:
    figures = [
        _figure("huey", 5),
        _figure("jobmill", 30),
        _figure("jobmill", 40, what="200 slots"),
        _figure("graphile", 7),
        _figure("graphile, local queue of 500", 50),
        _figure("bullmq, <Node.js>", 9),
        _figure("bullmq, Python", 8),
    ]
    drawn = ElementTree.fromstring(pictures(figures)[OVERVIEW])
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")][3:]
    assert texts[0::2] == ["graphile", "jobmill", "bullmq, <Node.js>", "bullmq, Python", "huey"]
    assert texts[1::2] == ["50", "40", "9", "8", "5"]


def test_nothing_measured_is_no_picture() -> None:
    assert pictures([]) == {}
