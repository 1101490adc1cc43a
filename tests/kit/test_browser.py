"""The browser of the tests itself: what it reports about a page, and what it leaves in peace."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from tests.kit.browser import PHONE, SHOTS, UNPACKED, Browser, Tabs, axe, find_chromium, shot
from tests.kit.nginx import Nginx, reverse_proxy
from tests.kit.places import port_of
from tests.kit.processes import NoServer, family, is_gone, wait_until
from tests.kit.serve import serve

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
ROOT = Path(__file__).parents[2]

Serving = Callable[..., Awaitable[str]]


def page(body: str) -> Starlette:
    """An app whose pages have this body and a strict policy. Its script says the time zone."""
    html = (
        "<!doctype html><html lang=en><head><meta name=viewport content='width=device-width'><title>A page</title>"
        f"<script src=app.js></script></head><body><main><h1>A page</h1><p id=zone></p>{body}</main></body></html>"
    )
    script = (
        "addEventListener('DOMContentLoaded', () => document.getElementById('zone').textContent ="
        " new Intl.DateTimeFormat().resolvedOptions().timeZone)"
    )

    def answer(request: Request) -> Response:
        if request.url.path.endswith("/app.js"):
            return Response(script, media_type="text/javascript")
        if request.url.path.endswith("/"):
            return HTMLResponse(html, headers={"Content-Security-Policy": POLICY})
        return Response("no such page", 404)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


async def problems(browser: Browser, serving: Serving, body: str) -> str:
    """What the end of a test says about a page."""
    url = await serving(page(body))
    with pytest.raises(AssertionError) as caught:
        async with browser.tabs() as tabs:
            await tabs.open(f"{url}/")
    return str(caught.value)


async def test_a_page_without_a_problem_passes_axe_and_screenshots_included(
    tabs: Tabs, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHOTS, str(tmp_path / "shots"))
    tab = await tabs.open(await serving(page("<label>Name <input autofocus></label>")) + "/")
    assert await axe(tab) == []
    assert await tab.evaluate("typeof axe") == "undefined"
    assert await shot(tab, "page") == tmp_path / "shots/page.png"
    assert (tmp_path / "shots/page.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.delenv(SHOTS)
    assert await shot(tab, "page") is None


@pytest.mark.parametrize(
    "body", ["<p style='color: red'>Red</p>", "<script>1</script>", "<style>p {margin: 0}</style>"]
)
async def test_a_violation_of_the_policy_is_reported(browser: Browser, serving: Serving, body: str) -> None:
    assert "securitypolicyviolation: " in await problems(browser, serving, body)


async def test_a_violation_is_reported_without_javascript_too(browser: Browser, serving: Serving) -> None:
    url = await serving(page("<p style='color: red'>Red</p>"))
    async with browser.tabs() as tabs:
        await tabs.open(f"{url}/", javascript=False)
        await tabs.expect("violates the following Content Security Policy")


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("console.error('no luck')", "console: .*: no luck"),
        ("setTimeout(() => { throw new Error('no luck') })", "script: .*no luck"),
        ("fetch('/nowhere')", "response 404: GET .*/nowhere"),
        ("fetch('http://127.0.0.1:1/').catch(() => 0)", "securitypolicyviolation: connect-src blocks"),
        # Reserved for documentation: also without the rule for loopback, nobody is reached there.
        ("open('http://host.invalid/')", "request failed: GET http://host.invalid/: net::ERR_NAME_NOT_RESOLVED"),
        ("open('http://192.0.2.1/')", "request failed: GET http://192.0.2.1/: net::ERR_NAME_NOT_RESOLVED"),
    ],
)
async def test_what_goes_wrong_later_is_a_problem(tabs: Tabs, serving: Serving, expression: str, sentence: str) -> None:
    tab = await tabs.open(await serving(page("")) + "/")
    await tab.evaluate(f"{expression}; 0")
    await tabs.expect(sentence)
    await tabs.expect("")  # a browser may report the same problem in several ways


async def test_a_request_that_the_page_gives_up_is_no_problem(tabs: Tabs, serving: Serving) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(60)

    app = page("")
    app.routes.insert(0, Route("/events", lambda _: StreamingResponse(lines(), media_type="text/event-stream")))
    url = await serving(app)
    tab = await tabs.open(f"{url}/")
    await tab.evaluate("new Promise((heard) => { new EventSource('/events').onmessage = heard }).then(() => 0)")
    await tab.goto(f"{url}/other/")


async def test_axe_finds_a_planted_defect(tabs: Tabs, serving: Serving) -> None:
    tab = await tabs.open(await serving(page("<div id=box><img src='data:,'></div>")) + "/")
    (found,) = await axe(tab)
    assert found.startswith("image-alt (critical) at img: Images must have alternative text. Fix any of the following:")


async def test_screens_schemes_zones_and_javascript(tabs: Tabs, serving: Serving) -> None:
    url = await serving(page("")) + "/"
    look = "[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches, document.querySelector('#zone').innerText]"
    assert await (await tabs.open(url)).evaluate(look) == [1440, False, "UTC"]
    phone = await tabs.open(url, PHONE, dark=True, timezone="Asia/Tokyo")
    assert await phone.evaluate(look) == [390, True, "Asia/Tokyo"]
    without = await tabs.open(url, javascript=False)
    assert await without.inner_text("#zone") == ""
    with pytest.raises(AssertionError, match="JavaScript"):
        await axe(without)


async def test_an_app_is_served_below_a_path_and_again_at_its_port() -> None:
    async def echo(scope: dict[str, str], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        if scope["type"] == "http":
            await Response(f"{scope['root_path']} {scope['path']}")(scope, receive, send)  # type: ignore[arg-type]

    async with serve(echo, root_path="/a/b") as url:
        assert await fetch(f"{url}/x") == "/a/b /a/b/x"
    async with serve(echo, port=port_of(url)) as again:
        assert (again, await fetch(f"{url}/x")) == (url, " /x")


def test_the_browser_needs_no_library_but_those_of_c() -> None:
    binary, environment = find_chromium()
    said = subprocess.run(["ldd", binary], env=environment, capture_output=True, text=True, check=True).stdout
    libraries = dict(re.findall(r"(\S+) => (.*) \(", said))
    system = {name for name, place in libraries.items() if not place.startswith(str(UNPACKED))}
    assert system <= {f"lib{name}" for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "rt.so.1", "gcc_s.so.1")}
    assert "libnss3.so" in libraries


@pytest.mark.parametrize("strips", [True, False], ids=["stripped", "kept"])
@pytest.mark.parametrize("path", ["", "/jobs", "/a/b/jobs"])
async def test_nginx_puts_an_app_below_a_path(
    tabs: Tabs, serving: Serving, proxying: Callable[[str], str], path: str, strips: bool
) -> None:
    app = page("<p id=said></p>")
    paths: list[tuple[str, str]] = []

    async def lines(request: Request) -> AsyncIterator[bytes]:
        paths.append((request.scope["root_path"], request.scope["path"]))
        yield b"data: at once\n\n"
        await asyncio.sleep(60)  # what a proxy keeps until it is whole would never arrive

    app.routes.insert(
        0, Route("/events", lambda request: StreamingResponse(lines(request), media_type="text/event-stream"))
    )
    url = await (serving(app, root_path=path) if strips else serving(Starlette(routes=[Mount(path, app)])))
    outside = proxying(reverse_proxy(path, url, strips=strips))
    tab = await tabs.open(f"{outside}{path}")
    assert tab.url == f"{outside}{path}/"
    heard = "new Promise((heard) => { new EventSource('events').onmessage = (one) => heard(one.data) })"
    assert await tab.evaluate(heard) == "at once"
    assert paths == [(path, f"{path}/events")]


def test_nginx_says_what_is_wrong_with_its_configuration() -> None:
    with pytest.raises(NoServer, match='unknown directive "serve_well"'):
        Nginx("serve_well;").__enter__()


@pytest.mark.slow
def test_a_browser_ends_with_the_process_that_started_it() -> None:
    program = (
        "import asyncio\nfrom tests.kit.browser import Browser\n"
        "async def main():\n"
        "    async with Browser() as browser, browser.tabs() as tabs:\n"
        "        await tabs.open('about:blank')\n        print('open', flush=True)\n        await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        members = family(process.pid)
        assert len(members) > 3
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, members)), "all processes of the browser are gone")


async def fetch(url: str) -> str:
    """The body of a response."""
    import urllib.request

    def get() -> str:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())

    return await asyncio.to_thread(get)
