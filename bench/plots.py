"""Pictures of a report, as SVG files beside it: of each that is written, or by `python -m bench.plots REPORT.json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench import draws, draws_across
from bench.draws_across import Stores
from bench.figures import Figure

STORES = {name: title for title, name in draws_across.STORES.items()} | {"crontab": "Crontab"}
#: A measure on files has no name of a store before it.
FILES = "SQLite"
OVERVIEW = "overview"

OfOne = Callable[[str, Sequence[Figure]], str | None]
OfAll = Callable[[str, Stores], str | None]


class Picture(Struct, frozen=True):
    """Of one measure, as SVG text."""

    measure: str
    #: Of the measure, and of the picture where a measure has several.
    name: str
    title: str
    svg: str

    def file_name(self, report: str) -> str:
        """Beside a report of this name, which may be of one store and say so already."""
        store, _, rest = self.name.partition("-")
        return f"{report}-{rest if rest and report.endswith(f'-{store}') else self.name}.svg"


class Figures(Struct):
    """What is read of a report."""

    figures: list[Figure]


def write(data: Path) -> list[Path]:
    """The pictures of a report that lies there already, beside it."""
    return write_beside(plots(msgspec.json.decode(data.read_bytes(), type=Figures).figures), data.parent, data.stem)


def write_beside(pictures: Iterable[Picture], folder: Path, report: str) -> list[Path]:
    """The files of these pictures; of the same name the later ones stay."""
    written = []
    for picture in pictures:
        path = folder / picture.file_name(report)
        path.write_text(picture.svg, "utf-8")
        written.append(path)
    return written


def plots(figures: Sequence[Figure]) -> list[Picture]:
    """All that there are; none where there is nothing to compare."""
    measures = {
        measure: [figure for figure in figures if figure.measure == measure]
        for measure in dict.fromkeys(figure.measure for figure in figures)
    }
    pictures = [picture for measure, own in measures.items() for picture in _of_measure(measure, own)]
    drains = {title: measures.get(measure, []) for title, measure in DRAINS.items()}
    if (svg := draws_across.overview(OVERVIEW_TITLE, drains)) is not None:
        pictures.insert(0, Picture(OVERVIEW, OVERVIEW, OVERVIEW_TITLE, svg))
    return pictures


def _of_measure(measure: str, figures: Sequence[Figure]) -> Iterable[Picture]:
    store, _, kind = measure.rpartition(" ")
    for suffix, text, draw in OF_ONE.get(kind, ()):
        title = f"{STORES.get(store, store or FILES)}: {text}"
        if (svg := draw(title, figures)) is not None:
            yield Picture(measure, measure.replace(" ", "-") + suffix, title, svg)
    stores = draws_across.by_store(figures)
    for text, draw in OF_EACH.get(measure, ()):
        for name, own in stores.items():
            if (svg := draw(f"{name}: {text}", own)) is not None:
                yield Picture(measure, f"{draws_across.STORES[name]}-{measure}", f"{name}: {text}", svg)
    for suffix, text, draw_all in OF_ALL.get(measure, ()):
        if (svg := draw_all(text, stores)) is not None:
            yield Picture(measure, measure + suffix, text, svg)


OVERVIEW_TITLE = "Jobs that one worker process runs in a second"
#: By the title of a store, the measure of which the overview is made.
DRAINS = {"PostgreSQL": "postgres drain", "Redis": "redis drain", "MongoDB": "mongo drain", FILES: "drain"}

#: By the last word of a measure's name: what a picture's name ends with, its title, and who draws it.
OF_ONE: dict[str, tuple[tuple[str, str, OfOne], ...]] = {
    "drain": (
        ("", "jobs run by one worker process", draws.best_rates),
        ("-slots", "jobs run by one worker process, by its slots", draws.by_slots),
    ),
    "enqueue": (("", "jobs enqueued", draws.enqueues),),
    "pickup": (("", "from an enqueue to its start in an idle worker", draws.latencies),),
    "depth": (("", "jobs run while others wait", draws.depths),),
}
#: Of measures on several stores: the title of a picture for each of them, and who draws it.
OF_EACH: dict[str, tuple[tuple[str, OfOne], ...]] = {
    "roundtrip": (("2 ms further away", draws_across.rates),),
    "memory": (("resident memory of a worker process", draws_across.memory),),
    "recovery": (("until the job of a killed worker starts again", draws_across.recovery),),
    "written": (("bytes written for each job", draws_across.bytes_written),),
}
#: And of one picture for all.
OF_ALL: dict[str, tuple[tuple[str, str, OfAll], ...]] = {
    "scaling": (("", "Several worker processes on one queue", draws_across.scaling),),
    "handlers": (("", "Kinds of handler in one worker process", draws_across.circumstances),),
    "history": (("", "One worker process beside finished jobs", draws_across.circumstances),),
    "limit": (("", "A worker beside bare loops of its store's statements", draws_across.limits),),
    "load": (
        ("-half", "From an enqueue to its start at half of the drain rate", draws_across.half_load),
        ("-silence", "From an enqueue to its start after a minute of silence", draws_across.silence),
    ),
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(*write(Path(name)), sep="\n")
