"""The files in deploy/: their own checkers accept them, and what belongs together agrees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import msgspec
import pytest

import jobmill
from jobmill.core.scaling import Scale
from tests.deploy.checkers import hadolint
from tests.deploy.commands import container, exec_start, option, services, unit
from tests.deploy.files import COMPOSE, DEPLOY, MANIFESTS, UNITS, documents
from tests.kit.systemd import systemd_analyze

#: The oldest that kubernetes-validate knows and the newest.
KUBERNETES = ("1.25.0", kubernetes_validate.latest_version())
#: systemd's own measure, from 0 (good) to 10.
MAX_EXPOSURE = 2

each_compose = pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
each_unit = pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for file in MANIFESTS for one in documents(file)}


WORKER, METRICS = ("Deployment", "jobmill-worker"), ("Deployment", "jobmill-metrics")
MIGRATE, SCALED = ("Job", "jobmill-migrate"), ("ScaledObject", "jobmill-worker")


# ---------------------------------------------------------------------------------------------------- checkers


def test_hadolint_accepts_the_dockerfile() -> None:
    assert hadolint(DEPLOY / "Dockerfile") == (0, "")


@pytest.mark.slow
def test_compose_files_match_the_schema_of_compose() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, COMPOSE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_match_the_schemas_of_kubernetes(version: str) -> None:
    for (kind, _), manifest in manifests().items():
        if kind != SCALED[0]:  # KEDA's own type, which kubernetes-validate does not know
            kubernetes_validate.validate(manifest, version.removesuffix(".0"), strict=True)


@each_unit
def test_systemd_accepts_the_unit(file: Path, tmp_path: Path) -> None:
    """On this machine the program is another one, and it must exist."""
    copy = tmp_path / file.name
    copy.write_text(file.read_text().replace("/opt/shop/.venv/bin/jobmill", "/bin/true"))
    assert systemd_analyze("verify", "--man=no", str(copy)) == (0, "")
    code, said = systemd_analyze(
        "security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10}", "--no-pager", str(copy)
    )
    assert code == 0, said


# ---------------------------------------------------------------------------------------------------- images


def images() -> list[str]:
    found = [service["image"] for file in COMPOSE for service in services(file).values()]
    found += [container(manifests()[key])["image"] for key in (WORKER, METRICS, MIGRATE)]
    return found + re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)


def test_every_image_has_a_tag_and_ours_that_of_this_version() -> None:
    for image in images():
        name, _, tag = image.partition(":")
        assert tag
        assert tag != "latest"
        if name.endswith("jobmill"):
            assert tag == jobmill.__version__


def test_the_builder_gets_only_what_the_dockerfile_copies() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = {name for words in re.findall(r"^COPY (?!--from)(.+)", text, re.MULTILINE) for name in words.split()[:-1]}
    sent = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert all((DEPLOY.parent / name).exists() for name in sent)


# ---------------------------------------------------------------------------------------------------- stopping


def grace(arguments: list[str]) -> int:
    """The seconds from SIGTERM to SIGKILL that a worker needs."""
    return int(option(arguments, "shutdown-timeout").removesuffix("s")) + 5


@each_compose
def test_compose_lets_workers_stop(file: Path) -> None:
    worker = services(file)["worker"]
    assert worker["stop_grace_period"] == f"{grace(worker['command'])}s"


def test_kubernetes_lets_workers_stop() -> None:
    spec = manifests()[WORKER]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace(container(manifests()[WORKER])["args"])


@pytest.mark.parametrize("name", ["jobmill-worker", "jobmill-worker@"])
def test_systemd_lets_workers_stop(name: str) -> None:
    file = DEPLOY / f"systemd/{name}.service"
    assert unit(file)["TimeoutStopSec"] == [str(grace(exec_start(file)))]
    assert unit(file)["KillMode"] == ["mixed"]


# ---------------------------------------------------------------------------------------------------- safety


@each_compose
def test_compose_services_are_limited(file: Path) -> None:
    (content,) = documents(file)
    for name, service in services(file).items():
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
        assert "no-new-privileges:true" in service["security_opt"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "only this machine"
        if service["image"].startswith("jobmill:"):
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        else:
            assert service["networks"] == ["store"]
            assert content["networks"]["store"] == {"internal": True}


@pytest.mark.parametrize("key", [WORKER, METRICS, MIGRATE], ids=lambda key: key[1])
def test_pods_are_limited(key: tuple[str, str]) -> None:
    pod, one = manifests()[key]["spec"]["template"]["spec"], container(manifests()[key])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert one["resources"]["limits"].keys() == one["resources"]["requests"].keys() == {"cpu", "memory"}
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert [pod["securityContext"][name] for name in ("runAsUser", "runAsGroup")] == [int(one) for one in user.groups()]


def test_no_file_has_a_password() -> None:
    for file in DEPLOY.rglob("*.*"):
        for url in re.findall(r"\w+://[^\s\"']+", file.read_text()):
            secret = re.search(r"//[^/@]*:([^/@]+)@", url)
            assert secret is None or secret[1].startswith("${"), f"{file.name}: {url}"


# ---------------------------------------------------------------------------------------------------- probes, scaling


def test_the_probes_ask_the_port_of_the_worker() -> None:
    one = container(manifests()[WORKER])
    (port,) = one["ports"]
    assert {"name": "JOBMILL_HEALTH", "value": str(port["containerPort"])} in one["env"]
    asked = {name: one[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in asked.values()} == {port["name"]}
    paths = {name: probe["path"] for name, probe in asked.items()}
    assert paths == {"startup": "/readyz", "liveness": "/livez", "readiness": "/readyz"}
    startup, live = one["startupProbe"], one["livenessProbe"]
    assert (startup["periodSeconds"], startup["failureThreshold"]) == (2, 30)
    assert (live["periodSeconds"], live["failureThreshold"]) == (10, 3)


def test_keda_scales_the_workers_by_a_number_of_the_exporter() -> None:
    spec = manifests()[SCALED]["spec"]
    assert ("Deployment", spec["scaleTargetRef"]["name"]) == WORKER
    (trigger,) = spec["triggers"]
    about = trigger["metadata"]
    assert trigger["type"] == "metrics-api"
    assert all(isinstance(value, str) for value in about.values()), "KEDA accepts only strings"
    url = urlsplit(about["url"])
    assert url.hostname is not None
    (port,) = manifests()["Service", url.hostname.partition(".")[0]]["spec"]["ports"]
    assert url.port == port["port"]
    assert about["valueLocation"] in {field.name for field in msgspec.structs.fields(Scale) if field.type is int}
    (concurrency,) = parse_qs(url.query)["concurrency"]
    assert concurrency == option(container(manifests()[WORKER])["args"], "concurrency")
    assert float(about["targetValue"]) == 1
    assert "replicas" not in manifests()[WORKER]["spec"], "or apply would undo KEDA's number"


def test_the_service_and_the_policy_select_the_exporter() -> None:
    labels = manifests()[METRICS]["spec"]["template"]["metadata"]["labels"]
    assert manifests()["Service", "jobmill-metrics"]["spec"]["selector"] == labels
    assert manifests()["NetworkPolicy", "jobmill-metrics"]["spec"]["podSelector"]["matchLabels"] == labels


def test_json_files_are_formatted() -> None:
    for file in DEPLOY.rglob("*.json"):
        assert file.read_text() == json.dumps(json.loads(file.read_text()), indent=2) + "\n"
