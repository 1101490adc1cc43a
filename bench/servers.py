"""The servers under the measures: each started when it is first asked for, all closed with the block."""

from __future__ import annotations

import os
import tempfile
from functools import cached_property
from pathlib import Path

from bench.mongo.server import Server as Mongo
from bench.postgres.server import Server as Postgres
from bench.redis.server import Server as Redis


class Servers:
    """Their data lie in the place, if one is named."""

    def __init__(self, place: Path | None) -> None:
        self._started: list[Postgres | Redis | Mongo] = []
        if place is not None:
            os.environ["TMPDIR"] = str(place.resolve())
            tempfile.tempdir = None  # so that it is looked up again

    @cached_property
    def postgres(self) -> Postgres:
        """The PostgreSQL, which runs."""
        self._started.append(server := Postgres())
        return server

    @cached_property
    def redis(self) -> Redis:
        """The Redis, which runs."""
        self._started.append(server := Redis())
        return server

    @cached_property
    def mongo(self) -> Mongo:
        """The MongoDB, which runs."""
        self._started.append(server := Mongo())
        return server

    def describe(self) -> dict[str, str]:
        """What there is to say about those that were asked for."""
        return {what: told for server in self._started for what, told in server.describe().items()}

    def __enter__(self) -> Servers:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close those that were started."""
        for server in self._started:
            server.close()
