"""The reference store, in plain Python."""

from jobmill.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
