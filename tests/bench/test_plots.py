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
from bench.svg import width_of

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
    assert labels.index("jobmill (50 slots)") < labels.index("slow (1 slot)")
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
    rates = [("jobmill", "1 slots", 100.0), ("jobmill", "50 slots", 2_000.0), ("jobmill", "50 slots, few jobs", 50.0)]
    made = pictures(drained(*rates, ("other", "50 slots", 900)))
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
    assert '<peer> & "friends" (1 slot)' in texts(picture)


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


# ---------------------------------------------------------------------------------------------------- several stores


def test_what_runs_on_several_stores_has_a_picture_for_each_with_all_who_are_there() -> None:
    figures = [
        figure("roundtrip", "jobmill on PostgreSQL", "drain, 50 slots", 900, 1_100, 1_000),
        figure("roundtrip", "slow, 1 at a time on PostgreSQL", "drain, 1 slots", 500),
        figure("roundtrip", "jobmill on PostgreSQL", "enqueue one by one", 300),
        figure("roundtrip", "the harness on PostgreSQL", "directly", 2.1, unit="ms a question"),
        figure("roundtrip", "jobmill on Redis", "drain, 50 slots", 4_000),
    ]
    made = pictures(figures)
    assert set(made) == {"postgres-roundtrip", "redis-roundtrip"}
    labels = texts(made["postgres-roundtrip"])
    assert {"drain, 50 slots", "enqueue one by one", "jobmill", "slow, 1 at a time (1 slot)", "1k"} <= set(labels)
    ours, slow, _ = bar_widths(made["postgres-roundtrip"])
    assert ours == pytest.approx(2 * slow, abs=0.2)


def test_who_did_not_start_again_has_a_hollow_bar_that_says_so() -> None:
    again = "started again within 90 s (1) or not (0)"
    figures = [
        figure("recovery", "jobmill on Redis", "after kill -9", 1, unit=again),
        figure("recovery", "jobmill on Redis", "after kill -9", 14.2, unit="s until it started again"),
        figure("recovery", "peer on Redis", "after kill -9", 0, unit=again),
    ]
    picture = pictures(figures)["redis-recovery"]
    hollow = [box for box in picture.iter(f"{SVG}rect") if box.attrib["fill"] == "none"]
    assert len(hollow) == 1
    assert {"14.2", "not within 90 s", "peer"} <= set(texts(picture))


def test_memory_shows_idle_within_busy_and_the_harness_beside_each() -> None:
    figures = [
        figure("memory", "jobmill on Redis", "idle", 40, unit="MB"),
        figure("memory", "jobmill on Redis", "busy, at most", 80, unit="MB"),
        figure("memory", "the harness alone", "idle", 20, unit="MB"),
    ]
    picture = pictures(figures)["redis-memory"]
    harness, busy, idle = bar_widths(picture)
    assert busy == pytest.approx(2 * idle, abs=0.2)
    assert idle == pytest.approx(2 * harness, abs=0.2)
    assert "40 – 80" in texts(picture)


def test_less_that_is_written_comes_first() -> None:
    rows = (("jobmill", 800.0), ("peer", 400.0))
    figures = [
        figure("written", f"{who} on SQLite", "drain, 50 slots", value, unit="written B/job") for who, value in rows
    ]
    labels = texts(pictures(figures)["sqlite-written"])
    assert labels.index("peer") < labels.index("jobmill")


def test_processes_are_a_curve_for_each_store() -> None:
    figures = [
        figure("scaling", f"jobmill on {store}", f"{processes} processes", 1_000.0 * processes)
        for store in ("PostgreSQL", "Redis")
        for processes in (1, 2, 4)
    ]
    picture = pictures(figures)["scaling"]
    assert len(list(picture.iter(f"{SVG}polyline"))) == 2
    assert {"PostgreSQL", "Redis", "4"} <= set(texts(picture))


def test_a_limit_stands_beside_the_worker_of_its_store_only() -> None:
    figures = [
        figure("limit", "jobmill, lean indexes on MongoDB", "a worker, 50 slots", 4_000),
        figure("limit", "bare loop on MongoDB", "1 in flight, 50 a call", 8_000),
        figure("limit", "jobmill on Redis", "a worker, 50 slots", 4_000),
        figure("limit", "redis-benchmark on Redis", "LPUSH + RPOP", 40_000),
    ]
    labels = texts(pictures(figures)["limit"])
    assert labels.count("redis-benchmark, LPUSH + RPOP") == 1
    assert {"jobmill, lean indexes, 50 slots", "bare loop, 1 in flight, 50 a call", "MongoDB", "Redis"} <= set(labels)


def test_latencies_under_load_and_after_silence_are_two_pictures() -> None:
    figures = [
        figure("load", "jobmill on Redis", "half load", 2, unit="p50 ms"),
        figure("load", "jobmill on Redis", "half load", 9, unit="p99 ms"),
        figure("load", "jobmill on Redis", "after a minute of silence", -0.3, unit="ms since the return"),
        figure("load", "peer on Redis", "after a minute of silence", 900, unit="ms since the return"),
    ]
    made = pictures(figures)
    assert "2 – 9" in texts(made["load-half"])
    assert {"0", "900"} <= set(texts(made["load-silence"]))


def test_the_overview_has_the_best_of_each_program_on_each_store() -> None:
    figures = [
        *drained(("jobmill", "1 slots", 400), ("jobmill", "50 slots", 3_000), ("fast", "50 slots", 6_000)),
        *drained(("fast, with a queue", "50 slots", 9_000), ("jobmill, exchange alone", "batch 50", 20_000)),
        *drained(("jobmill", "50 slots", 5_000), ("bullmq, Node.js", "50 slots", 2_000), measure="redis drain"),
        *drained(("bullmq, Python", "50 slots", 1_000), measure="redis drain"),
    ]
    overview = pictures(figures)["overview"]
    assert len(bar_widths(overview)) == 5
    fast, ours, *_ = bar_widths(overview)
    assert fast == pytest.approx(3 * ours, abs=0.5)
    assert {"PostgreSQL", "Redis", "fast", "bullmq, Node.js", "bullmq, Python"} <= set(texts(overview))
    assert "fast, with a queue" not in texts(overview)


def test_of_one_store_there_is_no_overview() -> None:
    assert "overview" not in pictures(drained(("jobmill", "50 slots", 3_000), ("fast", "50 slots", 6_000)))


def test_ten_contenders_fit_and_no_text_leaves_the_picture() -> None:
    many = [(f"a peer with a long name, variant {number}", "200 slots", 5_000.0 * number) for number in range(1, 11)]
    memory = [
        figure("memory", "jobmill on Redis", what, value, unit="MB")
        for what, value in (("idle", 100.4), ("busy, at most", 200.0))
    ]
    figures = [*drained(*many), *drained(*many, measure="redis drain"), *memory]
    for picture in pictures(figures).values():
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        for one in picture.iter(f"{SVG}text"):
            x, long = float(one.attrib["x"]), width_of(one.text or "", float(one.attrib["font-size"]))
            left = {"start": x, "middle": x - long / 2, "end": x - long}[one.attrib["text-anchor"]]
            assert left >= 0
            assert left + long <= width
            assert 0 < float(one.attrib["y"]) < height
