"""A tally as flat counts, for databases that can add to a number in place.

The counts are `claimed`, `run_ms`, ..., one for each bucket that is not empty (`r3`, `w0`), and one for each group of
errors (`e` and its fingerprint). What else a group has is a text beside its count (`i` and its fingerprint): the latest
one stays.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from jobmill.core.tallies import BUCKETS, COUNTS, ErrorGroup, Tally, added_groups


def flat_counts(tally: Tally) -> dict[str, int]:
    """The numbers to add, without zeros."""
    counts = {field: getattr(tally, field) for field in COUNTS}
    counts |= {f"r{index}": count for index, count in enumerate(tally.run_buckets)}
    counts |= {f"w{index}": count for index, count in enumerate(tally.wait_buckets)}
    counts |= {f"e{group.fingerprint}": group.count for group in tally.error_groups}
    return {field: count for field, count in counts.items() if count}


def flat_texts(tally: Tally) -> dict[str, str]:
    """The texts to write: the groups of errors, by fingerprint."""
    return {f"i{group.fingerprint}": msgspec.json.encode(group).decode() for group in tally.error_groups}


def from_flat(start_ms: int, step_ms: int, queue: str, name: str, fields: Mapping[str, str | int]) -> Tally:
    """The tally again."""
    groups = []
    for field, text in fields.items():
        if field.startswith("i") and f"e{field[1:]}" in fields:
            group = msgspec.json.decode(str(text), type=ErrorGroup)
            groups.append(msgspec.structs.replace(group, count=int(fields[f"e{field[1:]}"])))
    return Tally(
        start_ms=start_ms,
        step_ms=step_ms,
        queue=queue,
        name=name,
        **{field: int(fields.get(field, 0)) for field in COUNTS},
        run_buckets=tuple(int(fields.get(f"r{index}", 0)) for index in range(BUCKETS)),
        wait_buckets=tuple(int(fields.get(f"w{index}", 0)) for index in range(BUCKETS)),
        error_groups=added_groups(groups),
    )
