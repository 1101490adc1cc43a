"""A process that the fork server has forked: runs one attempt, or in a pool one after the other."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import faulthandler
import os
import sys
import threading
import traceback

from jobmill.worker import forking
from jobmill.worker.isolate import child
from jobmill.worker.isolate.process_state import ProcessState, adopt_orphans, has_children
from jobmill.worker.isolate.protocol import Channel, Idle, read_request
from jobmill.worker.recycle import resident_bytes


def run(connection_fd: int, crash_fd: int, life_fd: int, *, is_pooled: bool) -> None:
    """Run what the worker requests, and end this process."""
    code = 1
    try:
        _die_with_worker(life_fd)
        forking.new_random_numbers()
        if is_pooled:
            _run_many(connection_fd, crash_fd)
        else:
            _run_one(connection_fd, crash_fd)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    _end(code)


def _die_with_worker(life_fd: int) -> None:
    # The owner of the signal belongs to the open file, which all forks share: this process opens the pipe once more.
    # Such a file does not show that the pipe was closed before. The shared one does.
    own = os.open(f"/proc/self/fd/{life_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    child.die_with_worker(own, life_fd)
    os.close(life_fd)


def _run_one(connection_fd: int, crash_fd: int) -> None:
    faulthandler.enable(crash_fd, all_threads=False)
    with open(connection_fd, "rb", closefd=False) as requests:
        request = read_request(requests)
    if request is not None:
        surroundings = child.Surroundings()
        child.run_attempt(request, Channel(connection_fd).attempt(), surroundings)
        surroundings.close()


def _run_many(connection_fd: int, crash_fd: int) -> None:
    adopt_orphans()
    channel = Channel(connection_fd)
    state = ProcessState()
    surroundings = child.Surroundings()
    with open(connection_fd, "rb", closefd=False) as requests:
        while (request := read_request(requests)) is not None:
            faulthandler.enable(crash_fd, all_threads=False)
            # In a context of its own, so that variables which the attempt sets do not reach the next one.
            contextvars.copy_context().run(child.run_attempt, request, channel.attempt(), surroundings)
            has_left_overs = surroundings.has_left_overs() or has_children()
            state.restore()
            channel.send(Idle(resident_bytes(), has_left_overs))
            if has_left_overs:
                break
    surroundings.close()


def _end(code: int) -> None:
    """End like an interpreter, without its last step: it would visit all objects, and copy their memory for that."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)
