"""A Python without what Windows does not have: modules, and functions and constants of `os`, `signal` and others.

`python windows_like.py imports` imports every module of Jobmill, and `python windows_like.py works` runs jobs. Both do
so twice. After the first time all other packages are imported, which have versions of their own for Windows. Then they
take away what is missing there, and `sys.platform` says "win32". `os.name` stays "posix", because pathlib would make
paths of another system. Neither is a test on Windows: files, locks and processes are those of this system.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import pkgutil
import select
import selectors
import signal
import socket
import sys
import tempfile
import warnings
from typing import Any, NoReturn

#: Modules of the standard library that Windows does not have, by its documentation.
MODULES = (
    *("fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios"),
    *("tty", "crypt"),
)
#: What Windows has of `signal`; its other names that begin with SIG are missing.
SIGNALS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN")
#: What is missing in modules that Windows has: "Availability: Unix" in the documentation of Python 3.11.
MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "register_at_fork", "wait", "wait3", "wait4", "waitid", "killpg", "setsid", "setpgid"),
        *("getpgid", "getpgrp", "getuid", "geteuid", "getgid", "getegid", "getgroups", "setuid", "setgid", "nice"),
        *("uname", "mkfifo", "mknod", "openpty", "pipe2", "pread", "pwrite", "memfd_create", "sendfile", "statvfs"),
        *("fstatvfs", "sysconf", "confstr", "getloadavg", "chown", "fchown", "fchmod", "fchdir", "lchown", "chroot"),
        *("set_blocking", "get_blocking", "sched_yield", "sched_getaffinity", "pidfd_open", "posix_spawn", "sync"),
        *("O_NONBLOCK", "O_CLOEXEC", "O_ASYNC", "O_DIRECTORY", "O_NOFOLLOW", "WNOHANG", "WEXITED", "WNOWAIT", "P_PID"),
        *("P_ALL", "P_PIDFD", "WUNTRACED", "WIFEXITED", "WIFSIGNALED", "WEXITSTATUS", "WTERMSIG", "ctermid", "getsid"),
    ),
    socket: ("AF_UNIX", "SO_REUSEPORT", "send_fds", "recv_fds", "MSG_CMSG_CLOEXEC", "SOCK_SEQPACKET", "SCM_RIGHTS"),
    select: ("poll", "epoll", "kqueue", "POLLIN", "POLLHUP", "EPOLLIN"),
    signal: ("alarm", "pause", "setitimer", "sigwait", "pthread_sigmask", "pthread_kill", "siginterrupt", "SIG_BLOCK"),
    asyncio: ("open_unix_connection", "start_unix_server"),
}


#: Modules that only run in the processes of isolated handlers, which need POSIX. No other module may import them.
POSIX_ONLY = tuple(f"jobmill.worker.isolate.{name}" for name in ("child", "forked", "server"))


def names() -> list[str]:
    """All modules of Jobmill that Windows may import, except the programs: importing them runs them."""
    import jobmill

    found = [module.name for module in pkgutil.walk_packages(jobmill.__path__, "jobmill.", onerror=lambda _: None)]
    programs = [name for name in found if name.endswith(("__main__", ".django.worker")) or ".management." in name]
    return [name for name in found if name not in (*programs, *POSIX_ONLY)]


def import_all() -> list[str]:
    """Import every module; one line for each that fails."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "windows_like_settings")
    import django

    django.setup()
    problems = []
    for name in names():
        try:
            importlib.import_module(name)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return problems + [f"{name}: imported by another module" for name in POSIX_ONLY if name in sys.modules]


def take_away() -> None:
    """From now on, this Python has no more than one on Windows."""
    # What Windows has in another form, for which this system needs what is taken away.
    pair = functools.partial(socket.socketpair, socket.AF_UNIX)
    setattr(socket, "socketpair", pair)  # noqa: B010
    setattr(selectors, "DefaultSelector", selectors.SelectSelector)  # noqa: B010
    sys.platform = "win32"  # all other packages are imported, so only Jobmill looks at it
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in [name for name in dir(signal) if name.startswith("SIG") and name not in SIGNALS]:
        delattr(signal, name)
    for module, missing in MISSING.items():
        for name in missing:
            with contextlib.suppress(AttributeError):
                delattr(module, name)


def refuse(*_: object) -> NoReturn:
    """What the event loop of Windows does not have."""
    raise NotImplementedError


class Loop(asyncio.SelectorEventLoop):
    """An event loop with no more than that of Windows. Its own wake-ups use methods of other names."""

    add_signal_handler: Any = refuse
    add_reader: Any = refuse
    add_writer: Any = refuse


async def work() -> list[str]:
    """Run jobs of every kind that Windows can run, on each store without a server."""
    import jobmill

    shown = []
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory://", f"sqlite:///{folder}/jobs.db"):
            jobs = jobmill.connect(url)

            @jobs.handler
            async def greet(name: str) -> str:
                return f"hello {name}"

            @jobs.handler
            def count(n: int) -> int:
                return sum(range(n))

            async with jobs:
                worker = asyncio.create_task(jobs.run_worker(health=0))
                enqueued = [await greet.enqueue(name="Ada"), await count.options(delay="10ms").enqueue(n=4)]
                shown += [f"{jobs.store.name}: {await one.result(timeout='30s')}" for one in enqueued]
                worker.cancel()  # as Ctrl-C does there
                await asyncio.gather(worker, return_exceptions=True)
                await jobs.tick()
    return shown


def main() -> None:
    """What the first argument says; each line that it prints is a problem, or a result."""
    if sys.argv[1] == "works":
        loop = Loop(selectors.SelectSelector())  # with a pair of sockets of this system
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(work())
            take_away()
            lines = runner.run(work())
    else:
        warnings.simplefilter("ignore")  # Django's, when a model is defined again
        lines = import_all()
        for name in [name for name in sys.modules if name.partition(".")[0] == "jobmill"]:
            del sys.modules[name]
        take_away()
        lines += import_all()
    print(*lines, sep="\n", end="")


if __name__ == "__main__":
    main()
