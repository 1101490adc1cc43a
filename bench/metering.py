"""A run beside its server: the child halts when it begins and ends, and the parent looks what the server has spent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bench.child import BEGUN, SETTLED, Child
from bench.figures import Ran

S = TypeVar("S")

CLIENT, SERVER = "client CPU us/job", "server CPU us/job"


def followed(child: Child[Ran], spent: Callable[[], S]) -> tuple[Ran, S, S]:
    """Follow a child that halts at BEGUN and at SETTLED to its end; what the server had spent at each."""
    with child:
        child.wait_for(BEGUN)
        before = spent()
        child.go_on()
        child.wait_for(SETTLED)
        after = spent()
        child.go_on()
        return child.result(), before, after
