"""What the report says about us."""

from bench.peers.about import About

GUARANTEE = "kept: another worker claims them when their lease has ended"

ON_SQLITE = About(
    name="jobmill",
    package="jobmill",
    settings="synchronous=FULL (the default), one worker process, async no-op handlers, other defaults: every job "
    "is kept for 7 days after it succeeded",
    guarantee=GUARANTEE,
)

ON_POSTGRES = About(
    name="jobmill on PostgreSQL",
    package="jobmill",
    settings="one worker process, async no-op handlers, uvloop (as `jobmill worker`) unless it says asyncio, other "
    "defaults: every job is kept for 7 days after it succeeded, in a history table",
    guarantee=GUARANTEE,
)

ON_REDIS = About(
    name="jobmill on Redis",
    package="jobmill",
    settings="one worker process, async no-op handlers, uvloop (as `jobmill worker`) unless it says asyncio, other "
    "defaults: 3 attempts, every job is kept for 7 days after it succeeded, BullMQ's events are written",
    guarantee=GUARANTEE,
)

ON_MONGO = About(
    name="jobmill on MongoDB",
    package="jobmill",
    settings="one worker process, async no-op handlers, uvloop (as `jobmill worker`), "
    "indexes=lean or indexes=monque, other defaults: every job is kept for 7 days after it succeeded",
    guarantee=GUARANTEE,
)
