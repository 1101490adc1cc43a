from __future__ import annotations

import hmac
from typing import Any

import pytest

import jobmill
from jobmill.http import TickEndpoint
from jobmill.http.auth import is_loopback
from tests.http.requests import Heard, ask, bearing

pytestmark = pytest.mark.stores("memory")

TOKEN = "s3cret-~+/=!"


@pytest.fixture
def jobs() -> jobmill.Client:
    return jobmill.connect("memory://")


@pytest.fixture
def guarded(jobs: jobmill.Client) -> TickEndpoint:
    return TickEndpoint(jobs, token=TOKEN)


# ---------------------------------------------------------------------------------------------------- with a token


@pytest.mark.parametrize(
    "value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}", f"  Bearer   {TOKEN} ", f"bEaReR \t{TOKEN}"]
)
async def test_requests_with_the_token_are_accepted_from_every_address(guarded: TickEndpoint, value: str) -> None:
    for client in (("203.0.113.9", 1), ("127.0.0.1", 1), None):
        assert (await ask(guarded, client=client, headers=bearing(value))).status == 200


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["Bearer wrong"],
        [f"Bearer {TOKEN}x"],
        [f"Bearer {TOKEN[:-1]}"],
        [f"Bearer {TOKEN.upper()}"],
        [f"Bearer {TOKEN} {TOKEN}"],
        [f"Bearer {TOKEN},"],
        [f"Bearer{TOKEN}"],
        [f"Basic {TOKEN}"],
        [f"Token {TOKEN}"],
        [TOKEN],
        [f'Bearer "{TOKEN}"'],
        ["Bearer s3crét-~+/=!"],
        [b"Bearer \xff\xfe\x00"],
        [b"\xc3\xa9 " + TOKEN.encode()],
        # Two headers are ambiguous.
        [f"Bearer {TOKEN}", f"Bearer {TOKEN}"],
        ["Bearer wrong", f"Bearer {TOKEN}"],
    ],
)
async def test_requests_without_the_token_are_refused(guarded: TickEndpoint, values: list[str | bytes]) -> None:
    heard = await ask(guarded, headers=bearing(*values))
    assert (heard.status, heard.headers["www-authenticate"]) == (401, "Bearer")
    assert heard.error == "expected Authorization: Bearer with the token"


async def test_the_token_is_read_only_from_the_authorization_header(guarded: TickEndpoint) -> None:
    headers = [(b"x-authorization", f"Bearer {TOKEN}".encode()), (b"cookie", f"token={TOKEN}".encode())]
    assert (await ask(guarded, headers=headers, query_string=f"token={TOKEN}".encode())).status == 401


async def test_no_job_runs_without_the_token(guarded: TickEndpoint, jobs: jobmill.Client) -> None:
    @jobs.handler()
    async def good() -> None: ...

    enqueued = await good.enqueue()
    await ask(guarded)
    assert (await enqueued.job()).state == "waiting"
    assert (await ask(guarded, headers=bearing(f"Bearer {TOKEN}"))).body["succeeded"] == 1


async def test_tokens_are_compared_in_constant_time(guarded: TickEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def compare_digest(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    assert (await ask(guarded, headers=bearing("Bearer wrong"))).status == 401
    assert compared == [(b"wrong", TOKEN.encode())]


@pytest.mark.parametrize(
    ("token", "got"),
    [
        ("", "''"),
        ("two words", "'9 characters, too many or invalid ones'"),
        ("line\n", "'5 characters, too many or invalid ones'"),
        ("clé", "'3 characters, too many or invalid ones'"),
        ("x" * 5000, "'5000 characters, too many or invalid ones'"),
        (b"bytes", "<class 'bytes'>"),
    ],
)
def test_an_invalid_token_is_refused_without_being_shown(jobs: jobmill.Client, token: Any, got: str) -> None:
    with pytest.raises(jobmill.InvalidValue) as refused:
        TickEndpoint(jobs, token=token)
    assert str(refused.value) == f"token: expected 1 to 4096 visible ASCII characters without spaces, got {got}"


# ---------------------------------------------------------------------------------------------------- without a token


async def from_peer(jobs: jobmill.Client, client: Any, *headers: tuple[bytes, bytes], **said: Any) -> Heard:
    return await ask(TickEndpoint(jobs), client=client, headers=list(headers), **said)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "127.255.255.254", "::1", "::ffff:127.0.0.1"])
async def test_local_requests_are_accepted(jobs: jobmill.Client, host: str) -> None:
    assert is_loopback(host)
    assert (await from_peer(jobs, (host, 50000))).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("203.0.113.9", "10.0.0.1", "0.0.0.0", "128.0.0.1"),
        *("::", "::2", "fe80::1%lo", "::ffff:10.0.0.1", "::127.0.0.1"),
        *("localhost", "testclient", "127.0.0.1.example.com", "127.1", "0127.0.0.1", ""),
    ],
)
async def test_other_addresses_are_refused(jobs: jobmill.Client, host: str) -> None:
    heard = await from_peer(jobs, (host, 50000))
    assert heard.status == 403
    assert heard.error.startswith("without a token only programs on this machine may send requests")
    assert heard.error.endswith("configure a token")


@pytest.mark.parametrize("server", [("127.0.0.1", 8000), ("/run/shop.sock", None), None])
async def test_a_peer_without_an_address_is_refused(jobs: jobmill.Client, server: Any) -> None:
    assert (await from_peer(jobs, None, server=server)).status == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-forwarded-for", b"127.0.0.1"),
        (b"x-forwarded-for", b"203.0.113.9"),
        (b"X-Forwarded-For", b"127.0.0.1"),
        (b"x-forwarded-proto", b"https"),
        (b"forwarded", b"for=127.0.0.1"),
        (b"x-real-ip", b"127.0.0.1"),
        (b"via", b"1.1 proxy"),
        (b"origin", b"https://evil.example"),
        (b"origin", b"null"),
    ],
)
async def test_forwarded_requests_are_refused_even_from_a_local_proxy(
    jobs: jobmill.Client, name: bytes, value: bytes
) -> None:
    # A proxy on this machine, a server that believes the header and took the peer from it, or a page in a browser.
    assert (await from_peer(jobs, ("127.0.0.1", 50000), (name, value))).status == 403


@pytest.mark.parametrize("name", [b"x-forwarded-for", b"forwarded", b"x-real-ip"])
async def test_a_header_cannot_make_a_request_local(jobs: jobmill.Client, name: bytes) -> None:
    assert (await from_peer(jobs, ("203.0.113.9", 1), (name, b"127.0.0.1"))).status == 403


async def test_forwarded_requests_with_the_token_are_accepted(guarded: TickEndpoint) -> None:
    headers = [*bearing(f"Bearer {TOKEN}"), (b"x-forwarded-for", b"203.0.113.9"), (b"origin", b"https://shop.example")]
    assert (await ask(guarded, headers=headers)).status == 200
