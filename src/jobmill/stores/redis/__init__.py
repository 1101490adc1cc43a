"""The Redis store: BullMQ's data, shared with Node."""

from jobmill.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
