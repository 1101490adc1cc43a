"""The pictures of a benchmark's report: which there are, what stands in them, and that lengths tell the truth."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.figures import RATE, Figure
from bench.plots import plots, write
from bench.report import Report
from bench.report import write as write_report
from bench.scale import QUICK

SVG = "{http://www.w3.org/2000/svg}"


def figure(measure: str, who: str, what: str, *values: float, unit: str = RATE) -> Figure:
    return Figure(measure=measure, what=what, who=who, unit=unit, values=list(values))


def drained(*rates: tuple[str, str, float], measure: str = "postgres drain") -> list[Figure]:
    return [figure(measure, who, what, rate) for who, what, rate in rates]


def pictures(figures: list[Figure]) -> dict[str, ElementTree.Element]:
    return {picture.name: ElementTree.fromstring(picture.svg) for picture in plots(figures)}


def texts(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def bar_widths(picture: ElementTree.Element) -> list[float]:
    _box, *bars = picture.iter(f"{SVG}rect")
    return [float(bar.attrib["width"]) for bar in bars]


def test_each_contender_has_a_bar_at_its_best_the_longest_first() -> None:
    made = pictures(drained(("slow", "1 slots", 500), ("jobmill", "1 slots", 400), ("jobmill", "50 slots", 2_000)))
    bars = made["postgres-drain"]
    assert bar_widths(bars) == [pytest.approx(4 * bar_widths(bars)[1], abs=0.5), bar_widths(bars)[1]]
    labels = texts(bars)
    assert labels.index("jobmill (50 slots)") < labels.index("slow (1 slots)")
    assert {"PostgreSQL: jobs run by one worker process", "2k", "500"} <= set(labels)


def test_what_is_no_job_queue_has_no_bar() -> None:
    parts = [("jobmill, exchange alone", "batch 50", 9_000.0), ("bare loop", "batch 50", 9_500.0)]
    made = pictures(drained(("jobmill", "50 slots", 2_000), *parts, measure="drain"))
    assert len(bar_widths(made["drain"])) == 1
    assert "SQLite: jobs run by one worker process" in texts(made["drain"])


def test_the_thin_line_is_from_the_least_to_the_most() -> None:
    bars = pictures([figure("redis drain", "jobmill", "50 slots", 100, 300, 200)])["redis-drain"]
    (spread,) = [line for line in bars.iter(f"{SVG}line") if line.attrib["y1"] == line.attrib["y2"]]
    (bar,) = [one for one in bars.iter(f"{SVG}rect") if "x" in one.attrib]
    left, width = float(bar.attrib["x"]), float(bar.attrib["width"])
    assert float(spread.attrib["x1"]) - left == pytest.approx(width / 2, abs=0.2)
    assert float(spread.attrib["x2"]) - left == pytest.approx(width * 1.5, abs=0.2)


def test_a_curve_needs_two_numbers_of_slots() -> None:
    made = pictures(drained(("jobmill", "1 slots", 100), ("jobmill", "50 slots", 2_000), ("other", "50 slots", 900)))
    (curve,) = made["postgres-drain-slots"].iter(f"{SVG}polyline")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in curve.attrib["points"].split())
    assert x1 < x2
    assert y1 > y2
    assert "postgres-drain-slots" not in pictures(drained(("jobmill", "1 slots", 100)))


def test_no_two_names_at_the_ends_of_curves_lie_on_each_other() -> None:
    many = [(f"peer {number}", f"{slots} slots", 1_000.0 + number) for number in range(12) for slots in (1, 50)]
    picture = pictures(drained(*many))["postgres-drain-slots"]
    heights = sorted(float(one.attrib["y"]) for one in picture.iter(f"{SVG}text") if (one.text or "")[:5] == "peer ")
    assert len(heights) == 12
    assert min(later - sooner for sooner, later in itertools.pairwise(heights)) >= 13
    assert heights[0] > 60
    assert heights[-1] < float(picture.attrib["height"]) - 40


def test_ways_to_enqueue_have_panels_of_their_own() -> None:
    rates = {"one by one": (2_000.0, 1_000.0), "1,000 a call": (60_000.0, 60_000.0)}
    figures = [
        figure("redis enqueue", who, what, rate)
        for what, both in rates.items()
        for who, rate in zip(("jobmill", "peer"), both, strict=True)
    ]
    picture = pictures(figures)["redis-enqueue"]
    alone, peer_alone, in_bulk, peer_in_bulk = bar_widths(picture)
    assert alone == pytest.approx(2 * peer_alone, abs=0.2)
    assert in_bulk == peer_in_bulk
    assert {"one by one", "1,000 a call", "60k"} <= set(texts(picture))


def test_latencies_are_from_the_median_to_the_99th_percentile_since_the_return() -> None:
    figures = [
        figure("postgres pickup", "jobmill", f"since the {since}", value, unit=unit)
        for since, p50, p99 in (("return", 2, 9), ("call", 3, 11))
        for unit, value in (("p50 ms", p50), ("p99 ms", p99))
    ]
    picture = pictures(figures)["postgres-pickup"]
    assert "2 – 9" in texts(picture)
    assert len(list(picture.iter(f"{SVG}circle"))) == 2


def test_a_job_that_starts_before_its_caller_goes_on_is_drawn_all_the_same() -> None:
    figures = [figure("redis pickup", "jobmill", "since the return", -0.2, unit=unit) for unit in ("p50 ms", "p99 ms")]
    assert "0.1 – 0.1" in texts(pictures(figures)["redis-pickup"])


def test_depths_have_a_curve_for_those_that_wait_and_for_those_that_are_delayed() -> None:
    rates = [("1,000 waiting", 30_000.0), ("1,000 delayed", 29_000.0), ("1,000,000 waiting", 28_000.0)]
    figures = [figure("depth", "jobmill, 50 slots", what, rate) for what, rate in rates]
    picture = pictures([*figures, figure("depth", "jobmill, 50 slots", "1,000,000 delayed", 27_000)])["depth"]
    assert len(list(picture.iter(f"{SVG}polyline"))) == 2
    assert {"jobmill, 50 slots, waiting", "jobmill, 50 slots, delayed", "1k", "1M"} <= set(texts(picture))


def test_names_are_text_whatever_they_hold() -> None:
    picture = pictures(drained(('<peer> & "friends"', "1 slots", 5)))["postgres-drain"]
    assert '<peer> & "friends" (1 slots)' in texts(picture)


def test_nothing_measured_is_no_picture() -> None:
    assert plots([]) == []
    assert plots([figure("redis bytes", "jobmill", "a small payload", 400, unit="B/job")]) == []


def test_a_report_is_written_with_its_pictures_and_its_page_shows_them(tmp_path: Path) -> None:
    measured = drained(("jobmill", "1 slots", 100), ("jobmill", "50 slots", 2_000))
    report = Report(
        date="2026-01-02", stores=("postgres",), minutes=1, incomplete=None, seed=1, machine={}, scale=QUICK,
        contenders=(), measures={"postgres drain": "jobs run"}, verdicts=[], figures=measured, faults={},
    )  # fmt: skip
    page, data, *drawn = write_report(report, tmp_path, "2026-01-02-postgres")
    assert [path.name for path in drawn] == ["2026-01-02-postgres-drain.svg", "2026-01-02-postgres-drain-slots.svg"]
    shown = re.findall(r"!\[[^]]+\]\((.+)\)", page.read_text("utf-8"))
    assert shown == [path.name for path in drawn]
    before = [path.read_text("utf-8") for path in drawn]
    for path in drawn:
        path.unlink()
    assert write(data) == drawn
    assert [path.read_text("utf-8") for path in drawn] == before
