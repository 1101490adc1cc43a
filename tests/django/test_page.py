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

#: Of the functions of the page that it has no tests for.
MORE_TESTS = """
from django.contrib.auth.models import User
from django.db import transaction
from django.test import RequestFactory, TransactionTestCase

from jobmill.django import client
from shop import schedules, views
from shop.tasks import send_receipt


class PageTest(TransactionTestCase):
    def test_a_schedule_with_arguments(self):
        for number in (7, 8):
            with transaction.atomic():
                schedules.send_receipt_daily(number)
                schedules.send_receipt_daily(number)
                transaction.set_rollback(number == 8)
        (job,) = client().sync.find(name="shop.tasks.send_receipt").jobs
        self.assertEqual((job.payload["args"], job.queue, job.recurrence.cron), ([7], "mail", "0 8 * * *"))
        schedules.stop_daily_receipt(7)
        self.assertEqual(client().sync.get(job.id).state, "cancelled")

    def test_views(self):
        request = RequestFactory().get("/")
        request.user = User(username="ada")
        id = send_receipt.enqueue(7).id
        again = client().sync.enqueue_many([send_receipt.draft(7), send_receipt.draft(8)])
        self.assertEqual([one.status for one in again], ["duplicate", "created"])
        self.assertIn(b'"waiting"', views.progress(request, id).content)
        self.assertIn(b'"cancelled"', views.cancel(request, id).content)
        self.assertEqual(client().sync.audit_log(limit=1).entries[0].who, "ada")
"""


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
    ("page", "tests"), [(PAGE, 10), (ROOT / "docs/coming-from/django-q2.md", 1)], ids=["django", "django-q2"]
)
def test_the_project_of_the_page(page: Path, tests: int, tmp_path: Path) -> None:
    write_project(page, tmp_path)
    if page == PAGE:
        (tmp_path / "shop/test_page.py").write_text(MORE_TESTS)
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
