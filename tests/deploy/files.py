"""The files in deploy/, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yaml"
DASHBOARD = DEPLOY / "grafana/jobmill.json"
COMPOSE = sorted(DEPLOY.glob("compose/*.yaml"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    """All documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    (file,) = documents(ALERTS)
    return [rule for group in file["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    """Grafana's dashboard."""
    return json.loads(DASHBOARD.read_text())


def queries() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard with the title of its panel; Grafana's variables have a value."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], re.sub(r"\$(\w+)", ".+", text)
