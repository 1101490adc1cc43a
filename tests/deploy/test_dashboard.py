"""deploy/grafana/jobmill.json, and the metrics that it and the alerts use."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import ROOT, alerts, dashboard, queries
from tests.deploy.series import Scraped, expect_samples
from tests.deploy.site import Site, ten_minutes_ago
from tests.docs.pages import code_of, spans, table
from tests.helpers import until
from tests.kit.promtool import promtool
from tests.kit.scrape import scrape

VARIABLES = {"datasource", "queue", "name"}


def test_every_query_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(queries())]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, said = promtool("check", "rules", str(file))
    assert code == 0, said
    assert len(rules) > 25


def test_panels_do_not_overlap_and_fill_the_width() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(cells) == len(set(cells))
    assert len(cells) == 24 * (1 + max(y for _, y in cells))


def test_every_variable_is_defined_and_used() -> None:
    board = dashboard()
    assert {variable["name"] for variable in board["templating"]["list"]} == VARIABLES
    text = json.dumps(board["panels"])
    assert set(re.findall(r"\$\{?(\w+)", text)) == VARIABLES | {"__rate_interval"}


@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_every_metric_exists_and_every_panel_shows_something(site: Site) -> None:
    """One site in which everything happens that a panel shows."""
    port = await site.worker("--lease", "500ms")
    slow = site.jobs.queue("slow")
    await slow.running_limit(5)
    before, exported = scrape(port).text, await site.exported()
    await site.jobs.enqueue("endless", queue="slow")
    await until((site.folder / "runs").exists, 20)
    await slow.pause()
    await site.jobs.enqueue("nobody", queue="slow", lane="acme")
    await slow.lanes(running=5)
    await site.jobs.enqueue("nobody", queue="slow", every="1h", key="hourly", due_at=ten_minutes_ago())
    for name in ("good", "bad", "fans"):
        await site.jobs.enqueue(name)
    scraped = {
        "worker": Scraped(before, await site.ran(port, 4)),
        "metrics": Scraped(exported, await site.exported()),
    }
    known = set(re.findall(r"^# TYPE (\w+) ", "".join(one.after for one in scraped.values()), re.MULTILINE))
    shown = table(ROOT / "docs/operations.md", "Metrics and alerts", "metric")
    families = text_string_to_metric_families(scraped["metrics"].after)
    exported_labels = {one.name: [*one.samples[0].labels] for one in families}
    assert {code_of(row["metric"]): spans(row["labels"]) for row in shown} == exported_labels
    used = [*queries(), *((rule["alert"], rule["expr"]) for rule in alerts())]
    named = {(where, name) for where, query in used for name in re.findall(r"\bjobmill_\w+", query)}
    assert {one for one in named if re.sub(r"_(bucket|sum|count)$", "", one[1]) not in known} == set()
    # How many series: a comparison of the values would compare floats.
    expect_samples(site.folder, scraped, [(1, f"count({query}) > bool 0", {"{}": 1.0}) for _, query in queries()])
