"""The health port of several worker processes: a supervisor asks each of them, and answers for all.

Metrics get a label with the number of the process, and are not added up. A process that is replaced counts from 0
again; in a sum, Prometheus would take that for a reset of all processes, and count their work once more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from jobmill.metrics.text import family
from jobmill.runtime.watchdog import STUCK_AFTER_S
from jobmill.worker.health import View, ask

#: How long a process may take to answer.
ANSWER_S = 2.0

SILENT = "does not answer"


class SeenProcess(Struct, frozen=True, array_like=True):
    """One of the processes, as the supervisor sees it."""

    number: int
    #: The path of the socket that it answers on.
    socket: str
    #: How often it was started.
    starts: int
    #: When it was started last, by the monotonic clock.
    started: float
    #: Whether the process exists now; if not, it will be started again.
    is_running: bool


class Seen(Struct, frozen=True, array_like=True):
    """What the supervisor sees: the processes that run or will be restarted, and whether all of them stop."""

    processes: list[SeenProcess]
    is_stopping: bool


class Board:
    """What the supervisor has seen last, and which processes have answered since their start."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self._answered: dict[int, int] = {}

    def update(self, seen: Seen) -> None:
        """Replace what was seen before."""
        self.seen = seen

    def answered(self, process: SeenProcess) -> None:
        """Note that a process has answered."""
        self._answered[process.number] = process.starts

    def should_answer(self, process: SeenProcess) -> bool:
        """Whether it has answered before, or has had the time for it."""
        has_answered = self._answered.get(process.number) == process.starts
        return has_answered or time.monotonic() - process.started > STUCK_AFTER_S


def supervisor_views(board: Board) -> dict[str, View]:
    """The views of a supervisor."""

    async def livez() -> dict[str, Any]:
        """A process that starts or waits for its restart is not stuck: another restart would not help."""
        answers = await _ask_all(board, "/livez")
        return _wrong(
            (one, answer)
            for one, answer in answers
            if answer is not None or (one.is_running and not board.seen.is_stopping and board.should_answer(one))
        )

    async def readyz() -> dict[str, Any]:
        if board.seen.is_stopping:
            return {"stopping": True}
        return _wrong(await _ask_all(board, "/readyz"))

    async def metrics() -> str:
        answers = await _ask_all(board, "/metrics")
        up = [({"process": str(one.number)}, int(answer is not None)) for one, answer in answers]
        texts = [(one.number, answer[1].decode()) for one, answer in answers if answer is not None]
        return family("jobmill_process_up", "gauge", "Whether a process of this worker answers.", up) + _merged(texts)

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics}


Answers = list[tuple[SeenProcess, tuple[int, bytes] | None]]


async def _ask_all(board: Board, path: str) -> Answers:
    processes = board.seen.processes
    return list(zip(processes, await asyncio.gather(*(_ask(board, one, path) for one in processes)), strict=True))


async def _ask(board: Board, process: SeenProcess, path: str) -> tuple[int, bytes] | None:
    """The response of a process; None if it does not respond."""
    try:
        answer = await ask(process.socket, path, timeout=ANSWER_S)
    except OSError:
        return None
    board.answered(process)
    return answer


def _wrong(answers: Iterable[tuple[SeenProcess, tuple[int, bytes] | None]]) -> dict[str, Any]:
    """The problems of each process that has one; empty if all processes are well."""
    wrong: dict[str, Any] = {}
    for process, answer in answers:
        if answer is None:
            wrong[str(process.number)] = SILENT if process.is_running else "restarts"
        elif answer[0] != 200:
            wrong[str(process.number)] = {
                field: value for field, value in msgspec.json.decode(answer[1]).items() if field != "ok"
            }
    return {"processes": wrong} if wrong else {}


def _merged(texts: Iterable[tuple[int, str]]) -> str:
    """The metrics of all processes: each family once, each sample with the number of its process."""
    families: dict[str, list[str]] = {}
    for number, text in texts:
        for block in text.split("# HELP ")[1:]:
            help, type, *samples = block.splitlines()
            lines = families.setdefault(help.partition(" ")[0], [f"# HELP {help}", type])
            lines += [_labelled(sample, number) for sample in samples]
    return "".join("\n".join(lines) + "\n" for lines in families.values())


def _labelled(sample: str, number: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{process="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{process="{number}"}} {value}'
