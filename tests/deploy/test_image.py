"""deploy/Dockerfile: its steps run, and what they build works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import jobmill
from tests.deploy.commands import PORT, Place
from tests.deploy.dockerfile import Image
from tests.deploy.files import DEPLOY

#: What installs and builds stays in the first stage.
TOOLS = ("pip", "setuptools", "hatchling", "editables")


class InImage(Place):
    """Commands of the image: with its packages, its environment and its folder."""

    def __init__(self, image: Image, folder: Path) -> None:
        assert image.environment["JOBMILL_URL"] == "sqlite:////data/jobs.db"
        super().__init__(folder, f"sqlite:///{image.root}/data/jobs.db")
        self.folder = image.folder
        (name,) = image.command("ENTRYPOINT")
        self.program = [str(image.root / "opt/jobmill/bin" / name)]
        self._image = image

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        port = self.local(self._image.environment["JOBMILL_HEALTH"])
        return {**self._image.environment, "JOBMILL_URL": self.url, "JOBMILL_HEALTH": port}


@pytest.mark.extended  # it downloads packages
@pytest.mark.slow
@pytest.mark.stores("sqlite")
async def test_the_image(tmp_path: Path) -> None:
    image = Image(DEPLOY / "Dockerfile", tmp_path)
    assert len(set(image.bases)) == 1, "what is built for one Python is used with it"
    packages = {path.name.partition("-")[0] for path in image.root.glob("opt/jobmill/lib/*/site-packages/*.dist-info")}
    assert packages >= {"jobmill", "asyncpg", "redis", "pymongo", "uvloop"}
    assert packages.isdisjoint(TOOLS)
    assert image.settings["EXPOSE"] == image.environment["JOBMILL_HEALTH"] == PORT
    assert [path.name for path in image.folder.iterdir()] == ["quickstart.py"]

    place = InImage(image, tmp_path)
    assert place.run(["--version"], {}).split()[-1] == jobmill.__version__
    name, *check = image.command("HEALTHCHECK")
    assert [name] == image.command("ENTRYPOINT")
    with pytest.raises(AssertionError, match="no answer"):
        place.run(check, {})
    with place.running(image.command("CMD"), {}):
        await place.answers("/readyz")
        place.run(check, {})
        async with jobmill.connect(place.url) as jobs:
            enqueued = await jobs.enqueue("greet", {"name": "Ada"})
            assert await enqueued.result(timeout=40) == "greeted Ada"
