"""A function in a fresh process: `with start(drain, url=..., jobs=...) as child: child.result()`.

Arguments and the answer cross as JSON, the answer back into the type that the function is annotated with. A child that
hangs tells where and ends by itself, even when its parent is gone.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parent.parent

#: Longer than any run; most of it is for enqueueing a million jobs on a busy machine.
LIMIT_S = 300.0
#: What a child says on its way, for a parent who waits for it.
READY, BEGUN, SETTLED = "ready", "begun", "settled"


class Broken(Exception):
    """A child did not answer; the message has the end of its output."""


class Child(Generic[R]):
    """A command in a process of its own, whose last line is its answer; leaving the block ends it."""

    def __init__(
        self, name: str, command: Sequence[str], type: type[R], *, folder: Path = ROOT, **environment: str
    ) -> None:
        self._name = name
        self._type = type
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe could fill up; closed with the block
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def wait_for(self, word: str) -> None:
        """Until it calls `say` or `halt` with this word."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != word.encode() + b"\n":
            raise self._broken(line)

    def go_on(self) -> None:
        """Let a child go on that has halted."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def result(self) -> R:
        """What the function returned. Nothing makes it halt any more."""
        try:
            output, _ = self._process.communicate(timeout=LIMIT_S + 10)
        except subprocess.TimeoutExpired:
            raise self._broken(b"") from None
        lines = output.splitlines()
        if self._process.returncode != 0 or not lines:
            raise self._broken(output)
        return msgspec.json.decode(lines[-1], type=self._type)

    def kill(self) -> None:
        """With kill -9, as a machine without memory does it; it is gone when this returns."""
        self._process.kill()
        self._process.wait()

    def _broken(self, output: bytes) -> Broken:
        self._errors.seek(0)
        text = (output + self._errors.read()).decode(errors="replace").strip()
        return Broken(f"{self._name} ended with {self._process.poll()}: {text[-2_000:]}")

    def __enter__(self) -> Child[R]:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()


def start(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Child[R]:
    """Start a function in a fresh process; arguments by keyword."""
    assert not args
    name = f"{function.__module__}:{function.__qualname__}"
    return begin(name, typing.get_type_hints(function)["return"], **kwargs)


def begin(name: str, answer: type[R], **arguments: object) -> Child[R]:
    """Start the function of this name, `module:function`."""
    return Child(name, [sys.executable, "-m", "bench.child", name, msgspec.json.encode(arguments).decode()], answer)


def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a fresh process to its end."""
    with start(function, *args, **kwargs) as child:
        return child.result()


def say(word: str) -> None:
    """Called in the child: a moment that its parent waits for."""
    sys.stdout.buffer.write(word.encode() + b"\n")
    sys.stdout.flush()


def halt(word: str) -> None:
    """Called in the child: a moment at which its parent, if it waits for it, looks at something else first."""
    say(word)
    sys.stdin.buffer.readline()


def _main(name: str, arguments: str) -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    module, _, function = name.partition(":")
    answer = getattr(importlib.import_module(module), function)(**msgspec.json.decode(arguments))
    # Not stdout itself: where PYTHONUNBUFFERED is set, it may write a long answer in part only.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
