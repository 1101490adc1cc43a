"""What a proxy must understand of PostgreSQL's protocol: which statement is executed, and where its answer ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# What a connection may open with, in the place of the protocol's version.
CANCEL = 80_877_102
ENCRYPTIONS = (80_877_103, 80_877_104)  # TLS and GSS: each answered by one byte


class Statement(NamedTuple):
    """A statement that a client executes: its text, its parameters as sent, and the answer that is its own."""

    text: bytes
    answer: int


class Conversation:
    """One connection, followed from its first byte; both directions in the order in which they are forwarded."""

    def __init__(self) -> None:
        self._client = bytearray()
        self._server = bytearray()
        self._has_started = False
        self._is_opaque = False  # encrypted, or nothing to follow
        self._bytes_due = 0  # answers that are one byte long
        self._texts: dict[bytes, bytes] = {}
        self._asked = 0  # answers asked for; each ends with a ReadyForQuery
        self._answered = 0
        self._swallowed: int | None = None

    def swallow(self, statement: Statement) -> None:
        """Let nothing of this statement's answer through."""
        self._swallowed = statement.answer

    def client_says(self, data: bytes) -> Iterator[Statement]:
        """The statements that are whole with these bytes."""
        self._client += data
        while not self._is_opaque:
            head = 1 if self._has_started else 0
            size = head + int.from_bytes(self._client[head : head + 4])
            if len(self._client) < head + 4 or len(self._client) < size:
                return
            kind, body = bytes(self._client[:head]), bytes(self._client[head + 4 : size])
            del self._client[:size]
            if not kind:
                self._open(int.from_bytes(body[:4]))
            elif (text := self._follow(kind, body)) is not None:
                yield Statement(text, self._asked + (kind == b"B"))  # a Bind is answered with the Sync after it

    def _open(self, code: int) -> None:
        if code in ENCRYPTIONS:
            self._bytes_due += 1
        elif code == CANCEL:
            self._is_opaque = True
        else:
            self._has_started = True
            self._asked += 1

    def _follow(self, kind: bytes, body: bytes) -> bytes | None:
        """Take note of a message; the text of the statement that it executes, if it does."""
        if kind in (b"Q", b"S", b"F"):  # Query, Sync, FunctionCall
            self._asked += 1
        if kind == b"Q":
            return body
        if kind == b"P":  # Parse: name, text
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text
        elif kind == b"B":  # Bind: portal, name of the statement, parameters
            _, name, parameters = body.split(b"\0", 2)
            return self._texts.get(name, b"") + b"\0" + parameters
        return None

    def server_says(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes may go to the client, and whether the answer to be swallowed is over."""
        passed = bytearray()
        old = len(self._server)  # of these the client has got what it may have
        self._server += data
        position = 0
        while not self._is_opaque and (size := self._next_size(position)):
            end = position + size
            kind = bytes(self._server[position : position + 1])
            if not self._is_swallowing() or kind == b"G":  # CopyInResponse: without it the client would not go on
                passed += self._server[max(old, position) : end]
            if kind == b"Z" and size > 1:  # ReadyForQuery
                if self._is_swallowing():
                    return bytes(passed), True
                self._answered += 1
            self._is_opaque = size == 1 and kind != b"N"
            position = end
        if not self._is_swallowing():
            passed += self._server[max(old, position) :]
        del self._server[: len(self._server) if self._is_opaque else position]
        return bytes(passed), False

    def _is_swallowing(self) -> bool:
        return self._swallowed is not None and self._answered >= self._swallowed - 1

    def _next_size(self, position: int) -> int:
        """Of the message there, when it is whole; else 0."""
        left = len(self._server) - position
        if left and self._bytes_due:
            self._bytes_due -= 1
            return 1
        if left < 5:
            return 0
        size = 1 + int.from_bytes(self._server[position + 1 : position + 5])
        return size if left >= size else 0
