"""A transport that keeps what the SDK sends; in another process it writes lines to a file."""

from __future__ import annotations

import json
import os
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope

#: The SDK parses it; the transport connects to nothing.
DSN = "http://key@127.0.0.1:1/1"


class Recorded(sentry_sdk.Transport):
    """All items in the order in which they were sent, each with its type."""

    def __init__(self, file: str | None = None) -> None:
        super().__init__()
        self._file = file
        self.items: list[tuple[str, dict[str, Any]]] = []
        self.flushed: list[float] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            line = (str(item.type), json.loads(item.get_bytes()))
            self.items.append(line)
            if self._file is not None:
                with open(self._file, "a") as file:
                    file.write(json.dumps([os.getpid(), *line]) + "\n")

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.flushed.append(timeout)

    def of_type(self, type: str) -> list[dict[str, Any]]:
        return [item for kind, item in self.items if kind == type]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self.of_type("event")
