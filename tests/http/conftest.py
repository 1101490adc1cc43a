"""A client on real stores, and an endpoint over it; commands come from where commands are tested."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import jobmill
from jobmill import Client
from tests.cli.conftest import _ctrl_c, shell

__all__ = ["_ctrl_c", "shell"]


@pytest.fixture
async def jobs(store_url: str) -> AsyncIterator[Client]:
    """Not yet opened: the endpoint does that."""
    client = jobmill.connect(store_url)
    yield client
    await client.close()
