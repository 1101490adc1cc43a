"""What a proxy must understand of MongoDB's protocol: which command is sent, and which message answers it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.kit.pgwire import Statement

#: Length of the message, its number, the number of the message that it answers, its kind. All little-endian.
HEADER = struct.Struct("<iiii")
OP_QUERY, OP_MSG = 2_004, 2_013

#: Before the name of a command: the flags, the kind of the section, the length of the document, the type of the value.
BEFORE_NAME = 4 + 1 + 4 + 1

#: A driver sends these by itself, to watch the server.
MONITORING = (b"hello", b"isMaster", b"ismaster", b"ping")


def begins(data: bytes) -> bool:
    """Whether a client that sends this first speaks MongoDB's protocol."""
    return len(data) >= HEADER.size and HEADER.unpack_from(data)[3] in (OP_QUERY, OP_MSG)


class Conversation:
    """One connection, followed from its first byte; both directions in the order in which they are forwarded.

    A statement is a command: its text is the name of the command and the whole message. Monitoring is none.
    """

    def __init__(self) -> None:
        self._client = bytearray()
        self._server = bytearray()
        self._swallowed: int | None = None

    def swallow(self, statement: Statement) -> None:
        """Let nothing of this command's answer through."""
        self._swallowed = statement.answer

    def client_says(self, data: bytes) -> Iterator[Statement]:
        """The commands that are whole with these bytes."""
        self._client += data
        while message := _first(self._client):
            _, number, _, kind = HEADER.unpack_from(message)
            name = message[HEADER.size + BEFORE_NAME :].partition(b"\0")[0]
            if kind == OP_MSG and name not in MONITORING:
                yield Statement(name + b" " + message, number)

    def server_says(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes may go to the client, and whether the answer to be swallowed is over.

        A client has one command in flight on a connection. So all that comes now is the answer to be swallowed.
        """
        self._server += data
        is_over = False
        while message := _first(self._server):
            is_over = is_over or HEADER.unpack_from(message)[2] == self._swallowed
        return (data if self._swallowed is None else b""), is_over


def _first(buffer: bytearray) -> bytes | None:
    """Take the first message out of a buffer, if it is whole."""
    if len(buffer) < HEADER.size:
        return None
    size = HEADER.unpack_from(buffer)[0]
    if len(buffer) < size:
        return None
    message = bytes(buffer[:size])
    del buffer[:size]
    return message
