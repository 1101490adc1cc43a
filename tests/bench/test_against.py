"""The comparison of two trees: what the proxy counts, what the probe measures, and what misses a limit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import jobmill
from bench.against import probe, wire
from bench.against.run import (
    CASES,
    CLIENT,
    INSTRUCTIONS,
    RATE,
    SERVER,
    STATEMENTS,
    TRIPS,
    Case,
    Line,
    Side,
    compare,
    limit_of,
)
from bench.against.trees import ROOT, Tree
from bench.grounds import Grounds
from tests.kit.mongowire import OP_MSG

HERE = Tree("new", ROOT, Path(sys.executable))


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with Grounds(None) as made:
        yield made


def _in_pieces(store: str, data: bytes, size: int) -> int:
    conversation = wire.PROTOCOLS[store]()
    pieces = [data[first : first + size] for first in range(0, len(data), size)]
    return sum(1 for piece in pieces for _ in conversation.client_says(piece))


def _postgres(letter: bytes, body: bytes) -> bytes:
    return letter + (len(body) + 4).to_bytes(4, "big") + body


def _mongo(name: bytes) -> bytes:
    document = b"\x10" + name + b"\0\x01\0\0\0\0"
    body = b"\0" * 4 + b"\0" + (len(document) + 4).to_bytes(4, "little") + document
    return (len(body) + 16).to_bytes(4, "little") + b"\0" * 8 + OP_MSG.to_bytes(4, "little") + body


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_requests_are_counted_however_they_are_cut(size: int) -> None:
    start = (12).to_bytes(4, "big") + b"\0\3\0\0user"
    tls = (8).to_bytes(4, "big") + b"\x04\xd2\x16\x2f"
    sent = (
        tls
        + start
        + _postgres(b"P", b"E\0Q\0\0\0")
        + _postgres(b"B", b"\0E\0Q")
        + _postgres(b"E", b"\0")
        + _postgres(b"Q", b"x")
    )
    assert _in_pieces("postgres", sent, size) == 2

    sent = b"*2\r\n$3\r\nGET\r\n$5\r\n*1\r\n*\r\n" + b"*1\r\n$4\r\nPING\r\n"
    assert _in_pieces("redis", sent, size) == 2

    sent = _mongo(b"hello") + _mongo(b"find") + _mongo(b"update")
    assert _in_pieces("mongo", sent, size) == 2


def test_a_limit_is_judged_by_the_median_of_the_ratios() -> None:
    slower = Line("redis", "drain", RATE, [100, 100, 100], [10, 89, 200], limit_of("redis", "drain", RATE))
    assert not slower.is_met
    assert slower.best == 2.0
    assert Line("redis", "drain", RATE, [100, 100, 100], [10, 91, 92], limit_of("redis", "drain", RATE)).is_met
    costs = Line("redis", "drain", CLIENT, [10], [10.4], limit_of("redis", "drain", CLIENT))
    assert not costs.is_met
    assert Line("mongo", "drain", CLIENT, [10], [10.4], limit_of("mongo", "drain", CLIENT)).is_met
    assert not Line("mongo", "pickup", TRIPS, [10], [10.4], limit_of("mongo", "pickup", TRIPS)).is_met
    assert Line("redis", "drain", STATEMENTS, [1], [9], limit_of("redis", "drain", STATEMENTS)).is_met


def test_the_probe_takes_newer_names_before_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(client: object, *, slots: int) -> tuple[str, int]:
        return "older", slots

    def newer(client: object, *, concurrency: int) -> tuple[str, int]:
        return "newer", concurrency

    for make, expected in ((older, "older"), (newer, "newer")):
        monkeypatch.setattr(jobmill, "Worker", make, raising=False)
        assert probe.worker(object()) == (expected, probe.CONCURRENCY)
    assert probe.draft(SimpleNamespace(job=lambda: "older")) == "older"
    assert probe.draft(SimpleNamespace(job=lambda: "older", draft=lambda: "newer")) == "newer"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis", "mongo"])
def test_the_probe_measures_each_case_on_each_store(grounds: Grounds, store: str, case: Case) -> None:
    few = 4_000 if "batch" in case.asked else 200 if case.name != "pickup" else 8
    found = Side(grounds[store], grounds.folder).figures(HERE, Case(case.name, case.asked, {store: few}))
    assert found[RATE] > 0
    assert found[CLIENT] > 0
    if store == "memory":
        assert set(found) == {RATE, CLIENT}
        return
    # A driver may check its connections meanwhile, which is a round trip without a statement.
    assert 0 < found[TRIPS] <= found[STATEMENTS] + 1
    assert (SERVER in found) == (store != "sqlite")
    if case.name == "enqueue, lone caller":
        assert 1 <= found[TRIPS] < 3
    if case.name == "enqueue, 1,000 a call":
        assert found[STATEMENTS] < 0.1


def test_instructions_need_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(click.UsageError, match="needs valgrind: install it"):
        compare("HEAD", ["memory"], [], 1, True, None, None)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is no package of Python or Node")
def test_instructions_hardly_differ_between_two_runs(
    grounds: Grounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Although no module is compiled before the first one."""
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (case,) = (one for one in CASES if one.name == "enqueue, lone caller")
    side = Side(grounds["memory"], grounds.folder, counts_instructions=True)
    first, second = (side.figures(HERE, Case(case.name, case.asked, {"memory": 4_000})) for _ in range(2))
    assert set(first) == {INSTRUCTIONS}
    assert first[INSTRUCTIONS] == pytest.approx(second[INSTRUCTIONS], rel=0.02)
    assert 50_000 < first[INSTRUCTIONS] < 500_000, "of one enqueue, without the start of Python"
