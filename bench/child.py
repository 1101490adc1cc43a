"""A function in a fresh process: `with Child(drain, url=..., jobs=...) as child: child.result()`.

Arguments and the answer cross as JSON, the answer back into the type that the function is annotated with. A child that
hangs tells where and ends by itself, even when its parent is gone.
"""

from __future__ import annotations

import faulthandler
import importlib
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parent.parent

#: No run takes so long; most of it is for loading a million jobs on a busy machine.
LIMIT_S = 300.0
READY = b"ready\n"


class Broken(Exception):
    """A child did not answer; the message holds the end of what it said."""


class Child(Generic[R]):
    """One function call in a process of its own; leaving the block ends it."""

    def __init__(self, function: Callable[..., R], arguments: dict[str, object]) -> None:
        self._name = f"{function.__module__}:{function.__qualname__}"
        self._type: type[R] = typing.get_type_hints(function)["return"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe could fill up; closed with the block
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", self._name, msgspec.json.encode(arguments).decode()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )

    def wait_ready(self) -> None:
        """Until the function calls `ready`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != READY:
            raise self._broken(line)

    def result(self) -> R:
        """What the function returned."""
        try:
            output, _ = self._process.communicate(timeout=LIMIT_S + 10)
        except subprocess.TimeoutExpired:
            raise self._broken(b"") from None
        lines = output.splitlines()
        if self._process.returncode != 0 or not lines:
            raise self._broken(output)
        return msgspec.json.decode(lines[-1], type=self._type)

    def _broken(self, output: bytes) -> Broken:
        self._errors.seek(0)
        said = (output + self._errors.read()).decode(errors="replace").strip()
        return Broken(f"{self._name} ended with {self._process.poll()}: {said[-2_000:]}")

    def __enter__(self) -> Child[R]:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def start(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Child[R]:
    """Start a function in a fresh process; arguments by keyword."""
    assert not args
    return Child(function, dict(kwargs))


def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a fresh process to its end."""
    with start(function, *args, **kwargs) as child:
        return child.result()


def ready() -> None:
    """Called in the child: from now on it does what it is there for."""
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()


def _main(name: str, arguments: str) -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    module, _, function = name.partition(":")
    answer = getattr(importlib.import_module(module), function)(**msgspec.json.decode(arguments))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
