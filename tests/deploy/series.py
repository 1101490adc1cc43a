"""What Prometheus would have stored, for `promtool test rules`: series made of scrapes of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import ALERTS
from tests.kit.promtool import promtool

#: How long the first scrape is repeated, and the second one after it.
BEFORE_MIN = 20
AFTER_MIN = 60
PER_MIN = 4


class Scraped(NamedTuple):
    """What an instance answered before a change and after it; empty: nothing."""

    before: str
    after: str


def expect_alerts(folder: Path, instances: Mapping[str, Scraped], firing: Mapping[int, Set[str]]) -> None:
    """These alerts fire, by minutes after the change, and no others."""
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expected = {minute: {f'{{alertname="{name}"}}': 1.0 for name in names} for minute, names in firing.items()}
    expect_samples(folder, instances, [(minute, expression, samples) for minute, samples in expected.items()])


def expect_samples(
    folder: Path, instances: Mapping[str, Scraped], expected: Iterable[tuple[int, str, Mapping[str, float]]]
) -> None:
    """What expressions return at minutes after the change: values by labels."""
    test = {
        "interval": f"{60 // PER_MIN}s",
        "input_series": [one for instance, scraped in instances.items() for one in _series(instance, scraped)],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{BEFORE_MIN + minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for minute, expression, samples in expected
        ],
    }
    file = folder / "alerts.test.yaml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": [test]}))
    code, said = promtool("test", "rules", str(file))
    assert code == 0, said


def _series(instance: str, scraped: Scraped) -> Iterator[dict[str, str]]:
    job = "jobmill-metrics" if instance == "metrics" else "jobmill-worker"
    before, after = (_samples(text) for text in scraped)
    for name, labels in before | after:
        shown = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted({*labels, ("job", job)}))
        values = [
            f"_x{minutes * PER_MIN}" if value is None else f"{value:.9g}+0x{minutes * PER_MIN - 1}"
            for value, minutes in ((before.get((name, labels)), BEFORE_MIN), (after.get((name, labels)), AFTER_MIN))
        ]
        yield {"series": f'{name}{{{shown},instance="{instance}"}}', "values": " ".join(values)}


def _samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
