"""Builds the site of docs/ and reports everything in it that leads nowhere.

    python3 -m checks.site             build it in .cache/site/html
    python3 -m checks.site --serve     build it, and serve it on http://127.0.0.1:8000

The pages of docs/ are written for readers of the repository, too. Four things are different on the site:

- The words after the language of a code block are for the tests: `file=shop.py` becomes the title of the block.
- A block that has only commands has no prompts, so that it can be copied.
- A link to a file outside of docs/, for example to an example, leads to a page that shows this file.
- The navigation is in zensical.toml. Every page of docs/ is in it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.links import broken_links

ROOT = Path(__file__).resolve().parent.parent
#: Where the site shows files of the repository that are not in docs/.
FILES = "repository"

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w+)(?: +(?P<how>[^`\n]+))?$", re.MULTILINE)
_BLOCK = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".service": "ini", ".toml": "toml"}


class Site:
    """The site of one repository: `root` has docs/ and zensical.toml."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.docs = root / "docs"
        self.build = root / ".cache/site"
        self.html = self.build / "html"

    def problems(self) -> Iterator[str]:
        """Build the site; yield what is wrong."""
        shutil.rmtree(self.build, ignore_errors=True)
        yield from self._stage()
        yield from self._missing_from_navigation()
        shutil.copyfile(self.root / "zensical.toml", self.build / "zensical.toml")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        built = subprocess.run(command, cwd=self.build, capture_output=True, text=True, check=False)
        if built.returncode:
            yield _COLOR.sub("", built.stdout + built.stderr)
        else:
            yield from broken_links(self.html)

    # ------------------------------------------------------------------------------------------------ pages

    def _stage(self) -> Iterator[str]:
        """Write the pages as the builder needs them; yield the links to files that do not exist."""
        waiting = sorted(path for path in self.docs.rglob("*") if path.is_file())
        staged = set(waiting)
        while waiting:
            source = waiting.pop()
            target = self._staged(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix != ".md":
                shutil.copyfile(source, target)
                continue
            text = source.read_text("utf-8") if source.suffix == ".md" else self._shown(source)
            for found in _linked(source, text):
                if not found.exists():
                    yield f"{source.relative_to(self.root)}: {found.relative_to(self.root)} does not exist"
                elif found not in staged:
                    staged.add(found)
                    waiting.append(found)
            target.write_text(self._converted(source, text), "utf-8")

    def _staged(self, source: Path) -> Path:
        """Where a file of the repository is among the pages for the builder."""
        if source.is_relative_to(self.docs):
            return self.build / "docs" / source.relative_to(self.docs)
        name = source.relative_to(self.root).as_posix()
        return self.build / "docs" / FILES / f"{name.removesuffix('.md')}.md"

    def _shown(self, source: Path) -> str:
        """A page that shows a file, or the names of the files in a folder."""
        name = source.relative_to(self.root).as_posix()
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            names = [(path.relative_to(source), path.relative_to(source.parent)) for path in files]
            return f"# {name}\n\n" + "".join(f"- [{name}]({path})\n" for name, path in names)
        return f"# {name}\n\n````{_LANGUAGES.get(source.suffix, 'text')}\n{source.read_text('utf-8').rstrip()}\n````\n"

    def _converted(self, source: Path, text: str) -> str:
        """The text of a page as the builder needs it, with the same number of lines."""
        here = self._staged(source).parent

        def relinked(match: re.Match[str]) -> str:
            if ":" in match["target"]:
                return match[0]
            target = self._staged((source.parent / match["target"]).resolve())
            return Path(os.path.relpath(target, here)).as_posix() + (match["anchor"] or "")

        parts, end = [], 0
        for block in _BLOCK.finditer(text):
            parts += [_LINK.sub(relinked, text[end : block.start()]), _block(block[0])]
            end = block.end()
        return "".join([*parts, _LINK.sub(relinked, text[end:])])

    # ------------------------------------------------------------------------------------------------ navigation

    def _missing_from_navigation(self) -> Iterator[str]:
        """Pages that the navigation lacks, and pages in it that do not exist: the builder reports neither."""
        configuration = tomllib.loads((self.root / "zensical.toml").read_text("utf-8"))
        named = set(_pages_of(configuration["project"]["nav"]))
        present = {path.relative_to(self.docs).as_posix() for path in self.docs.rglob("*.md")}
        yield from (f"zensical.toml: docs/{name} does not exist" for name in sorted(named - present))
        yield from (f"docs/{name}: not in the navigation of zensical.toml" for name in sorted(present - named))


def _linked(source: Path, text: str) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for match in _LINK.finditer(_BLOCK.sub("", text)):
        if ":" not in match["target"]:
            yield (source.parent / match["target"]).resolve()


def _block(text: str) -> str:
    """A code block for readers: a block of commands only can be copied, so it has no prompts."""
    head, *code, tail = text.split("\n")
    if head == "```console" and all(line.startswith("$ ") for line in code):
        head, code = "```shell", [line.removeprefix("$ ") for line in code]
    return "\n".join([_FENCE.sub(_retitled, head), *code, tail])


def _retitled(match: re.Match[str]) -> str:
    """The first line of a code block, without the words for the tests."""
    kind, _, name = (match["how"] or "").partition("=")
    title = {"file": f' title="{name}"', "append": f' title="{name}, at its end"'}.get(kind, "")
    return f"{match['indent']}{match['ticks']}{match['language']}{title}"


def _pages_of(navigation: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for part in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from _pages_of(part)


def main() -> int:
    """Build the site, and print what is wrong; 1 if there is anything."""
    site = Site()
    problems = list(site.problems())
    for problem in problems:
        print(problem)
    print(f"{len(list(site.html.rglob('*.html')))} pages, {len(problems)} problems: {site.html / 'index.html'}")
    if "--serve" in sys.argv and not problems:
        serve(site.html)
    return int(bool(problems))


def serve(folder: Path) -> None:
    """Serve the site until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    print("http://127.0.0.1:8000", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main())
