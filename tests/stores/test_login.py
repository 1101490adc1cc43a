"""A login that a server refuses: the same error and the same exit code on each store, and nothing waits for it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import jobmill
from jobmill import LoginRefused
from jobmill.cli import main
from jobmill.worker.worker import Worker

pytestmark = pytest.mark.stores("postgres", "redis", "mongo")


@pytest.fixture
def wrong_url(store_url: str) -> str:
    parts = urlsplit(store_url)
    return parts._replace(netloc=f"nobody:wrong@{parts.netloc.rpartition('@')[2]}").geturl()


async def test_a_refused_login_is_an_error_of_its_own(wrong_url: str) -> None:
    with pytest.raises(LoginRefused) as caught:
        async with jobmill.connect(wrong_url):
            pass
    assert "login refused" in str(caught.value)
    assert "wrong" not in str(caught.value)


async def test_a_worker_does_not_wait_for_a_login(wrong_url: str) -> None:
    jobs = jobmill.connect(wrong_url)
    with pytest.raises(LoginRefused):
        await Worker(jobs).run()
    await jobs.close()


def test_the_exit_code_is_the_same_everywhere(wrong_url: str) -> None:
    result = CliRunner(env={"JOBMILL_URL": wrong_url, "JOBMILL_DEBUG": ""}).invoke(main, ["queues"])
    assert result.exit_code == 3
    assert "login refused" in result.stderr
