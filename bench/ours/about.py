"""What the report says about us."""

from bench.peers.about import About

ABOUT = About(
    name="jobmill",
    package="jobmill",
    settings="synchronous=FULL (the default), one worker process, async no-op handlers, other defaults: every job "
    "is kept for 7 days after it succeeded",
    guarantee="kept: another worker claims them when their lease has ended",
)
