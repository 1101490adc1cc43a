"""The chart of throughput: pure functions from numbers to SVG."""

from __future__ import annotations

import re
from datetime import UTC
from itertools import pairwise
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pytest

from jobmill.dashboard.charts import ChartMark, ChartPoint, Throughput, round_top, throughput

MINUTE = 60_000
START = 1_763_280_000_000  # 16 Nov 2025, 08:00 UTC


def chart(*points: tuple[int, int], marks: list[ChartMark] | None = None, step_ms: int = MINUTE) -> Throughput:
    made = [ChartPoint(START + index * step_ms, *point) for index, point in enumerate(points)]
    return Throughput(range="1h", step_ms=step_ms, points=made, marks=marks or [])


def drawn(given: Throughput, now_ms: int | None = None, zone: str = "UTC") -> ElementTree.Element:
    """The SVG, parsed: it is well-formed. The last step is not over."""
    now_ms = START + len(given.points) * given.step_ms - 1 if now_ms is None else now_ms
    return ElementTree.fromstring(throughput(given, now_ms, ZoneInfo(zone)))


def texts(svg: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in svg.iter("text")]


def of_class(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [one for one in svg.iter() if name in one.get("class", "").split()]


def labels(svg: ElementTree.Element) -> list[tuple[float, float]]:
    """From where to where each label of a mark goes, in pixels of a chart of 720."""
    found = []
    for one in of_class(svg, "t-ink"):
        x, width = float(one.get("x", "").rstrip("%")) * 7.2, len(one.text or "") * 6.5
        found.append((x - width, x) if one.get("text-anchor") == "end" else (x, x + width))
    return sorted(found)


@pytest.mark.parametrize(
    ("value", "top"),
    [
        (0, 10),
        (1, 2),
        (2, 2),
        (9, 10),
        (11, 20),
        (14, 20),
        (41, 50),
        (101, 150),
        (1_354, 1_500),
        (1_501, 2_000),
        (9_999, 10_000),
    ],
)
def test_axes_end_at_round_numbers(value: int, top: int) -> None:
    assert round_top(value) == top


@pytest.mark.parametrize("value", [1, 3, 7, 99, 100, 12_345, 10**9 + 1, 2**53, 10**18 + 1])
def test_an_axis_reaches_its_highest_value_and_has_a_whole_middle(value: int) -> None:
    assert value <= round_top(value) <= 20 * value
    assert round_top(value) % 2 == 0


def test_without_steps_there_are_only_axes() -> None:
    svg = drawn(chart(), START)
    assert texts(svg) == ["0", "5", "10 a minute", "0", "10 a minute"]
    assert not of_class(svg, "hit")


def test_one_step_that_is_not_over_has_no_line() -> None:
    svg = drawn(chart((7, 0)))
    assert not list(svg.iter("polyline"))
    assert [hit[0].text for hit in of_class(svg, "hit")] == ["08:00  7 succeeded, 0 errors (not complete)"]


def test_one_step_that_is_over_is_a_visible_line() -> None:
    (line,) = drawn(chart((7, 0), (0, 0))).iter("polyline")
    assert line.get("points") == "0.00,12.5 50.00,12.5"


def test_zeros_are_a_line_at_the_bottom() -> None:
    svg = drawn(chart(*[(0, 0)] * 60))
    (line,) = svg.iter("polyline")
    heights = {float(point.split(",")[1]) for point in line.get("points", "").split()}
    assert heights == {100.0}
    assert not of_class(svg, "bar")


def test_huge_numbers_stay_inside() -> None:
    svg = drawn(chart((10**15, 3), (1, 10**12), (5, 1), (0, 0)))
    (line,) = svg.iter("polyline")
    assert all(0 <= float(number) <= 100 for number in re.split("[ ,]", line.get("points", "")))
    assert "1,000,000,000,000,000 a minute" in texts(svg)
    # One error beside a billion is still seen.
    assert [float(bar.get("height", "0")) for bar in of_class(svg, "bar")] == [3.0, 100.0, 3.0]


def test_a_step_that_is_not_over_is_an_outline_and_the_line_ends_before_it() -> None:
    svg = drawn(chart((4, 1), (4, 1), (1, 1)))
    assert len(of_class(svg, "bar")) == 2
    (outline,) = of_class(svg, "stroke")
    assert float(outline.get("x", "0")) > 66
    (line,) = svg.iter("polyline")
    assert len(line.get("points", "").split()) == 2


def test_each_step_says_its_figures_in_the_zone_of_the_visitor() -> None:
    svg = drawn(chart((1_181, 1), (0, 2)), zone="Europe/Berlin")
    assert [hit[0].text for hit in of_class(svg, "hit")] == [
        "09:00  1,181 succeeded, 1 error",
        "09:01  0 succeeded, 2 errors (not complete)",
    ]
    assert texts(svg)[-2:] == ["09:00", "09:01"]
    assert svg[1].text == "1,181 succeeded, 3 errors. Most errors at 09:01: 2."


def test_long_ranges_show_days() -> None:
    points = [ChartPoint(START + index * 6 * 60 * MINUTE) for index in range(120)]
    svg = drawn(Throughput(range="30d", step_ms=6 * 60 * MINUTE, points=points))
    assert texts(svg)[-5:] == ["16 Nov", "23 Nov", "1 Dec", "8 Dec", "16 Dec"]
    assert svg[0].text == "Runs in 6 h, last 30 days"


def test_marks_are_lines_with_labels_also_at_the_edges() -> None:
    marks = [ChartMark(START, "first"), ChartMark(START + 60 * MINUTE, "last"), ChartMark(START - 1, "too early")]
    svg = drawn(chart(*[(1, 0)] * 60, marks=marks))
    assert [line.get("x1") for line in of_class(svg, "mark")] == ["100.0%", "0.0%"]
    assert [(one.text, one.get("text-anchor")) for one in of_class(svg, "t-ink")] == [
        ("last 09:00", "end"),
        ("first 08:00", "start"),
    ]


@pytest.mark.parametrize("at", [range(60), range(0, 60, 15), (0, 59), (29, 30), (58, 59), (5, 20, 35, 50)])
def test_at_most_three_labels_and_none_over_another(at: range | tuple[int, ...]) -> None:
    marks = [ChartMark(START + minute * MINUTE, f"v1.{minute}.0") for minute in at]
    svg = drawn(chart(*[(1, 0)] * 60, marks=marks))
    assert len(of_class(svg, "mark")) == len(marks)
    found = labels(svg)
    assert 1 <= len(found) <= 3
    assert all(one[1] < other[0] for one, other in pairwise(found))
    # A phone has room for the newest one only.
    assert len(of_class(svg, "alt")) == len(found) - 1 + 2
    assert (of_class(svg, "t-ink")[0].text or "").startswith(f"v1.{max(at)}.0")


def test_a_mark_is_escaped_and_cut() -> None:
    mark = ChartMark(START, "<script>alert(1)</script> and a long text")
    text = throughput(chart((1, 0), marks=[mark]), START, UTC)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/s… 08:00" in text
