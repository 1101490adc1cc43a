"""How the end of an isolated process is described."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jobmill.worker.isolate.death import End, OutOfMemoryKills, why_ended


@pytest.mark.parametrize(
    ("end", "out_of_memory", "text"),
    [
        (End(0), False, "process exited with code 0 without an outcome"),
        (End(3, 5_000_000), True, "process exited with code 3 without an outcome"),
        (End(-signal.SIGSEGV), True, "process ended by SIGSEGV"),
        (End(-64), False, "process ended by SIGRTMAX"),
        (End(-signal.SIGKILL), False, "process killed by SIGKILL (out of memory?)"),
        (End(-signal.SIGKILL, 52_400_000), False, "process killed by SIGKILL (out of memory? it used up to 52 MB)"),
        (
            End(-signal.SIGKILL, 1_200_000_000),
            True,
            "process killed by SIGKILL: out of memory (it used up to 1,200 MB)",
        ),
        (End(-signal.SIGKILL), True, "process killed by SIGKILL: out of memory"),
    ],
)
def test_an_end_in_words(end: End, out_of_memory: bool, text: str) -> None:
    assert why_ended(end, out_of_memory=out_of_memory) == text


GROUPS = {
    "version 2": ("0::/app.slice/one\n", "sys/fs/cgroup/app.slice/one/memory.events", "low 0\noom 9\noom_kill 2\n"),
    "version 1": (
        "5:cpu:/\n4:memory:/docker/one\n0::/\n",
        "sys/fs/cgroup/memory/docker/one/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    ),
    "version 1 in a container": (
        "4:memory:/docker/one\n",
        "sys/fs/cgroup/memory/memory.oom_control",
        "under_oom 0\noom_kill 2\n",
    ),
    "the whole system": ("0::/\n", "proc/vmstat", "nr_free_pages 7\noom_kill 2\n"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_kernel_counts_processes_that_it_killed(tmp_path: Path, name: str) -> None:
    group, file, text = GROUPS[name]
    for path, content in (("proc/self/cgroup", group), (file, text)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    kills = OutOfMemoryKills(tmp_path)
    assert kills.count() == kills.recent_count() == 2
    (tmp_path / file).write_text(text.replace("oom_kill 2", "oom_kill 3"))
    assert (kills.count(), kills.recent_count()) == (3, 2)


def test_a_system_without_such_a_count(tmp_path: Path) -> None:
    assert OutOfMemoryKills(tmp_path).count() == 0
