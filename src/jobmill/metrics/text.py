"""Prometheus' text format, version 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Literal, TypeAlias

from jobmill.metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]

_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def family(name: str, type: Literal["counter", "gauge"], help: str, samples: Iterable[tuple[Labels, float]]) -> str:
    """All samples of one metric. A metric has at most one family in an answer, and a sample has its own labels."""
    lines = [_head(name, type, help), *(f"{name}{_shown(labels)} {value}" for labels, value in samples)]
    return "\n".join(lines) + "\n"


def histograms(name: str, help: str, samples: Iterable[tuple[Labels, Histogram]]) -> str:
    """All histograms of one metric. Prometheus counts cumulatively: a bucket holds those below it too."""
    lines = [_head(name, "histogram", help)]
    for labels, histogram in samples:
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        counts = list(accumulate(histogram.counts))
        lines += [
            f"{name}_bucket{_shown({**labels, 'le': bound})} {count}"
            for bound, count in zip(bounds, counts, strict=True)
        ]
        lines += [f"{name}_sum{_shown(labels)} {histogram.sum}", f"{name}_count{_shown(labels)} {counts[-1]}"]
    return "\n".join(lines) + "\n"


def _head(name: str, type: str, help: str) -> str:
    return f"# HELP {name} {help.translate(_IN_HELP)}\n# TYPE {name} {type}"


def _shown(labels: Labels) -> str:
    pairs = ",".join(f'{label}="{value.translate(_IN_LABEL)}"' for label, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
