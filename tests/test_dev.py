"""dev.py as a stranger meets it: in a copy of its own, with a pip and a pytest that only write down their calls."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

DEV = Path(__file__).parents[1] / "dev.py"

# `python -m NAME` finds NAME.py in the working directory first: these stand in for the real tools.
FAKE_PIP = """
import json, sys
if "--version" in sys.argv:
    print("pip 23.2.1 from somewhere")
else:
    with open("installs.jsonl", "a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\\n")
"""
FAKE_PYTEST = """
import json, sys
print(json.dumps({"arguments": sys.argv[1:], "prefix": sys.prefix}))
sys.exit(7)
"""


class Tree:
    """A checkout with a space in its path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        shutil.copy(DEV, root)
        self.write("pyproject.toml", "[project]")
        self.write("constraints.txt", "click==8\n# end of base\npytest==9\n# end of test\nruff==1\n# end of dev\n")
        self.write("pip.py", FAKE_PIP)
        self.write("pytest.py", FAKE_PYTEST)

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def dev(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, self.root / "dev.py", *arguments],
            cwd=self.root.parent,  # from another directory, always
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def installs(self) -> Sequence[list[str]]:
        log = self.root / "installs.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.delenv("JOBMILL_VENV", raising=False)  # these tests may themselves run in such a place
    return Tree(tmp_path / "a tree")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_first_run_makes_the_environment_and_hands_arguments_and_exit_code_through(tree: Tree) -> None:
    run = tree.dev("test", "--store", "sqlite", "-k", "two words")
    assert run.returncode == 7, run.stderr
    said = json.loads(run.stdout)
    workers, dist, *arguments = said["arguments"]
    assert workers.startswith("-n")
    assert dist == "--dist=worksteal"
    assert arguments == ["--store", "sqlite", "-k", "two words"]
    assert Path(said["prefix"]) == tree.root / ".venv"
    assert len(run.stderr.splitlines()) == 1
    assert "installing jobmill[test]" in run.stderr
    pinned = tree.root / ".venv/pinned.txt"
    packages, own = tree.installs
    assert packages[-5:] == ["install", "--no-deps", "--require-hashes", "-r", str(pinned)]
    assert pinned.read_text() == "click==8\n# end of base\npytest==9\n", "and nothing that the tests do not need"
    assert own[-5:] == ["install", "--no-deps", "--no-build-isolation", "-e", "."]
    assert packages[:2] == own[:2] == ["--python", str(tree.root / ".venv/bin/python")]


def test_the_tests_run_in_one_process_without_xdist(tree: Tree) -> None:
    assert json.loads(tree.dev("test", "-p", "no:xdist").stdout)["arguments"] == ["-p", "no:xdist"]


@pytest.mark.parametrize("arguments", [("--all",), ("-n2", "tests/bench/test_lab.py")], ids=["all", "of the benchmark"])
@pytest.mark.parametrize("verb", ["test", "coverage"])
def test_the_tests_of_the_benchmark_have_its_packages(tree: Tree, verb: str, arguments: Sequence[str]) -> None:
    tree.dev("test", "tests/core")
    assert "installing jobmill[dev]" in tree.dev(verb, *arguments).stderr


def test_bytecode_is_kept_in_the_environment_where_the_tree_is_to_stay_clean(tree: Tree) -> None:
    tree.dev("test", PYTHONDONTWRITEBYTECODE="1")
    assert not list(tree.root.glob("__pycache__"))
    assert list((tree.root / ".venv/bytecode").rglob("*.pyc"))


def test_an_installation_is_repeated_only_when_something_changed(tree: Tree) -> None:
    tree.dev("test")
    quiet = tree.dev("test")
    assert (quiet.returncode, quiet.stderr) == (7, "")
    assert len(tree.installs) == 2
    tree.write("pyproject.toml", "[project]\nname = 'x'")
    tree.dev("test")
    assert len(tree.installs) == 4


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "src/jobmill/_version.py"])
def test_the_stamp_follows_the_files(tree: Tree, name: str) -> None:
    dev = load(tree.root / "dev.py")
    before = dev.stamp()
    assert before == dev.stamp()
    (tree.root / name).parent.mkdir(parents=True, exist_ok=True)
    tree.write(name, "something else")
    assert dev.stamp() != before


def test_the_stamp_follows_the_interpreter_and_the_place(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = load(tree.root / "dev.py")
    stamps = {dev.stamp(), load(Tree(tmp_path / "a second tree").root / "dev.py").stamp()}
    monkeypatch.setattr(sys, "version", "3.99.0")
    stamps.add(dev.stamp())
    assert len(stamps) == 3


def test_dev_holds_all_other_extras(tree: Tree) -> None:
    dev = load(tree.root / "dev.py")
    dev.PYTHON.parent.mkdir(parents=True)
    dev.PYTHON.touch()
    dev.stamp_file("test").write_text(dev.stamp())
    assert (dev.is_ready("test"), dev.is_ready("bench")) == (True, False)
    dev.stamp_file("dev").write_text(dev.stamp())
    assert dev.is_ready("bench")


def test_a_broken_environment_is_made_anew(tree: Tree) -> None:
    tree.dev("test")
    python = tree.root / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/no/such/python")
    leftover = tree.root / ".venv/leftover"
    leftover.touch()
    assert tree.dev("test").returncode == 7
    assert not leftover.exists()


def test_a_directory_that_is_no_environment_is_left_alone(tree: Tree, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").touch()
    run = tree.dev("test", JOBMILL_VENV=str(precious))
    assert run.returncode == 1
    assert "is not a virtual environment" in run.stderr
    assert (precious / "thesis.txt").exists()


def test_jobmill_venv_moves_the_environment(tree: Tree, tmp_path: Path) -> None:
    run = tree.dev("test", JOBMILL_VENV="elsewhere/env")  # from the caller's directory
    assert Path(json.loads(run.stdout)["prefix"]) == tmp_path / "elsewhere/env"
    assert not (tree.root / ".venv").exists()


def test_two_first_runs_at_once_install_once(tree: Tree) -> None:
    tree.write("pip.py", FAKE_PIP.replace("else:", "else:\n    import time; time.sleep(0.3)"))
    command = [sys.executable, str(tree.root / "dev.py"), "test"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [7, 7], said
    assert len(tree.installs) == 2


@pytest.mark.parametrize(
    ("pip", "sentence"),
    [
        ("raise SystemExit(1)", "pip is missing"),
        ("print('pip 22.0.2 from somewhere')", "pip 22.0.2 is too old"),
        (FAKE_PIP + "    sys.exit(1)", "the installation failed"),
    ],
)
def test_what_goes_wrong_is_a_sentence(tree: Tree, pip: str, sentence: str) -> None:
    tree.write("pip.py", pip)
    run = tree.dev("test")
    assert run.returncode == 1
    assert sentence in run.stderr
    assert "Traceback" not in run.stderr


# ---------------------------------------------------------------------------------------------------- hashes


def wheel(folder: Path) -> Path:
    """A package that is a module and nothing else."""
    file, about = folder / "tiny-1-py3-none-any.whl", "tiny-1.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hash", "sentence"),
    [
        (" --hash=sha256:{}", "tiny is installed"),
        (" --hash=sha256:" + 64 * "0", "DO NOT MATCH THE HASHES"),
        ("", "Hashes are required"),
    ],
    ids=["right", "wrong", "missing"],
)
def test_the_real_pip_installs_only_what_has_its_hash(tree: Tree, tmp_path: Path, hash: str, sentence: str) -> None:
    (tree.root / "pip.py").unlink()
    line = "tiny==1" + hash.format(hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest())
    tree.write("constraints.txt", f"{line}\n# end of test\n")
    # What builds the tree, from the working directory of the build: it runs once everything else is installed.
    tree.write("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]')
    tree.write("build.py", "import tiny; raise SystemExit('tiny is installed')")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    run = tree.dev("test", **index)
    assert run.returncode == 1
    assert sentence in run.stderr
    assert "the installation failed" in run.stderr


def test_every_package_is_pinned_with_hashes_and_without_an_address() -> None:
    text = (DEV.parent / "constraints.txt").read_text()
    assert "://" not in text
    lines = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.match(r"[a-z0-9.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}( |$)", line)] == []
    assert re.findall("^# end of (.*)$", text, re.MULTILINE) == ["base", "test", "bench", "dev"]
    project = tomllib.loads((DEV.parent / "pyproject.toml").read_text())["project"]
    wanted = [one for extra in project["optional-dependencies"].values() for one in extra] + project["dependencies"]
    names = {re.split(r"[^A-Za-z0-9.-]", one)[0] for one in wanted} - {"jobmill"}
    assert names <= {line.partition("==")[0] for line in lines}


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(tree: Tree, arguments: list[str]) -> None:
    run = tree.dev(*arguments)
    assert run.returncode == 0
    assert all(f"dev.py {verb}" in run.stdout for verb in ("demo", "test", "coverage", "check", "bench"))


@pytest.mark.parametrize("arguments", [["tset"], ["check", "--fix"]])
def test_an_unknown_verb_or_argument_is_a_usage_error(tree: Tree, arguments: list[str]) -> None:
    run = tree.dev(*arguments)
    assert run.returncode == 2
    assert "dev.py test" in run.stderr
    assert not (tree.root / ".venv").exists()


def test_check_runs_everything_and_fails_if_anything_failed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dev = load(tree.root / "dev.py")
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "CHECKS", {"bad": ["-c", "exit(3)"], "good": ["-c", "pass"]})
    assert dev.check() == 1
    bad, good = capfd.readouterr().out.splitlines()[-2:]
    assert bad.split()[:2] == ["bad", "FAILED"]
    assert good.split()[:2] == ["good", "ok"]
