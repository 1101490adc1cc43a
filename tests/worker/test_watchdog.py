"""Loops survive errors and log them."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from jobmill import StoreUnavailable
from jobmill.runtime.watchdog import Watchdog
from tests.helpers import until


async def test_an_unavailable_store_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = []

    async def turn() -> float:
        raise StoreUnavailable("gone for lunch")

    looping = asyncio.create_task(Watchdog().run("janitor", turn, errors.append, Random(1)))
    await until(lambda: len(errors) >= 2)
    looping.cancel()
    assert "the janitor loop cannot reach the store (gone for lunch); trying again in 0.1 s" in caplog.messages
    assert all(record.levelno == logging.WARNING and not record.exc_info for record in caplog.records)


async def test_other_errors_of_a_loop_are_logged_with_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = []

    async def turn() -> float:
        raise KeyError("a bug")

    looping = asyncio.create_task(Watchdog().run("janitor", turn, errors.append, Random(1)))
    await until(lambda: errors)
    looping.cancel()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info is not None
