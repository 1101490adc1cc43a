"""Ids of jobs and claims as MongoDB and Monque write them."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from bson import ObjectId

#: Before every other ObjectId.
NO_ID = ObjectId(bytes(12))


class ObjectIds:
    """Makes ObjectIds that strictly increase within this process, also within a second: jobs keep their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0
        self._number = 0
        self._process = os.urandom(5)
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget)

    def new(self) -> ObjectId:
        """A fresh id."""
        with self._lock:
            seconds = int(time.time())
            if seconds > self._seconds:
                self._seconds, self._number = seconds, 0
            elif self._number == 0xFFFFFF:
                self._seconds, self._number = self._seconds + 1, 0
            else:
                self._number += 1
            made = self._seconds.to_bytes(4, "big") + self._process + self._number.to_bytes(3, "big")
        return ObjectId(made)

    def _forget(self) -> None:
        # A thread that does not exist in the child may hold the lock; and a child must not make its parent's ids.
        self._lock = threading.Lock()
        self._process = os.urandom(5)


new_object_id = ObjectIds().new


def object_id(id: str) -> ObjectId | None:
    """An id as an ObjectId; None for an id that the caller chose."""
    return ObjectId(id) if len(id) == 24 and id == id.lower() and ObjectId.is_valid(id) else None


def claim_id(token: str) -> str:
    """A lease's token in the form of a UUID, as Monque writes claim ids."""
    try:
        return str(UUID(hex=token)) if len(token) == 32 else token
    except ValueError:
        return token
