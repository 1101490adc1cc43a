"""docs/django.md: its files are a project whose tests pass, and its tables have the options and checks of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, spans, table

PAGE = ROOT / "docs/django.md"


@pytest.mark.slow
def test_the_project_of_the_page(tmp_path: Path) -> None:
    for block in blocks(PAGE):
        if block.file is not None:
            file = tmp_path / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.code)
    (tmp_path / "shop/__init__.py").touch()
    ended = subprocess.run(
        [sys.executable, "-m", "django", "test", "--settings=settings", "--pythonpath=.", "shop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Ran 2 tests" in ended.stderr


def test_the_tables_name_what_the_code_has() -> None:
    from jobmill.django.checks import KNOWN

    assert sorted(name for row in table(PAGE, "Settings", "option") for name in spans(row["option"])) == sorted(KNOWN)
    source = (ROOT / "src/jobmill/django/checks.py").read_text()
    ids = sorted(set(re.findall(r"jobmill\.[EW]\d{3}", source)))
    assert sorted(spans(row["id"])[0] for row in table(PAGE, "Checks", "id")) == ids
