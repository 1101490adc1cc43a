"""Thumbnails of photos that strangers upload; README.md says how to run it and what you should see."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from pathlib import Path

import png

import jobmill

FOLDER = Path("photos")
WIDTHS = (80, 160)
MEMORY = 200 << 20

jobs = jobmill.connect()


# Decoding a photo of a stranger may crash, so it has a process of its own. `isolate="pool"` would reuse processes. That
# is faster, but a new process for each photo cannot carry anything over from one stranger to the next.
@jobs.handler(queue="photos", isolate=True, max_attempts=2, backoff=jobmill.fixed("100ms"), timeout="1m")
def make_thumbnail(path: str, width: int) -> str:
    # The limit holds for this process only. In a thread of the worker it would hold for the whole worker.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    source = Path(path)
    small = png.read(source).shrunk_to(width)
    # The same name each time: a second run after a crash replaces the file and does no harm.
    target = source.with_name(f"{source.stem}-{width}.png")
    png.write(target, small.width, small.height, small.rows)
    return target.name


async def upload(path: Path) -> list[jobmill.Enqueued[str]]:
    """What a web application does when a photo has arrived."""
    # One unique key for each thumbnail: a photo that is uploaded twice at once is shrunk once.
    return [
        await make_thumbnail.options(unique_key=f"{path.name}-{width}").enqueue(path=str(path), width=width)
        for width in WIDTHS
    ]


def take_photos() -> list[Path]:
    """Three photos of a gradient, and a bomb."""
    FOLDER.mkdir(exist_ok=True)
    paths = [FOLDER / f"photo{number}.png" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        png.write(path, 320, 240, gradient(320, 240, 80 * number))
    bomb = FOLDER / "bomb.png"
    png.write(bomb, 10_000, 10_000, (bytes(30_000) for _ in range(10_000)))
    return [*paths, bomb]


def gradient(width: int, height: int, blue: int) -> Iterator[bytes]:
    for y in range(height):
        yield b"".join(bytes((255 * x // width, 255 * y // height, blue)) for x in range(width))


async def main(photos: list[Path]) -> None:
    async with jobs, jobmill.Worker(jobs, concurrency=2):
        await asyncio.gather(*(show(path) for path in photos))


async def show(path: Path) -> None:
    for thumbnail in await upload(path):
        try:
            print(f"{path.name}: made {await thumbnail.result(timeout='1m')}")
        except jobmill.JobFailed as failed:
            print(f"{path.name}: failed: {failed.job.error}")


if __name__ == "__main__":
    logging.getLogger("jobmill").addHandler(logging.NullHandler())  # `jobmill worker` logs the error of the bomb
    asyncio.run(main(take_photos()))
