"""A picture of jobs that wait for each other, as SVG: what runs first is left, and lines lead to what waits for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from jobmill.dashboard.charts import strip_parts
from jobmill.dashboard.timeline import Shape

#: From this number on, jobs of the same name and layer are one box.
MIN_ALIKE: Final = 5
_WIDTH, _HEIGHT, _STRIP = 232, 48, 12
_GAP, _COLUMN_GAP, _EDGE = 20, 68, 8
#: Characters that fit into the two lines of a box.
_NAME, _NOTE = 26, 30

_SIGNS: Final[dict[Shape, str]] = {
    "due": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "later": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0M0-3v3l2 2",
    "retrying": "M4.500-2a5 5 0 1 0 .5 2M5-5v3.500h-3.500",
    "held": "M-3-5v10M3-5v10",
    "running": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0M-2-3v6M0-4v8",
    "succeeded": "M-5 0l3.500 4 7-8",
    "failed": "M-4-4l8 8M4-4l-8 8",
    "cancelled": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0M-3.500 3.500l7-7",
}
#: The first of these that a job of a box has is the state of the box.
_URGENCY: Final[tuple[Shape, ...]] = (
    *("failed", "running", "retrying", "due", "later", "held", "cancelled", "succeeded"),
)


class GraphNode(NamedTuple):
    """One job in a graph."""

    id: str
    name: str
    shape: Shape
    note: str
    url: str
    is_here: bool = False


class _Box(NamedTuple):
    layer: int
    nodes: list[GraphNode]
    url: str

    @property
    def height(self) -> int:
        return _HEIGHT if len(self.nodes) == 1 else _HEIGHT + _STRIP


def layers(ids: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The layer of each job: one more than the highest layer of the jobs that it waits for, from 0.

    Without recursion, so that a chain may have any length. Jobs in a circle, which no store has, are in layer 0.
    """
    found = dict.fromkeys(ids, 0)
    waits, dependents = Counter[str](), defaultdict[str, list[str]](list)
    for id, dependency in edges:
        waits[id] += 1
        dependents[dependency].append(id)
    ready = [id for id in found if not waits[id]]
    while ready:
        id = ready.pop()
        for other in dependents[id]:
            found[other] = max(found[other], found[id] + 1)
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return {id: 0 if waits[id] else layer for id, layer in found.items()}


def draw(
    nodes: Sequence[GraphNode], edges: Iterable[tuple[str, str]], title: str, group_urls: Mapping[str, str]
) -> Markup:
    """The graph. `edges` are pairs of a job and its dependency; `group_urls` has the page of all jobs of a name."""
    known = {node.id for node in nodes}
    edges = sorted((id, other) for id, other in edges if id in known and other in known)
    boxes = _boxes(nodes, layers(known, edges), group_urls)
    box_of = {node.id: index for index, box in enumerate(boxes) for node in box.nodes}
    lines = sorted({(box_of[other], box_of[id]) for id, other in edges})
    columns = _columns(boxes, lines)
    heights = [sum(boxes[index].height + _GAP for index in column) - _GAP for column in columns]
    height = max(heights, default=0) + 4
    at: dict[int, tuple[int, int]] = {}
    for layer, column in enumerate(columns):
        y = (height - heights[layer]) // 2
        for index in column:
            at[index] = (2 + layer * (_WIDTH + _COLUMN_GAP), y)
            y += boxes[index].height + _GAP
    width = len(columns) * (_WIDTH + _COLUMN_GAP) - _COLUMN_GAP + 4
    drawn = Markup("").join(
        [
            *(_line(*at[first], boxes[first], *at[then], boxes[then]) for first, then in lines),
            *(_drawn(box, *at[index]) for index, box in enumerate(boxes)),
        ]
    )
    count = "1 job" if len(nodes) == 1 else f"{len(nodes):,} jobs"
    return Markup(
        '<svg width="{}" height="{}" viewBox="0 0 {} {}" role="group" aria-labelledby="graph-t" '
        'aria-describedby="graph-d"><title id="graph-t">{}</title><desc id="graph-d">{}</desc>{}</svg>'
    ).format(
        *(width, height, width, height, title),
        f"{count} from left to right, in the order in which they can run. The table below has the same data.",
        drawn,
    )


def _boxes(nodes: Sequence[GraphNode], layer_of: Mapping[str, int], group_urls: Mapping[str, str]) -> list[_Box]:
    alike: defaultdict[tuple[int, str], list[GraphNode]] = defaultdict(list)
    for node in nodes:
        alike[layer_of[node.id], node.name].append(node)
    boxes: list[_Box] = []
    for (layer, name), own in alike.items():
        if len(own) >= MIN_ALIKE and name in group_urls and not any(node.is_here for node in own):
            boxes.append(_Box(layer, own, group_urls[name]))
        else:
            boxes += [_Box(layer, [node], node.url) for node in own]
    return boxes


def _columns(boxes: Sequence[_Box], lines: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The boxes of each layer, in the order of what they wait for: then few lines cross."""
    columns: list[list[int]] = [[] for _ in range(max((box.layer for box in boxes), default=-1) + 1)]
    for index, box in enumerate(boxes):
        columns[box.layer].append(index)
    before: defaultdict[int, list[int]] = defaultdict(list)
    for first, then in lines:
        before[then].append(first)
    position: dict[int, float] = {}
    for column in columns:
        column.sort(key=lambda index: _mean([position.get(one, 0.0) for one in before[index]]))
        for place, index in enumerate(column):
            position[index] = (place + 0.5) / len(column)
    return columns


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _line(x1: int, y1: int, first: _Box, x2: int, y2: int, then: _Box) -> Markup:
    x1, y1, y2 = x1 + _WIDTH, y1 + first.height // 2, y2 + then.height // 2
    end, middle = x2 - _EDGE, (x1 + x2) / 2
    curve = f"M{x1} {y1}C{middle:g} {y1} {middle:g} {y2} {end} {y2}M{end - 5} {y2 - 4}l5 4l-5 4"
    return Markup('<path class="edge" d="{}"/>').format(curve)


def _drawn(box: _Box, x: int, y: int) -> Markup:
    node, count = box.nodes[0], len(box.nodes)
    name, note, shape = node.name, node.note, node.shape
    strip = Markup("")
    if count > 1:
        counts = Counter[str](one.shape for one in box.nodes)
        shape = next(one for one in _URGENCY if counts[one])
        name, note = f"{_cut(name, _NAME - 6)} × {count:,}", f"{shape}, {counts[shape]:,} of {count:,}"
        strip = strip_parts(counts, 12, _WIDTH - 24, y=_HEIGHT, height=4, unit="")
    full = f"{node.name}: {note}" if count == 1 else f"{count:,} jobs {node.name}: {note}"
    return Markup(
        '<a href="{}"><g class="node {}{}" transform="translate({} {})"><title>{}</title>'
        '<rect class="box" width="{}" height="{}" rx="6"/><path class="sign" transform="translate(20 20)" d="{}"/>'
        '<text class="t-ink" x="36" y="20">{}</text><text x="36" y="36">{}</text>{}</g></a>'
    ).format(
        *(box.url, shape, " here" if node.is_here else "", x, y, full, _WIDTH, box.height, _SIGNS[shape]),
        *(_cut(name, _NAME), _cut(note, _NOTE), strip),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
