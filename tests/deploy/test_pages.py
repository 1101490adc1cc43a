"""docs/deployment.md, and the sections of docs/operations.md about metrics and scaling: they are about these files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobmill.core.scaling import Scale
from tests.deploy.checkers import hadolint
from tests.deploy.commands import services
from tests.deploy.files import DEPLOY, MANIFESTS, ROOT, UNITS, alerts, documents
from tests.docs.pages import Block, blocks, code_of, section, spans, table
from tests.kit.promtool import promtool

DEPLOYMENT, OPERATIONS = ROOT / "docs/deployment.md", ROOT / "docs/operations.md"
SECTIONS = ("Metrics and alerts", "Scaling")


def command_lines() -> Iterator[list[str]]:
    """Of both pages, and of the comments of the files."""
    for page in (DEPLOYMENT, OPERATIONS):
        for block in blocks(page):
            if block.language == "console":
                yield from (shlex.split(line[2:]) for line in block.code.splitlines() if line.startswith("$ "))
    for file in DEPLOY.rglob("*"):
        if file.is_file():
            yield from map(shlex.split, re.findall(r"^#     (.+)$", file.read_text(), re.MULTILINE))


def test_every_file_that_a_command_names_exists() -> None:
    named = {word for words in command_lines() for word in words if word.startswith("deploy/")}
    assert len(named) > 8
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_unit_that_systemctl_starts_exists() -> None:
    for words in command_lines():
        if words[:4] == ["sudo", "systemctl", "enable", "--now"]:
            assert {f"{name}.service" for name in words[4:]} <= {unit.name for unit in UNITS}
            break
    else:
        pytest.fail("no unit is started")


def test_the_commands_of_docker_name_our_tag_and_our_services() -> None:
    tag = services(DEPLOY / "compose/sqlite.yaml")["worker"]["image"]
    for words in command_lines():
        if words[:2] == ["docker", "build"]:
            assert words[words.index("--tag") + 1] == tag
        if words[:2] == ["docker", "run"]:
            assert words[-1] == tag
            assert words[words.index("--stop-timeout") + 1] == "35"
        if "--scale" in words:
            scaled, file = words[words.index("--scale") + 1], words[words.index("--file") + 1]
            assert scaled.partition("=")[0] in services(ROOT / file)


def test_the_commands_of_kubectl_name_our_objects() -> None:
    own = {f"{one['kind'].lower()}/{one['metadata']['name']}" for file in MANIFESTS for one in documents(file)}
    waited = [word for words in command_lines() for word in words if word.startswith("job/")]
    assert set(waited) <= own
    assert len(waited) == 2
    keys = {
        (one["secretKeyRef"]["name"], one["secretKeyRef"]["key"])
        for file in MANIFESTS
        for one in _sources(documents(file))
    }
    (created,) = [words for words in command_lines() if words[:3] == ["kubectl", "create", "secret"]]
    assert keys == {(created[4], created[5].removeprefix("--from-file=").partition("=")[0])}


def _sources(value: object) -> Iterator[dict[str, dict[str, str]]]:
    if isinstance(value, dict):
        if "secretKeyRef" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _sources(one)


def test_the_command_of_promtool_succeeds() -> None:
    (words,) = [words for words in command_lines() if words[0] == "promtool"]
    assert promtool(*words[1:-1], str(ROOT / words[-1]))[0] == 0


def block(language: str) -> Block:
    (one,) = [one for one in blocks(DEPLOYMENT) if one.language == language]
    return one


def test_hadolint_accepts_the_dockerfile_of_the_page(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(block("dockerfile").code)
    assert hadolint(file) == (0, "")


def test_the_environment_of_systemd_has_known_variables() -> None:
    environment = next(one for one in blocks(DEPLOYMENT) if one.language == "ini")
    names = {line.partition("=")[0] for line in environment.code.splitlines()}
    variables = table(ROOT / "docs/options.md", "Connecting", "environment variable")
    assert names <= {code_of(row["environment variable"]) for row in variables}


def test_the_page_names_every_file() -> None:
    text = DEPLOYMENT.read_text() + OPERATIONS.read_text()
    parts = {file for folder in ("compose", "kubernetes", "systemd", "grafana") for file in (DEPLOY / folder).iterdir()}
    missing = [file for file in parts if f"(../{file.relative_to(ROOT)})" not in text]
    assert missing == []


def test_the_page_has_the_alerts() -> None:
    shown = {code_of(row["alert"]): row["after"] for row in table(OPERATIONS, SECTIONS[0], "alert")}
    assert shown == {rule["alert"]: rule.get("for", "at once") for rule in alerts()}


def test_the_page_has_the_fields_of_scale() -> None:
    fields = [name for row in table(OPERATIONS, SECTIONS[1], "field") for name in spans(row["field"])]
    assert [*fields, "queue"] == [*fields, *(set(Scale.__struct_fields__) - set(fields))]
    (example,) = re.findall(r"^\{.+\}$", section(OPERATIONS, SECTIONS[1]), re.MULTILINE)
    assert tuple(json.loads(example)) == Scale.__struct_fields__
    msgspec.json.decode(example, type=Scale)
