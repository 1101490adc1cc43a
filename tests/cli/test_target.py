from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from jobmill.cli.target import load_client
from tests.cli.conftest import APP, Shell


@pytest.fixture
def here(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A working directory with an app in it; what it imports is forgotten afterwards."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("JOBMILL_URL", shell.url)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    shell.write_app()
    yield shell
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["app:jobs", "app.py:jobs", "./app.py:jobs", "app", "app.py"])
def test_a_client_is_found(here: Shell, target: str) -> None:
    assert set(load_client(target).handlers) == {"double", "refuse", "snail"}


def test_a_file_in_a_package_is_imported_under_its_full_name(here: Shell) -> None:
    here.write_app("", "shop/__init__.py")
    here.write_app(APP, "shop/work.py")
    load_client("shop/work.py:jobs")
    assert "shop.work" in sys.modules
    assert load_client("shop.work:jobs") is sys.modules["shop.work"].jobs


def test_an_attribute_can_have_dots(here: Shell) -> None:
    here.write_app("import app\n", "deep.py")
    assert "double" in load_client("deep:app.jobs").handlers


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothing:jobs", "there is no module 'nothing' in"),
        ("", "expected module:client or file.py:client, such as app.py:jobs, got ''"),
        (".app:jobs", "expected module:client or file.py:client"),
        ("nothing.py:jobs", "there is no file nothing.py"),
        ("app:jobz", "app has no 'jobz'; clients there: jobs"),
        ("app:number", "app:number is of type int, expected a client"),
        ("empty", "there is no client in empty"),
        ("empty:x", "empty has no 'x'; clients there: none"),
        ("several", "there are several clients in several: use several:a or several:b"),
        ("idle:jobs", "idle:jobs has no handlers; import the modules that define them in idle"),
        ("broken:jobs", "broken cannot be imported: ZeroDivisionError: division by zero (broken.py:2)"),
        ("typo:jobs", "typo cannot be imported: SyntaxError:"),
        ("needy:jobs", "needy cannot be imported: ModuleNotFoundError: No module named 'not_installed' (needy.py:1)"),
        ("twice:jobs", "a name that no other handler has (twice.a has it), got 'a' (twice.py:5)"),
        ("json.py:jobs", "json.py cannot be imported: the name 'json' is taken by"),
        (":jobs", "expected module:client or file.py:client"),
    ],
)
def test_an_invalid_target_is_reported_in_one_line(here: Shell, target: str, said: str) -> None:
    for name, text in {
        "empty": "",
        "several": "import jobmill\na, b = jobmill.connect('memory://'), jobmill.connect('memory://')",
        "idle": "import jobmill\njobs = jobmill.connect()",
        "broken": "def f():\n    return 1 / 0\nf()",
        "typo": "def",
        "needy": "import not_installed",
        "twice": "import jobmill\njobs = jobmill.connect()\n@jobs.handler\ndef a(): ...\njobs.handler(name='a')(a)",
        "json": "",
    }.items():
        here.write_app(text, f"{name}.py")
    assert said in here.refused("worker", target, code=2)


def test_a_url_that_the_module_does_not_use_is_refused(here: Shell) -> None:
    here.write_app(APP.replace("connect()", "connect('sqlite:///own.db')"), "own.py")
    assert "connects to another store" in here.refused("worker", "own:jobs", "--url", here.url, code=2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--concurrency", "0"], "concurrency: expected a whole number from 1"),
        (["--lease", "1ms"], "lease: expected a duration of at least"),
        (["--processes", "0"], "0 is not in the range"),
        (["--processes", "2", "--concurrency", "0"], "concurrency: expected a whole number from 1"),
        (["--queue", "a:b"], 'queue: expected a name without ":"'),
    ],
)
def test_invalid_options_are_refused(here: Shell, args: list[str], said: str) -> None:
    assert said in here.refused("worker", "app:jobs", *args, code=2)
