"""A small codec for PNG files with eight bits for each of red, green and blue; it reads the files that it wrote."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_RGB = (8, 2, 0, 0, 0)  # bits, color type, compression, filter, interlace


@dataclass
class Image:
    """Rows of pixels, three bytes each."""

    width: int
    height: int
    rows: list[bytes]

    def shrunk_to(self, width: int) -> Image:
        """A smaller image. Each of its pixels is the mean of a square of pixels."""
        side = self.width // width
        if side < 1:
            raise ValueError(f"width: expected at most {self.width}, got {width}")
        height = self.height // side
        return Image(width, height, [self._mean_row(y * side, side, width) for y in range(height)])

    def _mean_row(self, top: int, side: int, width: int) -> bytes:
        colors = [[0] * width for _ in range(3)]
        for row in self.rows[top : top + side]:
            for color, sums in enumerate(colors):
                for step in range(side):
                    values = row[3 * step + color :: 3 * side]
                    for x in range(width):
                        sums[x] += values[x]
        area = side * side
        return bytes(colors[color][x] // area for x in range(width) for color in range(3))


def write(path: Path, width: int, height: int, rows: Iterable[bytes]) -> None:
    """Write an image row by row, so that a large one needs little memory."""
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(b"\0" + row) for row in rows) + packer.flush()
    header = _HEADER.pack(width, height, *_RGB)
    # At once, under another name first: an attempt that is stopped leaves no half of a file.
    half = path.with_suffix(".part")
    half.write_bytes(SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b""))
    half.replace(path)


def read(path: Path) -> Image:
    """Read an image into memory."""
    data = path.read_bytes()
    if not data.startswith(SIGNATURE):
        raise ValueError(f"{path.name}: expected a PNG file, got {data[:8]!r}")
    chunks = dict(_chunks(data))
    width, height, *kind = _HEADER.unpack(chunks[b"IHDR"])
    if tuple(kind) != _RGB:
        raise ValueError(f"{path.name}: expected RGB with 8 bits, got {kind}")
    raw = zlib.decompress(chunks[b"IDAT"])  # all pixels: here a bomb explodes
    line = 1 + 3 * width
    return Image(width, height, [raw[start + 1 : start + line] for start in range(0, line * height, line)])


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _chunks(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length
