"""What the worker and an isolated process send to each other.

Both sides send frames: a kind (one byte), a length (four bytes) and a body. The worker sends a request. The process
sends the reports of the handler and then one outcome; a process of a pool then says whether it can take another
request. A process that records a step waits for a receipt: one byte, which says whether the lease still holds. Payload
and result are sent as the JSON that they already are.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.flows import Dependency, Recorded, Step
from jobmill.core.job import Job, LogEntry, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded, Suspended
from jobmill.worker.isolate.find import Where

# More than the largest result with its escapes: a larger length means that the stream is corrupt.
_MAX_BODY = 256 * 1024 * 1024
_HEADER = 5


class Request(Struct, frozen=True, kw_only=True):
    """What the process needs to run one job."""

    where: Where
    job: Job
    trace_id: str | None = None
    #: For handlers that take a context: what earlier runs have recorded, what the job has waited for, the store's time.
    recorded: Recorded = Recorded()
    edges: list[Dependency] = []
    #: By the numbers of the edges. (A struct cannot have JSON or nothing in a field of its own JSON.)
    results: list[bytes | None] = []
    now_ms: int = 0
    #: How a command logs; empty if the worker's process has its own logging configuration.
    log_options: dict[str, Any] = {}

    def with_past(self, recorded: Recorded, dependencies: Sequence[Dependency], now_ms: int) -> Request:
        """The request of a job that may have run before."""
        edges = [structs.replace(one, result_json=None) for one in dependencies]
        results = [None if one.result_json is None else bytes(one.result_json) for one in dependencies]
        return structs.replace(self, recorded=recorded, edges=edges, results=results, now_ms=now_ms)

    @property
    def dependencies(self) -> list[Dependency]:
        """What the job has waited for."""
        both = zip(self.edges, self.results, strict=True)
        return [edge if raw is None else structs.replace(edge, result_json=Raw(raw)) for edge, raw in both]


class Idle(Struct, frozen=True):
    """A process of a pool has finished an attempt."""

    #: The resident memory of the process.
    resident_bytes: int
    #: The attempt left threads or child processes running, so the process cannot be used again.
    has_left_overs: bool


Answer: TypeAlias = Outcome | Progress | LogEntry | Idle | Step

#: Takes a step of the attempt; the answer is whether its lease still holds.
RecordFunction: TypeAlias = Callable[[Step], Awaitable[bool]]
RECORDED, LOST = b"1", b"0"

#: What the process sends, by the kind of its frame.
_ANSWERS: dict[bytes, Any] = {
    b"l": LogEntry,
    b"p": Progress,
    b"s": Succeeded,
    b"e": Errored,
    b"z": Snoozed,
    b"w": Suspended,
    b"t": Step,
    b"i": Idle,
}
_KINDS: dict[type, bytes] = {type: kind for kind, type in _ANSWERS.items()}


def request_frame(request: Request) -> bytes:
    """A request as bytes."""
    return _frame(b"r", msgspec.json.encode(request))


def read_request(requests: BinaryIO) -> Request | None:
    """The next request; None at the end of the stream."""
    frame = _read_frame(requests)
    return None if frame is None else msgspec.json.decode(frame[1], type=Request)


def answer_frame(answer: Answer) -> bytes:
    """An answer as bytes."""
    return _frame(_KINDS[type(answer)], msgspec.msgpack.encode(answer))


def read_answer(answers: BinaryIO) -> Answer | None:
    """The next answer of a process; None at its end. ValueError or MsgspecError if the frame is invalid."""
    frame = _read_frame(answers)
    return None if frame is None else _answer(*frame)


def take_answers(buffer: bytearray) -> Iterator[Answer]:
    """Remove all complete answers from the buffer. ValueError or MsgspecError if a frame is invalid."""
    while len(buffer) >= _HEADER:
        end = _HEADER + _body_length(buffer)
        if len(buffer) < end:
            return
        kind, body = bytes(buffer[:1]), bytes(buffer[_HEADER:end])
        del buffer[:end]
        yield _answer(kind, body)


def _answer(kind: bytes, body: bytes) -> Answer:
    if kind not in _ANSWERS:
        raise ValueError(f"a frame of the unknown kind {kind!r}")
    answer: Answer = msgspec.msgpack.decode(body, type=_ANSWERS[kind])
    return answer


def _frame(kind: bytes, body: bytes) -> bytes:
    return b"".join((kind, len(body).to_bytes(4, "big"), body))


def _read_frame(file: BinaryIO) -> tuple[bytes, bytes] | None:
    header = file.read(_HEADER)
    if len(header) < _HEADER:
        return None
    length = _body_length(header)
    body = file.read(length)
    return (header[:1], body) if len(body) == length else None


def _body_length(header: bytes | bytearray) -> int:
    length = int.from_bytes(header[1:_HEADER], "big")
    if length > _MAX_BODY:
        raise ValueError(f"a frame of {length} bytes")
    return length


def write_all(fd: int, data: bytes) -> None:
    """Write all data, even if the pipe takes only a part of it at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Channel:
    """The end of the connection at which an isolated process writes, from any thread."""

    def __init__(self, fd: int, receipts_fd: int | None = None) -> None:
        self._fd = fd
        self._receipts_fd = fd if receipts_fd is None else receipts_fd
        self._lock = threading.Lock()
        self._recording = threading.Lock()
        self._is_forked = False
        # A forked process would keep the connection open after this one has died, and could write into its frames.
        os.register_at_fork(after_in_child=self._forked)

    def attempt(self) -> Reports:
        """What one attempt may send."""
        return Reports(self)

    def send(self, answer: Answer, reports: Reports | None = None) -> None:
        """Send one answer; nothing if it belongs to reports that are closed."""
        frame = answer_frame(answer)
        with self._lock:
            if self._is_forked or (reports is not None and not reports.is_open):
                return
            if reports is not None:
                reports.is_open = isinstance(answer, Progress | LogEntry | Step)
            # A worker that has closed its end is about to stop this process.
            with contextlib.suppress(BrokenPipeError):
                write_all(self._fd, frame)

    def record(self, step: Step, reports: Reports) -> bool:
        """Send a step, and wait for its receipt: whether the lease of the job still holds."""
        with self._recording:
            self.send(step, reports)
            return os.read(self._receipts_fd, 1) == RECORDED

    def _forked(self) -> None:
        # Another thread may have held the lock at the fork; in this process it would never be released.
        self._lock = threading.Lock()
        if not self._is_forked:
            self._is_forked = True
            os.close(self._fd)


class Reports:
    """Sends the reports of one attempt and then its outcome. What comes after the outcome is dropped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: Whether the outcome has not been sent. The channel guards it.
        self.is_open = True

    def send(self, answer: Outcome | Progress | LogEntry) -> None:
        """Send a report, or the outcome."""
        self._channel.send(answer, self)

    def record(self, step: Step) -> bool:
        """Let the worker store a step; False if the lease is lost, or the outcome has been sent."""
        return self.is_open and self._channel.record(step, self)


# ---------------------------------------------------------------------------------------------------- the fork server

# One packet of the worker's connection to the fork server: kind, key of the process, number, bytes.
_CONTROL = struct.Struct("<cQiQ")
CONTROL_BYTES = 4096

#: To the server, with two files (connection and crash file): fork a process for one attempt, or for many.
FORK_ONCE, FORK_POOLED = b"f", b"p"
#: To the server: send this signal.
SIGNAL = b"s"
#: From the server: the modules are imported. The rest of the packet names the module that started threads, if any.
READY = b"r"
#: From the server: a process could not be forked (errno); a process has ended (exit code, memory used).
REFUSED, ENDED = b"x", b"e"


class Control(Struct, frozen=True):
    """One packet between the worker and the fork server."""

    kind: bytes
    key: int = 0
    number: int = 0
    max_bytes: int = 0
    text: str = ""

    def encode(self) -> bytes:
        """As bytes."""
        return _CONTROL.pack(self.kind, self.key, self.number, self.max_bytes) + self.text.encode()[:1000]

    @classmethod
    def decode(cls, packet: bytes) -> Control:
        """From bytes."""
        kind, key, number, max_bytes = _CONTROL.unpack(packet[: _CONTROL.size])
        return cls(kind, key, number, max_bytes, packet[_CONTROL.size :].decode(errors="replace"))
