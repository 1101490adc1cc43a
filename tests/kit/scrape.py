"""What a worker answers at its health port, and its metrics as Prometheus' own parser reads them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sqlite3
import subprocess
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Answered(NamedTuple):
    """A response."""

    status: int
    type: str
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(port: int, path: str, timeout: float = 10) -> Answered | None:
    """A worker's answer; None while nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answered(response.status, response.headers["Content-Type"], response.read().decode())
    except ConnectionError:
        return None
    finally:
        connection.close()


class Metrics:
    """The samples of one scrape. No sample and no family may stand there twice."""

    def __init__(self, text: str) -> None:
        self.text = text
        families = list(text_string_to_metric_families(text))
        names = [family.name for family in families]
        assert len(names) == len(set(names)), names
        self.types = {family.name: family.type for family in families}
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._samples, key
                self._samples[key] = sample.value

    def __call__(self, name: str, /, **labels: str) -> float | None:
        """One sample; None if it is not there."""
        return self._samples.get((name, frozenset(labels.items())))

    def sum(self, name: str, /, **labels: str) -> float:
        """The sum of all samples that have these labels, and perhaps others."""
        return sum(
            value for (one, own), value in self._samples.items() if one == name and own >= frozenset(labels.items())
        )

    def labels(self, label: str) -> set[str]:
        """All values of a label."""
        return {value for _, own in self._samples for name, value in own if name == label}


def scrape(port: int) -> Metrics:
    """The metrics of a worker that runs."""
    answer = ask(port, "/metrics")
    assert answer is not None
    assert (answer.status, answer.type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return Metrics(answer.text)


def suspend(process: subprocess.Popen[Any], url: str) -> None:
    """Stop a process of a SQLite store, but not inside a write, in which it would keep the lock of the file.

    So the lock is held here until the process has stopped: a signal returns before that.
    """
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
