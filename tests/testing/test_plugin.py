"""The pytest plugin, in sessions of pytest of its own: sync tests, pytest-asyncio, anyio, stores, and failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.helpers import without_coverage

EXAMPLE = ROOT / "examples/testing_an_application"

SHOP = """
import jobmill

jobs = jobmill.connect("sqlite:////nowhere/jobs.db")
sent = []

@jobs.handler(max_attempts=1)
async def send(to: str) -> None:
    sent.append(to)
    if to == "nobody":
        raise ConnectionError("503")
"""

SETTINGS = """
[pytest]
jobmill = shop:jobs
pythonpath = .
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

#: A test, as all kinds of test functions have it.
BODY = """
    assert jobs is shop.jobs
    enqueued.none()
    {wait}(send.enqueue(to="ada"))
    enqueued.one(send, to="ada")
    assert len({drain}()) == 1
"""
IMPORTS = "import pytest, shop\nfrom shop import send\n"
SYNC = "def test_{n}(jobs, enqueued, drain):" + BODY.format(wait="jobs.sync", drain="drain.sync")
ASYNC = "async def test_{n}(jobs, enqueued, drain):" + BODY.format(wait="await ", drain="await drain")
#: A fixture that enqueues with the module's own handler, and tests that see the job; twice, for what a loop may keep.
FIXTURE = """
@pytest.fixture
async def order(jobs):
    await send.enqueue(to="fixture")
""" + "\n".join(
    f"async def test_fixture_{n}(order, enqueued):\n    enqueued.one(send, to='fixture')\n" for n in range(2)
)
ANYIO = "pytestmark = pytest.mark.anyio\n@pytest.fixture(scope='module')\ndef anyio_backend(): return 'asyncio'\n"


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=SHOP)
    pytester.makeini(SETTINGS)
    return pytester


def run(session: pytest.Pytester, *options: str) -> pytest.RunResult:
    return session.runpytest_inprocess("-p", "no:valkey", "-p", "no:cacheprovider", *options)


def twice(test: str) -> str:
    return "\n".join(test.replace("{n}", str(number)) for number in range(2))


def test_sync_tests(session: pytest.Pytester) -> None:
    session.makepyfile(IMPORTS + twice(SYNC))
    run(session, "-p", "no:asyncio", "-p", "no:anyio", "-o", "filterwarnings=").assert_outcomes(passed=2)


def test_async_tests_of_pytest_asyncio(session: pytest.Pytester) -> None:
    session.makepyfile(IMPORTS + twice(ASYNC) + FIXTURE)
    run(session, "-p", "no:anyio").assert_outcomes(passed=4)
    run(session, "-o", "asyncio_default_test_loop_scope=session").assert_outcomes(passed=4)


def test_async_tests_of_anyio(session: pytest.Pytester) -> None:
    session.makepyfile(IMPORTS + ANYIO + twice(ASYNC) + FIXTURE)
    run(session, "-p", "no:asyncio", "-o", "filterwarnings=").assert_outcomes(passed=4)


def test_classes_of_unittest(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import shop
        from jobmill.testing import JobsTestCase
        class Tests(JobsTestCase):
            jobs = shop.jobs
            jobs_store = "sqlite"
            async def test_one(self):
                await shop.send.enqueue(to="ada")
                assert len(await self.drain()) == 1
            def test_two(self):
                self.enqueued.none()
        class Forgotten(JobsTestCase):
            def test_three(self): ...
        """
    )
    result = run(session)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Forgotten needs the client of your application: jobs = shop.jobs*"])


def test_the_same_tests_on_several_stores(session: pytest.Pytester) -> None:
    session.makepyfile(
        IMPORTS
        + twice(ASYNC)
        + SYNC.replace("{n}", "sync")
        + "@pytest.mark.jobmill(store='sqlite')\ndef test_marked(jobs):\n    assert jobs.store.name == 'sqlite'\n"
        + "def test_other(): ...\n"
    )
    result = run(session, "-v", "--jobmill-stores=memory,sqlite")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["*::test_0?memory? PASSED*", "*::test_0?sqlite? PASSED*", "*::test_marked?sqlite? *"])
    run(session, "--jobmill-stores=oracle").assert_outcomes(passed=2, errors=3)


def test_a_failure_names_the_nearest_jobs(session: pytest.Pytester) -> None:
    session.makepyfile(
        IMPORTS + "async def test_it(enqueued):\n"
        "    await send.options(delay='2h').enqueue(to='bob')\n"
        "    enqueued.one(send, to='ada', delay='1h')\n"
    )
    result = run(session)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*expected 1 job like send(to='ada', delay='1h'), found none; the nearest of 1 job:",
            "*  send(to='bob'): waiting, queue default, due at 2030-01-01 02:00:00+00:00",
            "*to: 'bob' instead of 'ada'",
            "*delay: 2h instead of 1h (± 1s)",
        ]
    )


def test_forgotten_jobs_warn(session: pytest.Pytester) -> None:
    session.makepyfile(
        IMPORTS + "async def test_it(jobs):\n    await send.enqueue(to='nobody')\n    await jobs.tick()\n"
    )
    result = run(session, "-o", "filterwarnings=default")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*LeftoverJobWarning: the job send(to='nobody') failed, *", "*ConnectionError: 503"])
    run(session).assert_outcomes(passed=1, errors=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "set `jobmill = shop.jobs:jobs` in the settings of pytest (it is not set)"),
        ("shop", "(it is 'shop')"),
        ("shop:sent", "jobmill = shop:sent: expected a client there, found []"),
    ],
)
def test_a_wrong_setting_is_explained(session: pytest.Pytester, given: str, message: str) -> None:
    session.makepyfile(IMPORTS + "def test_it(jobs): ...\n")
    result = run(session, "-o", f"jobmill={given}")
    result.assert_outcomes(errors=1)
    assert message in result.stdout.str()


def test_a_project_may_give_its_client_by_a_fixture_and_own_fixtures_win(session: pytest.Pytester) -> None:
    session.makeconftest(
        """
        import pytest, shop
        @pytest.fixture
        def jobmill_client(): return shop.jobs
        @pytest.fixture
        def crash(): return "of this project"
        """
    )
    session.makepyfile(
        IMPORTS + "def test_it(jobs, crash):\n    assert (jobs, crash) == (shop.jobs, 'of this project')\n"
    )
    run(session, "-o", "jobmill=").assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_plugin_imports_nothing_until_a_test_uses_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    ours = sorted(name for name in sys.modules if name.split('.')[0] in ('jobmill', 'msgspec'))\n"
        "    assert 'jobmill.testing.plugin' in ours\n"
        "    assert [name for name in ours if name not in ("
        "'jobmill', 'jobmill._version', 'jobmill.errors', 'jobmill.testing', 'jobmill.testing.plugin')] == []\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    env = without_coverage(os.environ)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_tests_of_the_example_pass_on_memory_and_sqlite() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey"]
    for options in (["--jobmill-stores=memory,sqlite"], ["-n2"]):
        done = subprocess.run([*command, *options], cwd=EXAMPLE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    page = ROOT / "docs/testing.md"
    files = {block.file: block.code for block in blocks(page) if block.file is not None}
    assert len(files) > 5
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    (settings,) = [block.code for block in blocks(page) if block.language == "toml"]
    (tmp_path / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    failing = "import shop\n\nasync def test_it(enqueued):\n    await shop.sign_up('ada')\n"
    failing += "    enqueued.one(shop.send_mail, to='ada@example.com', delay='1d')\n"
    (tmp_path / "test_failing.py").write_text(failing)
    done = subprocess.run([*command, "test_failing.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    (shown,) = [block.code for block in blocks(page) if block.code.startswith("AssertionError")]
    for line in shown.splitlines():
        assert line in done.stdout
