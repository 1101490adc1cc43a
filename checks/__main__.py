"""Run all rules and print what breaks them."""

from __future__ import annotations

import sys
from pathlib import Path

from checks import classes, decisions, words

ROOT = Path(__file__).resolve().parent.parent

RULES = (words.broken, decisions.broken, classes.broken)


def main() -> int:
    """Print one line for each place that breaks a rule; 1 if there is any."""
    found = [line for rule in RULES for line in rule(ROOT)]
    for line in found:
        print(line)
    print(f"{len(RULES)} rules, {len(found)} places that break them")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
