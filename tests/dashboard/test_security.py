"""Attacks: every one is refused, and nothing of the store changes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.dashboard import login
from jobmill.dashboard.access import ACTIONS
from jobmill.dashboard.acts import ACTS
from jobmill.dashboard.login import COOKIE, Login
from jobmill.dashboard.pages import asset_hash
from jobmill.dashboard.security import MAX_BODY
from jobmill.errors import InvalidValue
from tests.dashboard.hostile import addresses, fill
from tests.dashboard.visitor import LOCAL, Answer, Visitor

TOKEN = "a-secret-of-the-shop"
OTHERS = ("203.0.113.9", 50_000)
FORM = {"content-type": "application/x-www-form-urlencoded"}
SAME = {**FORM, "sec-fetch-site": "same-origin"}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.fixture
def guarded(jobs: Client) -> Visitor:
    """A visitor of a dashboard with a token, from another machine."""
    return Visitor(Dashboard(jobs, token=TOKEN), client=OTHERS, host="shop.example")


async def is_paused(jobs: Client) -> bool:
    return (await jobs.queue("mail").settings()).paused


# ---------------------------------------------------------------------------------------------------- headers


def check_headers(answer: Answer, kept: str = "no-store") -> None:
    about = {name: answer.headers.get(name) for name in ("content-security-policy", "x-content-type-options")}
    assert about == {"content-security-policy": CSP, "x-content-type-options": "nosniff"}, answer
    assert (answer.headers.get("referrer-policy"), answer.headers.get("cache-control")) == ("same-origin", kept)


@pytest.mark.slow
async def test_every_answer_has_the_headers(jobs: Client, visitor: Visitor, guarded: Visitor) -> None:
    known = await fill(jobs)
    answers = [await visitor.get(address) for address in addresses(known)]
    answers += [await visitor.get(address, accept="application/json") for address in addresses(known)]
    answers += [
        await visitor.get("/live"),
        await visitor.get("/nowhere"),
        await visitor.get("/jobs/gone"),
        await visitor.get("/login"),
        await visitor.post("/acts/pause", queue="mail"),
        await visitor.post("/acts/pause", queue="bad queue"),
        await visitor.post("/acts/nothing"),
        await visitor.send("POST", "/acts/pause", b"[", {"content-type": "application/json"}),
        await visitor.send("POST", "/acts/pause", b"queue=mail", FORM),
        await visitor.send("DELETE", "/queues"),
        await visitor.send("OPTIONS", "/acts/pause"),
        await visitor.get("/static/0/app.js"),
        await guarded.get("/queues"),
        await guarded.get("/queues", accept="application/json"),
        await guarded.get(f"/queues?token={TOKEN}"),
        await guarded.get("/login"),
        await guarded.post("/login", token="wrong"),
        await guarded.post("/login", token=TOKEN),
    ]
    assert {answer.status for answer in answers} >= {200, 303, 400, 403, 404, 405}
    for answer in answers:
        check_headers(answer)
    check_headers(
        await visitor.get(f"/static/{asset_hash('app.js')}/app.js"), kept="public, max-age=31536000, immutable"
    )


async def test_a_failure_that_nobody_expected_has_the_headers(
    jobs: Client, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> Any:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(jobs, "depths", broken)
    answer = await visitor.get("/queues")
    assert (answer.status, "ZeroDivisionError" in answer.words, "a secret" in answer.text) == (500, True, False)
    check_headers(answer)
    assert "a secret" in caplog.text


async def test_who_may_frame_the_dashboard_is_an_option(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, frame_ancestors="'self' https://admin.example"))
    policy = (await visitor.get("/queues")).headers["content-security-policy"]
    assert policy == CSP.replace("frame-ancestors 'none'", "frame-ancestors 'self' https://admin.example")
    for bad in ("'self'; script-src *", "a, b", "a\r\nX: y"):
        with pytest.raises(InvalidValue, match="frame_ancestors"):
            Dashboard(jobs, frame_ancestors=bad)


# ---------------------------------------------------------------------------------------------------- other sites

ALLOWED: dict[str, dict[str, str]] = {
    "same origin": SAME,
    "typed by the visitor": {**FORM, "sec-fetch-site": "none"},
    "an old browser": {**FORM, "origin": "http://127.0.0.1:8000"},
    "an old browser with TLS in front": {**FORM, "origin": "https://127.0.0.1:8000"},
    "a program with JSON": {"content-type": "application/json"},
    "a program with JSON and a charset": {"content-type": "Application/JSON; charset=utf-8"},
    "a program with a token": {**FORM, "authorization": "Bearer x"},
}
REFUSED: dict[str, dict[str, str]] = {
    "another site": {**FORM, "sec-fetch-site": "cross-site"},
    "another host of the site": {**FORM, "sec-fetch-site": "same-site"},
    "another site that says JSON": {"content-type": "application/json", "sec-fetch-site": "cross-site"},
    "another site with a token": {**FORM, "sec-fetch-site": "cross-site", "authorization": "Bearer x"},
    "what nobody knows": {**FORM, "sec-fetch-site": "x"},
    "another origin": {**FORM, "origin": "https://evil.example"},
    "another port": {**FORM, "origin": "http://127.0.0.1:8001"},
    "a longer name": {**FORM, "origin": "http://127.0.0.1:8000.evil.example"},
    "a user in front": {**FORM, "origin": "http://127.0.0.1:8000@evil.example"},
    "another origin with JSON": {"content-type": "application/json", "origin": "https://evil.example"},
    "a sandbox": {**FORM, "origin": "null"},
    "no origin": {**FORM, "origin": ""},
    "a broken origin": {**FORM, "origin": "http://[evil"},
    "neither header": FORM,
    "neither header, plain text": {"content-type": "text/plain"},
    "neither header, a browser's own password": {**FORM, "authorization": "Basic eDp5"},
    "no type": {},
}


@pytest.mark.parametrize("headers", ALLOWED.values(), ids=ALLOWED)
async def test_the_dashboard_and_programs_may_act(jobs: Client, visitor: Visitor, headers: dict[str, str]) -> None:
    is_json = "json" in headers.get("content-type", "").lower()
    answer = await visitor.send("POST", "/acts/pause", b'{"queue": "mail"}' if is_json else b"queue=mail", headers)
    assert (answer.status, await is_paused(jobs)) == (303, True)


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
async def test_other_sites_may_not_act(jobs: Client, visitor: Visitor, headers: dict[str, str]) -> None:
    for body in (b"queue=mail", b'{"queue": "mail"}'):
        answer = await visitor.send("POST", "/acts/pause", body, headers)
        assert (answer.status, await is_paused(jobs)) == (403, False)
        # A script that loads the page again would send the form again, from the same origin then.
        assert "<script" not in answer.text


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
async def test_other_sites_may_not_log_people_in(guarded: Visitor, headers: dict[str, str]) -> None:
    answer = await guarded.send("POST", "/login", f"token={TOKEN}".encode(), headers)
    assert (answer.status, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
async def test_acts_are_posts(jobs: Client, visitor: Visitor, method: str) -> None:
    answer = await visitor.send(method, "/acts/pause?queue=mail", b"queue=mail", SAME)
    assert (answer.status, answer.headers["allow"], await is_paused(jobs)) == (405, "POST", False)


# ---------------------------------------------------------------------------------------------------- this machine


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.0.0.2", "[::1]"])
async def test_this_machine_may_enter(jobs: Client, host: str) -> None:
    assert (await Visitor(Dashboard(jobs), host=host).get("/queues")).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "x@localhost",
        "",
        "10.0.0.1",
    ],
)
async def test_a_name_that_another_site_gave_this_machine_is_refused(jobs: Client, host: str) -> None:
    visitor = Visitor(Dashboard(jobs), host=host)
    for address in ("/queues", "/live", "/jobs/x", "/nowhere"):
        assert (await visitor.get(address)).status == 403, address
    assert (await visitor.send("POST", "/acts/pause", b"queue=mail", SAME)).status == 403
    assert not await is_paused(jobs)


@pytest.mark.parametrize(
    "header",
    ["forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-server"],
)
async def test_what_a_proxy_forwards_needs_a_token(jobs: Client, header: str) -> None:
    assert (await Visitor(Dashboard(jobs)).get("/queues", **{header: "127.0.0.1"})).status == 403


@pytest.mark.parametrize("client", [OTHERS, None, ("::ffff:203.0.113.9", 1), ("", 0), ("testclient", 1)])
async def test_other_machines_need_a_token(jobs: Client, client: tuple[str, int] | None) -> None:
    for address in ("/queues", "/live", "/nowhere", "/static/0/app.js"):
        answer = await Visitor(Dashboard(jobs), client=client).get(address)
        assert answer.status == (404 if "static" in address else 403), address


async def test_the_refusal_says_how_to_let_other_machines_in(jobs: Client) -> None:
    words = (await Visitor(Dashboard(jobs), client=OTHERS).get("/queues")).words
    assert "has neither a token nor authorize, so it accepts only browsers on this machine" in words
    decided = (await Visitor(Dashboard(jobs, authorize=lambda _: None), client=OTHERS).get("/queues")).words
    assert "You may not see this page." in decided
    assert "authorize" not in decided


async def test_strangers_see_nothing_of_the_store(jobs: Client) -> None:
    await jobs.enqueue("send", queue="mail")
    visitor = Visitor(Dashboard(jobs), client=OTHERS)
    for address in ("/queues", "/nowhere", "/jobs/x"):
        page = await visitor.get(address)
        assert "mail" not in page.words
        assert "hx-sse:connect" not in page.text
        assert "data-go" not in page.text


# ---------------------------------------------------------------------------------------------------- the token


async def test_the_right_token_logs_in(guarded: Visitor) -> None:
    assert (await guarded.get("/queues")).status == 403
    assert "Token" in (await guarded.get("/queues")).words
    wrong = await guarded.post("/login", token=f"{TOKEN}x")
    assert (wrong.status, "This is not the token." in wrong.words, guarded.cookies) == (403, True, {})
    for bad in ("", "é", "a" * 5_000):
        assert (await guarded.post("/login", token=bad)).status == 403
    right = await guarded.post("/login", token=TOKEN)
    assert (right.status, right.headers["location"]) == (303, "/")
    assert (await guarded.get("/queues")).status == 200
    assert (await guarded.post("/acts/pause", queue="mail")).status == 303


async def test_wrong_tokens_are_in_the_log_once_a_minute(
    guarded: Visitor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they come in a form, in a link or as a bearer token. No line shows them."""
    for number in range(10):
        await guarded.post("/login", token=f"guess-{number}")
        await guarded.get(f"/queues?token=guess-{number}")
        await guarded.get("/queues", authorization=f"Bearer guess-{number}")
    assert caplog.messages == [f"the dashboard refused a wrong token from {OTHERS[0]}"]
    await guarded.post("/login", token=TOKEN)
    await guarded.get("/queues")
    monkeypatch.setattr(login, "QUIET_S", 0.0)
    await guarded.post("/login", token="guess")
    assert caplog.messages[1:] == [
        f"the dashboard refused a wrong token from {OTHERS[0]}, and 29 more since the last such line"
    ]
    assert "guess" not in caplog.text


@pytest.mark.parametrize(("about", "is_secure"), [({}, False), ({"x_forwarded_proto": "https"}, True)])
async def test_the_flags_of_the_cookie(jobs: Client, about: dict[str, str], is_secure: bool) -> None:
    visitor = Visitor(Dashboard(jobs, token=TOKEN), base="/a/jobs", client=OTHERS, host="shop.example", **about)
    cookie = (await visitor.post("/login", token=TOKEN)).headers["set-cookie"]
    flags = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert flags >= {"httponly", "samesite=strict", "path=/a/jobs", "max-age=2592000"}
    assert ("secure" in flags) is is_secure
    assert TOKEN not in cookie


async def test_the_cookie_is_secure_with_https(jobs: Client) -> None:
    class Tls(Visitor):
        """The server itself has TLS."""

        async def send(self, *args: Any, **more: Any) -> Answer:
            inner = self.app

            async def secure(scope: Any, receive: Any, send: Any) -> None:
                await inner({**scope, "scheme": "https"}, receive, send)

            self.app = secure
            try:
                return await super().send(*args, **more)
            finally:
                self.app = inner

    visitor = Tls(Dashboard(jobs, token=TOKEN))
    assert "; Secure" in (await visitor.get(f"/queues?token={TOKEN}")).headers["set-cookie"]


async def test_forged_and_expired_cookies_are_refused(guarded: Visitor) -> None:
    now = int(time.time())
    await guarded.post("/login", token=TOKEN)
    until, _, mark = guarded.cookies[COOKIE].partition(".")
    assert (await guarded.get("/queues")).status == 200
    login = Login(TOKEN)
    other = Login("another-token")
    for forged in (
        f"{int(until) + 1}.{mark}",
        f"{until}.{mark[:-1]}",
        f"{until}.{mark}0",
        f"{until}.",
        f".{mark}",
        "",
        ".",
        mark,
        f"{'9' * 5_000}.{mark}",
        f"-1.{mark}",
        f"1e9.{mark}",
        f"\u00b2.{mark}",
        f"{until}.{other._mark(until)}",
        f"{now - 1}.{login._mark(str(now - 1))}",
        TOKEN,
    ):
        guarded.cookies[COOKIE] = forged
        assert (await guarded.get("/queues")).status == 403, forged
        assert (await guarded.post("/acts/pause", queue="mail")).status == 403, forged
    guarded.cookies[COOKIE] = f"{now + 9}.{login._mark(str(now + 9))}"
    assert (await guarded.get("/queues")).status == 200


async def test_the_token_as_a_bearer(guarded: Visitor) -> None:
    for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
        assert (await guarded.get("/queues", authorization=right)).status == 200
    for wrong in (f"Bearer {TOKEN}x", "Bearer ", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}é"):
        assert (await guarded.get("/queues", authorization=wrong)).status == 403, wrong
    # A wrong token counts, even with a cookie.
    await guarded.post("/login", token=TOKEN)
    assert (await guarded.get("/queues", authorization="Bearer wrong")).status == 403


async def test_a_link_with_the_token_leads_to_the_page_without_it(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, token=TOKEN), base="/a", client=OTHERS, host="shop.example")
    entered = await visitor.get(f"/queues?q=a%26b&token={TOKEN}&done=x&token=other")
    assert entered.status == 403, "the last one counts"
    entered = await visitor.get(f"/queues?q=a%26b&token={TOKEN}&done=x")
    assert (entered.status, entered.headers["location"]) == (303, "/a/queues?q=a%26b")
    assert (await visitor.get("/queues?q=a%26b")).status == 200
    assert (await Visitor(Dashboard(jobs, token=TOKEN), client=OTHERS).get("/queues?token=wrong")).status == 403


@pytest.mark.parametrize(
    "path", ["/queues", "/queues/", "/nowhere", "/live", "/live/", "/login", "/jobs/x", "/acts/pause"]
)
@pytest.mark.parametrize("is_known", [False, True])
async def test_the_token_of_an_address_appears_in_no_answer(guarded: Visitor, path: str, is_known: bool) -> None:
    if is_known:
        await guarded.post("/login", token=TOKEN)
    answer = await guarded.get(f"{path}?token={TOKEN}&x=1")
    assert TOKEN not in f"{answer.headers}{answer.text}"


@pytest.mark.parametrize("token", ["", "with space", "line\nbreak", "é", "a" * 5_000])
def test_a_token_that_no_header_can_hold_is_refused(jobs: Client, token: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Dashboard(jobs, token=token)
    assert not token or token not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- elsewhere

ELSEWHERE = [
    *("//evil.example", "///evil.example", "http://evil.example/", "https:evil.example", "javascript:alert(1)"),
    *("\\\\evil.example", "/\\evil.example", "/queues\\..\\x", "/queues\r\nX-Evil: 1", "/queues\nSet-Cookie: a=b"),
    *("/\t/evil.example", "/queues\x00", "\u2028/queues", "queues", "", " ", "@evil.example", "/other"),
]


@pytest.mark.parametrize("back", ELSEWHERE)
@pytest.mark.parametrize("base", ["", "/a"])
async def test_an_act_leads_only_to_the_dashboard(jobs: Client, back: str, base: str) -> None:
    visitor = Visitor(Dashboard(jobs), base=base)
    answer = await visitor.post("/acts/pause", queue="mail", back=back)
    location = answer.headers["location"]
    assert answer.status == 303
    assert location.startswith(f"{base}/")
    assert not location.startswith("//")
    assert not set(location) & set("\r\n\t\\\x00")
    assert "x-evil" not in answer.headers
    assert "evil" not in location


@pytest.mark.parametrize("back", ["/queues?q=a%0D%0Ab#x", "/jobs/é日本", "/queues?x=//evil"])
async def test_an_act_leads_back_to_where_it_came_from(visitor: Visitor, back: str) -> None:
    answer = await visitor.post("/acts/pause", queue="mail", back=back)
    location = answer.headers["location"]
    assert location.startswith(quote(back.partition("#")[0], safe="/?=%"))
    assert location.isascii()


INJECTED = "%0d%0aX-Evil:%201%0d%0a%0d%0a<script>"


@pytest.mark.parametrize(
    "path",
    [
        f"/queues?token={INJECTED}",
        f"/queues?token={TOKEN}&{INJECTED}={INJECTED}",
        f"/jobs/{INJECTED}?token={TOKEN}&q={INJECTED}",
        f"/{INJECTED}",
        f"/acts/{INJECTED}",
        f"/static/{INJECTED}/app.js",
        f"/static/{asset_hash('app.js')}/{INJECTED}",
        f"/login?{INJECTED}",
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
async def test_line_breaks_reach_no_header(guarded: Visitor, path: str, is_known: bool) -> None:
    if is_known:
        await guarded.post("/login", token=TOKEN)
    for answer in (await guarded.get(path), await guarded.post(path)):
        assert "x-evil" not in answer.headers
        assert not any(set(value) & set("\r\n") for value in answer.headers.values())
        assert "<script>" not in answer.text.replace('<script src="', "")


async def test_what_acts_return_reaches_no_header(jobs: Client, visitor: Visitor) -> None:
    """The name of a new job is in the address of its page."""
    answer = await visitor.post("/acts/enqueue", name="a\r\nX-Evil:1", queue="b\r\nX-Evil:1")
    assert "x-evil" not in answer.headers
    assert not any(set(value) & set("\r\n") for value in answer.headers.values())


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../app.py", "/static/x/../../app.py", "/static/%2e%2e/app.py", "/static/x/..%2fapp.py"),
        *("/static//etc/passwd", "/static/x/%2fetc%2fpasswd", "/static/x/app.js%00", "/static/x/app.js"),
        f"/static/{asset_hash('app.js')}/../../app.py",
        f"/static/{asset_hash('app.js')}/htmx.LICENSE",
        f"/static/{asset_hash('app.js')}/jobmill.css",
        *("/templates/base.html", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/login/../static/app.js"),
    ],
)
async def test_no_path_leads_to_other_files(visitor: Visitor, path: str) -> None:
    answer = await visitor.get(path)
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "root:" not in answer.text
    assert "import " not in answer.text


# ---------------------------------------------------------------------------------------------------- large and broken


class Body:
    """A body in parts, which counts how much of it was read."""

    def __init__(self, *parts: bytes, repeat: int = 1, ends: bool = True) -> None:
        self._parts = list(parts) * repeat
        self._ends = ends
        self.read = 0

    async def __call__(self) -> dict[str, Any]:
        if not self._parts:
            return {"type": "http.disconnect"}
        part = self._parts.pop(0)
        self.read += len(part)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._ends}


async def send_body(visitor: Visitor, body: Any, path: str = "/acts/pause", **headers: str) -> int:
    """POST a body as it comes; the status."""
    sent: list[Any] = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        async def both(message: Any) -> None:
            sent.append(message)
            await send(message)

        await original(scope, body, both)

    original, visitor.app = visitor.app, app
    try:
        return (await visitor.send("POST", path, b"", {**SAME, **headers})).status
    finally:
        visitor.app = original


@pytest.mark.parametrize("path", ["/acts/pause", "/login"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json", "text/plain"])
async def test_a_form_that_is_too_long_is_not_read_to_its_end(jobs: Client, path: str, kind: str) -> None:
    visitor = Visitor(Dashboard(jobs, token=TOKEN), authorization=f"Bearer {TOKEN}")
    body = Body(b"x" * 65_536, repeat=1_000)
    assert await send_body(visitor, body, path, **{"content-type": kind}) == 400
    assert body.read <= MAX_BODY + 65_536
    assert not await is_paused(jobs)


async def test_a_stranger_makes_nobody_read_a_form(jobs: Client) -> None:
    for visitor in (Visitor(Dashboard(jobs, token=TOKEN)), Visitor(Dashboard(jobs), client=OTHERS)):
        body = Body(b"x" * 65_536, repeat=10)
        assert await send_body(visitor, body) == 403
        assert body.read == 0


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json"])
async def test_a_form_that_ends_early_is_no_failure(
    jobs: Client, visitor: Visitor, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = Body(b"queue=mail", ends=False)
    assert await send_body(visitor, body, **{"content-type": kind}) == 400
    assert (await is_paused(jobs), caplog.text) == (False, "")


async def test_a_form_has_a_deadline(jobs: Client, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.dashboard.view._BODY_S", 0.01)

    async def never() -> Any:
        await asyncio.Event().wait()

    assert await send_body(visitor, never) == 408
    assert not await is_paused(jobs)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"&".join(b"a%d=1" % n for n in range(10_001)) + b"&queue=mail", "application/x-www-form-urlencoded"),
        (b"queue=\xff\xfe", "application/x-www-form-urlencoded"),
        (b"queue=%ff%fe", "application/x-www-form-urlencoded"),
        (b"queue=mail%00", "application/x-www-form-urlencoded"),
        (b'{"queue": "\xff"}', "application/json"),
        (b'{"queue": "\\ud800"}', "application/json"),
        (b'{"queue": ', "application/json"),
        (b'["queue"]', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"queue": ' + b"[" * 100_000, "application/json"),
        (b"", "application/json"),
        (b"", "application/x-www-form-urlencoded"),
    ],
    ids=lambda value: str(value[:20]),
)
async def test_what_is_no_form_is_refused_with_a_sentence(
    jobs: Client, visitor: Visitor, body: bytes, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await visitor.send(
        "POST", "/acts/pause", body, {**SAME, "content-type": kind, "accept": "application/json"}
    )
    assert (answer.status, answer.json["title"]) == (400, "This cannot be read")
    assert (await is_paused(jobs), caplog.text) == (False, "")


async def test_ten_thousand_fields_are_read(jobs: Client, visitor: Visitor) -> None:
    body = b"&".join(b"a%d=1" % n for n in range(9_999)) + b"&queue=mail"
    answer = await visitor.send("POST", "/acts/pause", body, SAME)
    assert (answer.status, await is_paused(jobs)) == (303, True)


@pytest.mark.parametrize(
    "cookie", ["../../etc/passwd", "/etc/passwd", "America", "x\x00", "a" * 5_000, "<script>", "é"]
)
async def test_a_zone_that_is_none_is_utc(jobs: Client, visitor: Visitor, cookie: str) -> None:
    await jobs.enqueue("send")
    visitor.cookies["jobmill_zone"] = cookie
    page = await visitor.get("/queues")
    assert (page.status, "times in UTC" in page.words) == (200, True)


async def test_addresses_that_are_no_utf_8_are_no_failure(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    for address in ("/jobs/%ff%fe", "/queues?q=%ff&state=%00", "/%ff", "/jobs/" + "a" * 10_000, "/jobs/%00"):
        assert (await visitor.get(address)).status in (200, 400, 404), address
    assert caplog.text == ""


# ---------------------------------------------------------------------------------------------------- read only


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def stored(file: Path) -> AsyncIterator[tuple[Client, dict[str, str]]]:
    """Jobs in a file, whose whole content can be compared."""
    async with jobmill.connect(f"sqlite:///{file}") as client:
        yield client, await fill(client)


def dump(file: Path) -> list[str]:
    """All that the store holds."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return list(database.iterdump())


def forms(known: dict[str, str]) -> list[dict[str, Any]]:
    """Fields with which acts would do something."""
    shared = {
        "queue": known["queue"],
        "name": "send",
        "payload": "{}",
        "note": "x",
        "who": "eve",
        "back": "/queues",
        "running_limit": "1",
        "rate_count": "1",
        "rate_per": "1s",
        "priority": "9",
        "delay": "1h",
        "spread": "0s",
        "worker": known["worker"],
        "cron": "0 0 * * *",
        "every": "1h",
        "timezone": "UTC",
        "key": "k",
        "confirm": "1",
        "q": "",
        "state": "all",
        "all": "1",
        "until": "1h",
        "due_at": "2030-01-01T00:00",
        "count": "5",
        "sure": "1",
        "lane": known["queue"],
        "running": "7",
        "strict": "yes",
    }
    ids = [known[one] for one in ("failed", "succeeded", "waiting", "held", "recurring")]
    return [{**shared, "id": id} for id in ids] + [{**shared, "id": ids, "ids": ids}]


async def test_the_forms_would_change_something(stored: tuple[Client, dict[str, str]], file: Path) -> None:
    """So that the next tests can fail."""
    client, known = stored
    for form in forms(known)[:1]:
        before = dump(file)
        await Visitor(Dashboard(client)).post("/acts/limit", **form)
        assert dump(file) != before


def readers(client: Client) -> dict[str, Visitor]:
    return {
        "read-only": Visitor(Dashboard(client, read_only=True)),
        "read-only with a token": Visitor(
            Dashboard(client, read_only=True, token=TOKEN), authorization=f"Bearer {TOKEN}"
        ),
        "read-only for all": Visitor(Dashboard(client, read_only=True, authorize=lambda _: Access.ALL)),
        "reader": Visitor(Dashboard(client, authorize=lambda _: Access.READ)),
        "nothing": Visitor(Dashboard(client, authorize=lambda _: Access())),
        "refused": Visitor(Dashboard(client, authorize=lambda _: None)),
    }


@pytest.mark.parametrize("name", ACTS)
async def test_who_only_reads_changes_nothing(
    stored: tuple[Client, dict[str, str]], file: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, known = stored
    before = dump(file)
    for who, visitor in readers(client).items():
        for form in forms(known):
            answers = [
                await visitor.post(f"/acts/{name}", **form),
                await visitor.post(f"/acts/{name}", {"accept": "application/json"}, **form),
                await visitor.post(f"/acts/{name}?read_only=0", **form),
                await visitor.get(f"/acts/{name}?id={quote(known['failed'])}"),
            ]
            assert all(answer.status in (403, 404, 405) for answer in answers), (who, answers)
    assert dump(file) == before


@pytest.mark.parametrize("name", ACTS)
def test_every_act_needs_a_permission_that_readers_lack(name: str) -> None:
    assert ACTS[name][0] in {*ACTIONS, None} - {"see_payload"}


@pytest.mark.slow
async def test_no_page_changes_anything(stored: tuple[Client, dict[str, str]], file: Path) -> None:
    client, known = stored
    before = dump(file)
    for visitor in (Visitor(Dashboard(client)), *readers(client).values()):
        for address in [*addresses(known), "/live", "/login", "/nowhere"]:
            for method in ("GET", "HEAD"):
                assert (await visitor.send(method, address)).status < 500, address
    assert dump(file) == before


@pytest.mark.slow
async def test_a_read_only_dashboard_offers_no_act(stored: tuple[Client, dict[str, str]]) -> None:
    client, known = stored
    all_acts, none = Visitor(Dashboard(client)), Visitor(Dashboard(client, read_only=True))
    offered = 0
    for address in addresses(known):
        offered += (await all_acts.get(address)).text.count('method="post"')
        page = await none.get(address)
        assert 'method="post"' not in page.text, address
    assert offered


# ---------------------------------------------------------------------------------------------------- authorize


async def entered(authorize: Callable[[Request], Any], jobs: Client) -> tuple[int, str]:
    answer = await Visitor(Dashboard(jobs, authorize=authorize), client=OTHERS, host="shop.example").get("/queues")
    check_headers(answer)
    return answer.status, answer.words


def _later(access: Any) -> Callable[[Request], Awaitable[Any]]:
    async def authorize(_: Request) -> Any:
        await asyncio.sleep(0)
        return access

    return authorize


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("access", "status"),
    [(Access.ALL, 200), (Access.READ, 200), (Access(), 200), (None, 403)]
    + [(nonsense, 500) for nonsense in (True, 1, "all", {"requeue"}, Access, object(), [Access.ALL])],
)
async def test_authorize_decides(
    jobs: Client, access: Any, status: int, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    authorize = _later(access) if is_async else lambda _: access
    assert (await entered(authorize, jobs))[0] == status
    assert ("authorize must return an Access or None" in caplog.text) is (status == 500)


@pytest.mark.parametrize("error", [RuntimeError("no database"), KeyError("user"), InvalidValue("a", "b", 1)])
async def test_an_error_of_authorize_lets_nobody_in(jobs: Client, error: Exception) -> None:
    await jobs.enqueue("send", queue="mail")

    def authorize(_: Request) -> Access:
        raise error

    status, words = await entered(authorize, jobs)
    assert status in (400, 500)
    assert "mail" not in words
    visitor = Visitor(Dashboard(jobs, authorize=authorize))
    assert (await visitor.post("/acts/pause", queue="mail")).status in (400, 500)
    assert not await is_paused(jobs)


async def test_authorize_may_send_visitors_to_a_login(jobs: Client) -> None:
    def authorize(_: Request) -> Access:
        raise HTTPException(303, headers={"Location": "/login-of-the-shop"})

    answer = await Visitor(Dashboard(jobs, authorize=authorize)).get("/queues")
    assert (answer.status, answer.headers["location"]) == (303, "/login-of-the-shop")


async def test_authorize_and_a_token_exclude_each_other(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="authorize or token, not both"):
        Dashboard(jobs, token=TOKEN, authorize=lambda _: Access.ALL)


async def test_this_machine_is_not_enough_where_authorize_decides(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, authorize=lambda _: None), client=LOCAL)
    assert (await visitor.get("/queues")).status == 403
    assert (await visitor.post("/acts/pause", queue="mail")).status == 403
