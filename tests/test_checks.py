"""The rules of `dev.py check` find what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks import classes, decisions, words


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("line", ["it was looked  at", "# So many of them", "MOST_JOBS = 5", "LEAST_MS = 1"])
def test_a_phrase_that_readers_stumble_over_is_found(tmp_path: Path, line: str) -> None:
    (found,) = words.broken(tree(tmp_path, src__a_dot_py=f"x = 1\n{line}\n"))
    assert found.startswith("src/a.py:2: ")


@pytest.mark.parametrize("line", ["almost_all = 1", "UTMOST_x", "the reason besieges"])
def test_other_words_pass(tmp_path: Path, line: str) -> None:
    assert not list(words.broken(tree(tmp_path, docs__a_dot_md=line)))


def test_a_store_that_makes_a_settlement_is_found(tmp_path: Path) -> None:
    bad = "def f():\n    from jobmill.core.values import Lease, Settlement\n"
    good = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jobmill.core.values import Settlement\n"
    root = tree(tmp_path, src__jobmill__stores__a_dot_py=bad, src__jobmill__stores__b_dot_py=good)
    (found,) = decisions.broken(root)
    assert found.startswith("src/jobmill/stores/a.py:2: ")


def test_a_default_of_the_core_in_a_statement_is_found(tmp_path: Path) -> None:
    lua = "-- 604800000 is a comment\nlocal keep = 604800000\nlocal ms = seconds * 1000\nlocal rest = 5\n"
    (found,) = decisions.broken(tree(tmp_path, src__jobmill__stores__x__lua__keep_dot_lua=lua))
    assert found.startswith("src/jobmill/stores/x/lua/keep.lua:2: 604800000 is KEEP_SUCCEEDED")


def test_a_class_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path, src__jobmill__a_dot_py="class Place: ...", src__jobmill__b_dot_py="class Place: ...")
    (found,) = classes.broken(root)
    assert found == "src/jobmill/b.py:1: the class Place is defined in src/jobmill/a.py too"


def test_inheritance_of_three_classes_in_the_stores_is_found(tmp_path: Path) -> None:
    chain = "class A: ...\nclass B(A): ...\nclass C(B): ...\n"
    (found,) = classes.broken(tree(tmp_path, src__jobmill__stores__a_dot_py=chain))
    assert found.startswith("src/jobmill/stores/a.py:3: C ")
