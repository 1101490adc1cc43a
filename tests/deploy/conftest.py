from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from tests.deploy.site import APP, Site
from tests.kit.workers import WorkerProcesses


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    workers = WorkerProcesses(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "app.py").write_text(APP)
    async with jobmill.connect(workers.url) as jobs:
        yield Site(tmp_path, jobs, workers)
    workers.end()
