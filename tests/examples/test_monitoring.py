"""The monitoring stack: its files fit together, and a real Prometheus scrapes what its services run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import jobmill
from tests.deploy.commands import Place, services
from tests.deploy.files import ALERTS, DASHBOARD, DEPLOY, alerts, documents, queries
from tests.deploy.test_commands import IMAGE_ENVIRONMENT
from tests.examples.printed import EXAMPLES
from tests.helpers import until
from tests.kit.promtool import PrometheusServer, promtool

HERE = EXAMPLES / "monitoring"
COMPOSE = HERE / "compose.yaml"
README = (HERE / "README.md").read_text()

#: The traffic that the README promises: successes and errors of charge_card, and what the store knows.
PROMISED = (
    'sum(jobmill_runs_total{name="charge_card",outcome="succeeded"}) > 5',
    'sum(jobmill_runs_total{name="charge_card",outcome="errored"}) > 1',
    'sum(jobmill_workers{queue="reports"}) == 1',
    "count(jobmill_queue_jobs) > 1",
)


def mounts(service: str) -> dict[str, Path]:
    """Files of the repository, by where they are in the container."""
    pairs = (volume.split(":") for volume in services(COMPOSE)[service]["volumes"])
    return {inside: (HERE / outside).resolve() for outside, inside, *_ in pairs if outside.startswith(".")}


def config() -> Any:
    (read,) = documents(HERE / "prometheus.yaml")
    return read


@pytest.mark.slow
def test_the_compose_file_matches_the_schema_of_compose() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_services_are_limited_and_reachable_from_this_machine_only() -> None:
    for name, service in services(COMPOSE).items():
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
        assert "no-new-privileges:true" in service["security_opt"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        image, _, tag = service["image"].partition(":")
        assert tag not in ("", "latest")
        assert image != "jobmill" or tag == jobmill.__version__


def test_every_mounted_file_exists_and_is_where_its_program_looks_for_it() -> None:
    prometheus, grafana, worker = (mounts(name) for name in ("prometheus", "grafana", "worker"))
    assert all(path.is_file() for path in (prometheus | grafana | worker).values())
    # The image of Prometheus reads /etc/prometheus/prometheus.yml, and rule files beside it.
    assert prometheus["/etc/prometheus/prometheus.yml"] == HERE / "prometheus.yaml"
    assert [prometheus[f"/etc/prometheus/{name}"] for name in config()["rule_files"]] == [ALERTS]
    (provider,) = documents(HERE / "grafana/dashboards.yaml")[0]["providers"]
    assert grafana[f"{provider['options']['path']}/jobmill.json"] == DASHBOARD
    workdir = re.findall(r"^WORKDIR (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[-1]
    assert worker == {f"{workdir}/traffic.py": HERE / "traffic.py"}


def test_names_and_ports_agree() -> None:
    all_services = services(COMPOSE)
    worker, metrics = config()["scrape_configs"]
    (found,) = worker["dns_sd_configs"]
    assert (found["names"], str(found["port"])) == (["worker"], IMAGE_ENVIRONMENT["JOBMILL_HEALTH"])
    command = all_services["metrics"]["command"]
    assert metrics["static_configs"] == [{"targets": [f"metrics:{command[command.index('--port') + 1]}"]}]
    (source,) = documents(HERE / "grafana/datasources.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == config()["global"]["scrape_interval"]
    assert {worker["job_name"], metrics["job_name"]} == {"jobmill-worker", "jobmill-metrics"}
    for port, service in ((9090, "prometheus"), (3000, "grafana")):
        assert all_services[service]["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert f"http://localhost:{port}/" in README


def test_the_readme_names_what_is_there() -> None:
    named = set(re.findall(r"`(Jobmill\w+)`", README))
    assert named <= {rule["alert"] for rule in alerts()}
    assert "eight alerts" in README
    assert len(alerts()) == 8
    assert f"/d/{json.loads(DASHBOARD.read_text())['uid']}>" in README


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text((HERE / "prometheus.yaml").read_text())
    assert promtool("check", "config", str(tmp_path / "prometheus.yml"))[0] == 1, "the rules are not there"
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text())
    code, said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert code == 0, said


@pytest.mark.extended
@pytest.mark.stores("sqlite")
async def test_a_real_prometheus_scrapes_what_the_services_run(tmp_path: Path) -> None:
    """Processes in place of containers, with addresses of this machine in place of the names of compose."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    places = {name: place(tmp_path / name, url) for name in ("worker", "metrics")}
    (places["worker"].folder / "traffic.py").write_text((HERE / "traffic.py").read_text())
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(local(config(), places)))
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text())
    own = services(COMPOSE)
    assert all("migrate" in own[name]["depends_on"] for name in places)
    places["worker"].run(own["migrate"]["command"], IMAGE_ENVIRONMENT)
    with (
        places["worker"].running(own["worker"]["command"], IMAGE_ENVIRONMENT),
        places["metrics"].running(own["metrics"]["command"], IMAGE_ENVIRONMENT),
        PrometheusServer(tmp_path / "prometheus.yml") as prometheus,
    ):
        await until(lambda: prometheus.query("up") == {"jobmill-worker": 1, "jobmill-metrics": 1}, 60)
        await until(lambda: all(map(prometheus.query, PROMISED)), 60)
        loaded = [rule["name"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert loaded == [rule["alert"] for rule in alerts()]
        for title, expression in queries():
            prometheus.query(expression)  # raises where Prometheus refuses it
            assert title


def place(folder: Path, url: str) -> Place:
    folder.mkdir()
    return Place(folder, url)


def local(config: Any, places: dict[str, Place]) -> Any:
    worker, metrics = config["scrape_configs"]
    del worker["dns_sd_configs"]
    for scraped, name in ((worker, "worker"), (metrics, "metrics")):
        scraped["static_configs"] = [{"targets": [f"127.0.0.1:{places[name].port()}"]}]
    return {**config, "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
