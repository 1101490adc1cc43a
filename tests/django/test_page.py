"""docs/django.md: its files are a project whose tests pass, and its tables have the options and checks of the code.

The page for people who come from django-q2 has such a project, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, spans, table

PAGE = ROOT / "docs/django.md"


def write_project(page: Path, folder: Path) -> None:
    """The files of a page."""
    for block in blocks(page):
        if block.file is not None:
            file = folder / block.file
            file.parent.mkdir(exist_ok=True)
            with file.open("a") as end:  # several blocks are one file
                end.write(f"{block.code}\n")
    (folder / "shop/__init__.py").touch()


def run_tests(folder: Path) -> str:
    """What the test runner of Django says about the tests of a project, which must pass."""
    ended = subprocess.run(
        [sys.executable, "-m", "django", "test", "--settings=settings", "--pythonpath=.", "shop"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "tests"), [(PAGE, 8), (ROOT / "docs/coming-from/django-q2.md", 1)], ids=["django", "django-q2"]
)
def test_the_project_of_the_page(page: Path, tests: int, tmp_path: Path) -> None:
    write_project(page, tmp_path)
    assert f"Ran {tests} test" in run_tests(tmp_path)


@pytest.mark.slow
def test_tests_leave_the_real_store_alone(tmp_path: Path) -> None:
    write_project(PAGE, tmp_path)
    with (tmp_path / "settings.py").open("a") as settings:
        settings.write(f'TASKS["default"]["OPTIONS"]["url"] = "sqlite:///{tmp_path}/shop.db"\n')
    assert "Ran 8 tests" in run_tests(tmp_path)
    assert not (tmp_path / "shop.db").exists()


def test_the_tables_name_what_the_code_has() -> None:
    from jobmill.django.checks import KNOWN

    assert sorted(name for row in table(PAGE, "Settings", "option") for name in spans(row["option"])) == sorted(KNOWN)
    source = (ROOT / "src/jobmill/django/checks.py").read_text()
    ids = sorted(set(re.findall(r"jobmill\.[EW]\d{3}", source)))
    assert sorted(spans(row["id"])[0] for row in table(PAGE, "Checks", "id")) == ids
