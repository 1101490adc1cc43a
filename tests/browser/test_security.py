"""Scripts in all stored texts, in a real browser: nothing runs, and the policy is not even needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Dialog, expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

import jobmill
from jobmill import Dashboard
from jobmill.dashboard.wsgi import wsgi_app
from tests.dashboard.hostile import SCRIPT, addresses, fill
from tests.kit.browser import Tabs

Serving = Callable[..., Awaitable[str]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    # 9 queries per path: every fifth address is one of each screen, and has each of the queries.
    [pytest.param(5, id="every fifth address"), pytest.param(1, id="every address", marks=pytest.mark.extended)],
)
async def test_no_stored_or_reflected_script_runs(tabs: Tabs, serving: Serving, tmp_path: Path, step: int) -> None:
    """At the end the browser has no violation of the policy: the scripts never were elements."""
    dialogs: list[str] = []

    async def on_dialog(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        known = await fill(jobs)
        dashboard = Dashboard(jobs, title=SCRIPT)
        url = await serving(dashboard)
        page = await tabs.open(f"{url}/queues")
        page.on("dialog", on_dialog)
        shown = 0
        for address in addresses(known)[::step]:
            response = await page.goto(url + address)
            assert response is not None
            if response.status >= 400:
                assert response.status < 500, address
                await tabs.expect(f"response {response.status}")
                continue
            shown += 1
            assert await page.locator("img, style, script:not([src])").count() == 0, address
        assert shown > 5
        await page.goto(f"{url}/jobs/{known['failed']}")
        await expect(page.locator("h1").get_by_text("<script>alert(1)</script>")).to_be_visible()
        # A live update morphs the page: the texts stay texts.
        await page.evaluate("htmx.trigger('#main', 'refresh')")
        await expect(page.locator("h1").get_by_text("<script>alert(1)</script>")).to_be_visible()
        assert await page.locator("img, style, script:not([src])").count() == 0
        await tabs.close()
    assert dialogs == []


async def test_another_site_cannot_act_with_the_browser_of_a_visitor(tabs: Tabs, serving: Serving) -> None:
    async with jobmill.connect("memory://") as jobs:
        url = await serving(Dashboard(jobs))
        form = (
            f"<!doctype html><html lang=en><title>Evil</title><form method=post action='{url}/acts/pause'>"
            "<input type=hidden name=queue value=mail><button>Win</button></form>"
            f"<iframe src='{url}/queues'></iframe></html>"
        )
        evil = await serving(Starlette(routes=[Route("/", lambda _: HTMLResponse(form))]))
        # Another name of this machine is another site.
        page = await tabs.open(evil.replace("127.0.0.1", "localhost"))
        await tabs.expect("frame-ancestors")  # no page of another site may frame it
        await tabs.expect("/queues: net::ERR_BLOCKED_BY_RESPONSE")
        await page.get_by_role("button", name="Win").click()
        await expect(page.get_by_text("This form belongs to another site.")).to_be_visible()
        await tabs.expect("response 403: POST")
        await page.reload()
        await expect(page.get_by_text("This form belongs to another site.")).to_be_visible()
        assert not (await jobs.queue("mail").settings()).paused
        await tabs.close()


@pytest.mark.parametrize("path", ["", "/a/jobs"])
async def test_the_form_of_the_login_and_the_cookie(tabs: Tabs, serving: Serving, path: str) -> None:
    token = "a-secret-of-the-shop"
    async with jobmill.connect("memory://") as jobs:
        dashboard = Dashboard(jobs, token=token)
        app = Starlette(routes=[Mount(path, dashboard)]) if path else dashboard
        url = await serving(app) + path
        page = await tabs.open(f"{url}/queues")
        await tabs.expect("response 403: GET")
        await page.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_text("This is not the token.")).to_be_visible()
        await tabs.expect("response 403: POST")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{url}/")
        if "No such page" in await page.title():  # without the screen of the root
            await tabs.expect("response 404: GET")
        await page.goto(f"{url}/queues")
        await expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
        assert token not in await page.evaluate("document.cookie")
        # A link with the token enters too, and leaves it in no address.
        page = await tabs.open(f"{url}/queues?token={token}")
        await expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
        assert page.url == f"{url}/queues"
        await tabs.close()


async def test_pages_in_a_wsgi_server_work_without_a_stream(tabs: Tabs, tmp_path: Path) -> None:
    """No error about lost updates; the pages load again by themselves, and a refresh shows what is new."""
    import threading
    from wsgiref.simple_server import make_server

    from tests.dashboard.test_mounting import Quiet

    jobs = jobmill.connect(f"sqlite:///{tmp_path}/jobs.db")
    with make_server("127.0.0.1", 0, wsgi_app(Dashboard(jobs)), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        page = await tabs.open(f"http://127.0.0.1:{server.server_port}/queues")
        await expect(page.get_by_text("No queues yet")).to_be_visible()
        async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db") as other:
            await other.enqueue("send", queue="mail")
        async with page.expect_response("**/queues"):
            await page.wait_for_timeout(1_000)  # what is read is shared for 0.9 s
            await page.evaluate("htmx.trigger('#main', 'refresh')")
        await expect(page.get_by_role("link", name="mail")).to_be_visible()
        await expect(page.locator("#stale")).to_be_hidden()
        await tabs.close()
        server.shutdown()
        thread.join()
    jobs.sync.close()
