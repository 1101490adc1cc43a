"""Runs in the supervisor's tests instead of a worker: `python supervised.py KIND`. It prints one line per event."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def say(what: str) -> None:
    """Print with one write per line, so that the lines of several processes do not mix."""
    os.write(1, f"{what} {os.getpid()}\n".encode())


def on_signal(signum: int, frame: FrameType | None) -> None:
    say(signal.Signals(signum).name)
    if signum == signal.SIGTERM:
        sys.exit(0)


def serve() -> None:
    """Print each signal; end by SIGTERM."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    say("up")
    while True:
        signal.pause()


def main(kind: str, *args: str) -> int:
    if kind == "serve":
        serve()
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("up")
        while True:
            signal.pause()
    if kind == "reads":
        say("nothing" if os.path.samestat(os.fstat(0), os.stat(os.devnull)) else "something")
    if kind == "misread":
        # The first process ends with a code; the others would run.
        try:
            os.close(os.open(args[0], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            serve()
        return int(args[1])
    if kind == "unlucky":
        # Its second run cannot use the store; the third can.
        starts = len(os.listdir(args[0]))
        os.close(os.open(f"{args[0]}/{starts}", os.O_CREAT))
        if starts == 1:
            return 3
        serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
