"""Recurrences as Node reads them, with the cron-parser of BullMQ 6 and the one of BullMQ 5."""

from __future__ import annotations

import contextlib
from random import Random

import msgspec
import pytest

from jobmill.core.cron import Cron
from jobmill.core.recurrence import Recurrence
from jobmill.errors import InvalidValue
from jobmill.stores.common.node_cron import for_node
from tests.kit.node import Packages

BEGIN_MS = 1_800_000_000_000
COUNT = 8

NAMES = {
    4: ("JAN", "feb", "Mar", "apr", "MAY", "jun", "jul", "AUG", "sep", "oct", "nov", "DEC"),
    5: ("SUN", "mon", "Tue", "wed", "THU", "fri", "sat"),
}
BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
MACROS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


def value(random: Random, field: int) -> str:
    first, last = BOUNDS[field]
    number = random.randint(first, last)
    if field in NAMES and number - first < len(NAMES[field]) and random.random() < 0.3:
        return NAMES[field][number - first]
    return f"{number:02}" if random.random() < 0.1 else str(number)


def term(random: Random, field: int) -> str:
    first, last = BOUNDS[field]
    step = random.choice((1, 2, 3, 5, 7, 15))
    start = random.randint(first, last)
    kinds = ["*", f"*/{step}", value(random, field), value(random, field), f"{start}-{random.randint(start, last)}"]
    kinds += [f"{start}/{step}", f"{start}-{random.randint(start, last)}/{step}", "?"]
    if field == 3:
        kinds += ["L", "LW"]
    if field == 5:
        kinds += [f"{start}L", f"{value(random, field)}#{random.randint(1, 5)}"]
    return random.choice(kinds)


def expression(random: Random) -> str:
    if random.random() < 0.02:
        return random.choice(MACROS)
    fields = []
    for field in range(0 if random.random() < 0.2 else 1, 6):
        is_plain = random.random() < (0.5 if field > 2 else 0.2)
        terms = [term(random, field) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        fields.append("*" if is_plain else ",".join(terms))
    return " ".join(fields)


def occurrences(rule: Recurrence) -> list[int]:
    cron = Cron.parse(rule.cron or "", rule.timezone)
    found = [BEGIN_MS]
    while len(found) <= COUNT and (occurrence := cron.next(found[-1])) is not None:
        found.append(occurrence)
    return found[1:]


def differs_in_4(text: str) -> bool:
    """Where cron-parser 4.9 computes other occurrences than 5 and than we do; docs/bullmq.md has this list."""
    *_, days, months, weekdays = text.split()
    if "*" in (days, weekdays):
        return months == "2" and weekdays.endswith("#5")
    listed = [range(*map(int, part.split("-"))) for part in days.split(",") if "-" in part]
    return "#" in weekdays or sum(map(len, listed)) + len(days.split(",")) >= 28


@pytest.mark.slow
@pytest.mark.parametrize("expressions", [500, pytest.param(3_000, marks=pytest.mark.extended)])
def test_node_computes_the_same_occurrences(node_packages: Packages, expressions: int) -> None:
    random = Random(15)
    rules: list[tuple[Recurrence, Recurrence]] = []
    while len(rules) < expressions:
        zone = random.choice(("UTC", "UTC", "Asia/Tokyo", "America/Phoenix"))
        text = expression(random)
        rule = Recurrence(key="k", cron=text, timezone=zone)
        with contextlib.suppress(InvalidValue):
            ours = for_node(rule)
            if ours is not None:
                rules.append((rule, ours))
            else:
                assert "LW" in text or "#" in text, text
    asked = [(ours.cron, ours.timezone, BEGIN_MS, COUNT) for _, ours in rules]
    answers = msgspec.json.decode(node_packages.run("cron.mjs", stdin=msgspec.json.encode(asked).decode()))
    wrong = []
    for (rule, ours), (five, four) in zip(rules, answers, strict=True):
        expected = occurrences(rule)
        assert ours.cron is not None
        if five != expected or (four != expected and not differs_in_4(ours.cron)):
            wrong.append((rule.cron, ours.cron, expected, five, four))
    assert not wrong, f"{len(wrong)} differ, such as {wrong[:3]}"
