"""The servers on which some measures run in the same way, each in a file of its own beside what it needs."""

from __future__ import annotations

from bench.ground import Ground
from bench.lab import Lab
from bench.mongo.ground import MONGO
from bench.postgres.ground import POSTGRES
from bench.redis.ground import REDIS
from bench.sqlite.ground import SQLITE

__all__ = ["GROUNDS", "Ground", "grounds", "servers"]

GROUNDS: tuple[Ground, ...] = (SQLITE, POSTGRES, REDIS, MONGO)


def grounds(lab: Lab) -> list[Ground]:
    """Those that were asked for."""
    return [ground for ground in GROUNDS if ground.store in lab.stores]


def servers(lab: Lab) -> list[Ground]:
    """Those that were asked for and that may be far away."""
    return [ground for ground in grounds(lab) if ground.cpu_seconds is not None]
