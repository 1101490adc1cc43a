"""What the Redis store writes for Node is the core's default policy."""

from __future__ import annotations

import msgspec
import pytest

from jobmill.core.job import NO_OPTIONS
from jobmill.core.lifecycle import DEFAULT_POLICY, policy
from jobmill.stores.redis.bullmq_options import DEFAULT, opts_json, read_node

pytestmark = pytest.mark.stores("redis")


def test_node_retries_a_job_without_options_as_jobmill_does() -> None:
    written = read_node(opts_json(NO_OPTIONS, 0).encode()).options
    rules = policy(written, DEFAULT_POLICY)
    assert (rules.max_attempts, rules.backoff.type, rules.backoff.delay_ms) == (
        DEFAULT_POLICY.max_attempts,
        DEFAULT_POLICY.backoff.type,
        DEFAULT_POLICY.backoff.delay_ms,
    )
    assert msgspec.json.decode(opts_json(NO_OPTIONS, 0)) == DEFAULT
