"""Classes: each name is defined once in src, and inheritance within the stores is at most two classes deep."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = "src/jobmill"
STORES = "src/jobmill/stores"

#: Names that other systems have too, under import paths of their own.
FOREIGN = ("src/jobmill/bullmq/", "src/jobmill/harmonyk/", "src/jobmill/crontab/", "src/jobmill/compat/celery/")


def broken(root: Path) -> Iterator[str]:
    """`path:line: what` for each place."""
    homes: defaultdict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    for path in sorted((root / SOURCE).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append((name, node))
    yield from _several(homes)
    yield from _deep(homes)


def _several(homes: dict[str, list[tuple[str, ast.ClassDef]]]) -> Iterator[str]:
    for name, places in sorted(homes.items()):
        ours = [(path, node) for path, node in places if not path.startswith(FOREIGN)]
        for path, node in ours[1:]:
            yield f"{path}:{node.lineno}: the class {name} is defined in {ours[0][0]} too"


def _deep(homes: dict[str, list[tuple[str, ast.ClassDef]]]) -> Iterator[str]:
    stores = {name: [one for one in places if one[0].startswith(STORES)] for name, places in homes.items()}
    for places in stores.values():
        for path, node in places:
            if _depth(node, stores) > 2:
                yield f"{path}:{node.lineno}: {node.name} is more than two classes deep: use functions over a context"


def _depth(node: ast.ClassDef, homes: dict[str, list[tuple[str, ast.ClassDef]]]) -> int:
    names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
    depths = [_depth(homes[name][0][1], homes) for name in names if homes.get(name) and name != node.name]
    return 1 + max(depths, default=0)
