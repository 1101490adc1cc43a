"""What a proxy must understand of Redis' protocol: which command is sent, and where its answer ends."""

from __future__ import annotations

from collections.abc import Iterator

from tests.kit.pgwire import Statement

LINE = b"+-:,#_("  # an answer of one line
SIZED = b"$=!"  # of so many bytes
LISTS = {b"*": 1, b"~": 1, b">": 1, b"%": 2}  # of so many answers, or pairs
PUSH = b">"  # what nobody asked for


class Conversation:
    """One connection, followed from its first byte; both directions in the order in which they are forwarded.

    A statement is a command: its text is all of its words, with a space between them.
    """

    def __init__(self) -> None:
        self._client = bytearray()
        self._server = bytearray()
        self._asked = 0
        self._answered = 0
        self._swallowed: int | None = None

    def swallow(self, statement: Statement) -> None:
        """Let nothing of this command's answer through."""
        self._swallowed = statement.answer

    def client_says(self, data: bytes) -> Iterator[Statement]:
        """The commands that are whole with these bytes."""
        self._client += data
        while (end := _end(self._client, 0)) is not None:
            words = _words(self._client[:end])
            del self._client[:end]
            self._asked += 1
            yield Statement(b" ".join(words), self._asked)

    def server_says(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes may go to the client, and whether the answer to be swallowed is over."""
        passed = bytearray()
        old = len(self._server)  # of these the client has got what it may have
        self._server += data
        position = 0
        while (end := _end(self._server, position)) is not None:
            if not self._is_swallowing():
                passed += self._server[max(old, position) : end]
            if self._server[position : position + 1] != PUSH:
                if self._is_swallowing():
                    return bytes(passed), True
                self._answered += 1
            position = end
        if not self._is_swallowing():
            passed += self._server[max(old, position) :]
        del self._server[:position]
        return bytes(passed), False

    def _is_swallowing(self) -> bool:
        return self._swallowed is not None and self._answered >= self._swallowed - 1


def _end(data: bytearray, position: int) -> int | None:
    """Where the answer, or command, ends that begins there; None when it is not whole."""
    line = data.find(b"\r\n", position)
    if line < 0:
        return None
    kind, end = bytes(data[position : position + 1]), line + 2
    if kind in LINE:
        return end
    size = int(data[position + 1 : line])
    if kind in SIZED:
        end += size + 2 if size >= 0 else 0  # -1 is None
        return end if end <= len(data) else None
    for _ in range(size * LISTS[kind]):
        after = _end(data, end)
        if after is None:
            return None
        end = after
    return end


def _words(command: bytearray) -> Iterator[bytes]:
    """Of a command that is whole: a list of texts of so many bytes."""
    position = command.index(b"\r\n") + 2
    while position < len(command):
        line = command.index(b"\r\n", position)
        size = int(command[position + 1 : line])
        yield bytes(command[line + 2 : line + 2 + size])
        position = line + 2 + size + 2
