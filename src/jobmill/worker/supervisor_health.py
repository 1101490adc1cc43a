"""The health port of several worker processes: a supervisor asks each of them, and answers for all.

Metrics get a label with the number of the process, and are not added up. A process that is replaced counts from 0
again; in a sum, Prometheus would take that for a reset of all processes, and count their work once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from jobmill.metrics.text import family
from jobmill.runtime.watchdog import STUCK_AFTER_S
from jobmill.worker.health import View, ask

#: How long a process may take to answer.
ANSWER_S = 2.0

SILENT = "does not answer"


class AskedProcess(Protocol):
    """One of the processes, as the supervisor knows it."""

    number: int
    #: The path of the socket that it answers on.
    socket: str
    #: Whether it has answered since its start.
    answered: bool

    @property
    def age(self) -> float:
        """Seconds since its start."""

    @property
    def is_running(self) -> bool:
        """Whether the process exists now; if not, it will be started again."""


def supervisor_views(
    processes: Callable[[], Sequence[AskedProcess]], is_stopping: Callable[[], bool]
) -> dict[str, View]:
    """The views of a supervisor. `processes` returns the processes that run or will be restarted."""

    async def livez() -> dict[str, Any]:
        """A process that starts or waits for its restart is not stuck: another restart would not help."""
        answers = await _ask_all(processes(), "/livez")
        return _wrong(
            (one, answer)
            for one, answer in answers
            if answer is not None or (one.is_running and not is_stopping() and _should_answer(one))
        )

    async def readyz() -> dict[str, Any]:
        if is_stopping():
            return {"stopping": True}
        return _wrong(await _ask_all(processes(), "/readyz"))

    async def metrics() -> str:
        answers = await _ask_all(processes(), "/metrics")
        up = [({"process": str(one.number)}, int(answer is not None)) for one, answer in answers]
        texts = [(one.number, answer[1].decode()) for one, answer in answers if answer is not None]
        return family("jobmill_process_up", "gauge", "Whether a process of this worker answers.", up) + _merged(texts)

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics}


def _should_answer(process: AskedProcess) -> bool:
    return process.answered or process.age > STUCK_AFTER_S


Answers = list[tuple[AskedProcess, tuple[int, bytes] | None]]


async def _ask_all(processes: Sequence[AskedProcess], path: str) -> Answers:
    return list(zip(processes, await asyncio.gather(*(_ask(one, path) for one in processes)), strict=True))


async def _ask(process: AskedProcess, path: str) -> tuple[int, bytes] | None:
    """The response of a process; None if it does not respond."""
    try:
        answer = await ask(process.socket, path, timeout=ANSWER_S)
    except OSError:
        return None
    process.answered = True
    return answer


def _wrong(answers: Iterable[tuple[AskedProcess, tuple[int, bytes] | None]]) -> dict[str, Any]:
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
