"""The search of jobs: text to filter and chips, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from starlette.requests import Request

import jobmill
from jobmill import Dashboard
from jobmill.core.values import Filter
from jobmill.dashboard import Access
from jobmill.dashboard.search import TABS, possible_id, search_of, with_words
from jobmill.dashboard.view import NotAllowed, View, search_text
from jobmill.errors import InvalidValue
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock

NOW_MS = 1_700_000_000_000


def view_of(access: Access = Access.ALL, *, redact: tuple[str, ...] = (), zone: str | None = None) -> View:
    jobs = jobmill.connect(store=MemoryStore(clock=ManualClock(NOW_MS)))
    headers = [] if zone is None else [(b"cookie", f"jobmill_zone={zone}".encode())]
    request = Request({"type": "http", "method": "GET", "path": "/jobs", "query_string": b"", "headers": headers})
    return View(request, Dashboard(jobs, redact=redact), access)


def filter_of(q: str, state: str | None = None) -> Filter:
    return search_of(view_of(), q, state).filter


@pytest.mark.parametrize(
    ("q", "wanted"),
    [
        ("", Filter()),
        ("queue:mail", Filter(queue="mail")),
        ("name:send_email", Filter(name="send_email")),
        ("name:send_*", Filter(name_prefix="send_")),
        ('name:"send_*"', Filter(name="send_*")),
        ('name:"a*b"*', Filter(name_prefix="a*b")),
        ("send", Filter(name_prefix="send")),
        ("send_*", Filter(name_prefix="send_")),
        ('"queue:mail"', Filter(name_prefix="queue:mail")),
        ("error:app.errors.Timeout", Filter(error_type="app.errors.Timeout")),
        ("tenant:acme unique:order-7", Filter(tenant="acme", unique_key="order-7")),
        ('tenant:"Acme & Sons"', Filter(tenant="Acme & Sons")),
        ('lane:"<b> / ? #" queue:mail', Filter(lane="<b> / ? #", queue="mail")),
        ("unique:a:b:c", Filter(unique_key="a:b:c")),
        ("tenant:O'Brien", Filter(tenant="O'Brien")),
        ("unique:C:\\temp", Filter(unique_key="C:\\temp")),
        ("recurring:yes", Filter(recurring=True)),
        ("recurring:no", Filter(recurring=False)),
        ("payload.order_id:48213", Filter(payload={"order_id": 48213})),
        ('payload.order_id:"48213"', Filter(payload={"order_id": "48213"})),
        ("payload.zip:01234", Filter(payload={"zip": "01234"})),
        ("payload.price:1.50 payload.n:-3", Filter(payload={"price": 1.5, "n": -3})),
        ("payload.a:true payload.b:false payload.c:null", Filter(payload={"a": True, "b": False, "c": None})),
        ('payload.a:"true" payload.b:"null"', Filter(payload={"a": "true", "b": "null"})),
        ("payload.to:ada", Filter(payload={"to": "ada"})),
        ('payload.to:"Ada \\"L\\" \\\\ x"', Filter(payload={"to": 'Ada "L" \\ x'})),
        ('payload.to:""', Filter(payload={"to": ""})),
        ('payload."my field":x', Filter(payload={"my field": "x"})),
        ('payload."a:b":1', Filter(payload={"a:b": 1})),
        ("payload.list:[1]", Filter(payload={"list": "[1]"})),
        ("payload.url:http://x/?a=b", Filter(payload={"url": "http://x/?a=b"})),
        ("payload.n:1e999", Filter(payload={"n": "1e999"})),
        ("  queue:mail \n name:a ", Filter(queue="mail", name="a")),
    ],
)
def test_a_text_is_a_filter(q: str, wanted: Filter) -> None:
    found = filter_of(q)
    assert found == wanted
    # To Python, True equals 1.
    assert repr(found.payload) == repr(wanted.payload)
    assert repr(filter_of(search_of(view_of(), q, None).q)) == repr(found)


@pytest.mark.parametrize(
    ("q", "part"),
    [
        ("queu:mail", "filters such as queue:, error:, tenant:"),
        ('queue:"mail', "quotation marks in pairs"),
        ('a"b', "quotation marks in pairs"),
        ("queue:", "a value after the colon"),
        ("queue: mail", "a value after the colon"),
        ('queue:""', "a text"),
        ("queue:a queue:b", "queue: once"),
        ("name:a b", "name: once"),
        ("a b", "name: once"),
        ("payload.a:1 payload.a:2", "payload.a: once"),
        ("name:*_mail", "its beginning and one *"),
        ("name:a*b*", "its beginning and one *"),
        ("since:yesterday", "how long ago, such as 1h, or a date"),
        ("since:1969-12-31", "how long ago, such as 1h, or a date"),
        ("recurring:maybe", "yes or no"),
        ("state:done", "one of all, due"),
        ("payload.n:123456789012345678901", "an integer of 64 bits"),
        ("unique:a\x00b", "without NUL"),
        ("unique:\ud800", "without NUL"),
    ],
)
def test_what_cannot_be_read_is_named(q: str, part: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        search_of(view_of(), q, None)
    assert part in str(raised.value)


def test_since_is_about_the_end_of_final_jobs_and_the_beginning_of_others() -> None:
    hour_ago = NOW_MS - 3_600_000
    for tab in TABS:
        found = filter_of("since:1h", tab)
        is_final = tab in ("succeeded", "failed", "cancelled")
        assert (found.finished_after_ms, found.created_after_ms) == ((hour_ago, None) if is_final else (None, hour_ago))


def test_a_date_is_one_of_the_zone_of_the_visitor() -> None:
    def since(q: str, zone: str | None) -> int | None:
        return search_of(view_of(zone=zone), q, "all").filter.created_after_ms

    day = datetime(2026, 11, 16, tzinfo=UTC)
    assert since("since:2026-11-16", None) == day.timestamp() * 1000
    assert since("since:2026-11-16", "Europe/Berlin") == (day.timestamp() - 3_600) * 1000
    assert since("since:2026-11-16T14:05", None) == (day.timestamp() + 14 * 3_600 + 300) * 1000
    assert since("since:2026-11-16T14:05Z", "Europe/Berlin") == (day.timestamp() + 14 * 3_600 + 300) * 1000


def test_tabs() -> None:
    assert filter_of("", "due") == Filter(states=("waiting",), held=False, due_before_ms=NOW_MS + 1)
    assert filter_of("", "later") == Filter(states=("waiting",), held=False, due_after_ms=NOW_MS + 1_001)
    assert filter_of("", "retrying") == Filter(states=("waiting",), held=False, errored=True)
    assert filter_of("", "held") == Filter(states=("waiting",), held=True)
    assert filter_of("", "failed") == Filter(states=("failed",))
    with pytest.raises(InvalidValue, match="state"):
        filter_of("", "done")


def test_a_state_that_is_written_is_the_tab() -> None:
    search = search_of(view_of(), "queue:mail state:failed", None)
    assert (search.state, search.q, search.chips) == ("failed", "queue:mail", ["queue:mail"])


def test_tabs_of_the_same_second_ask_for_the_same() -> None:
    clock = ManualClock(NOW_MS + 1)
    jobs = jobmill.connect(store=MemoryStore(clock=clock))
    request = Request({"type": "http", "method": "GET", "path": "/jobs", "query_string": b"", "headers": []})
    view = View(request, Dashboard(jobs), Access.ALL)
    first = [search_of(view, "since:1h", tab) for tab in TABS]
    clock.advance(0.9)
    assert [search_of(view, "since:1h", tab) for tab in TABS] == first


def test_chips_keep_their_order_and_quote_what_needs_it() -> None:
    search = search_of(view_of(), ' payload.to:"Ada L"  send "queue":"mail" payload.n:"7" unique:"x" ', None)
    assert search.chips == ['payload.to:"Ada L"', "name:send*", "queue:mail", 'payload.n:"7"', "unique:x"]
    assert search.q == " ".join(search.chips)
    assert search.id == "send"


def test_more_words_replace_those_of_the_same_kind() -> None:
    assert with_words("queue:mail since:1h", "queue:sms") == "since:1h queue:sms"
    assert with_words("name:a", "b") == "b"
    assert with_words('payload."a b":1 payload.c:2', 'payload."a b":"x y"') == 'payload.c:2 payload."a b":"x y"'
    assert with_words("queue:mail", "") == "queue:mail"


def test_which_word_may_be_an_id() -> None:
    assert possible_id("0193-abc") == "0193-abc"
    assert possible_id("queue:mail 0193-abc") == "0193-abc"
    assert possible_id("mail:12") == "mail:12"  # as BullMQ's jobs have it
    assert possible_id('"my id"') == "my id"
    assert possible_id("queue:mail since:1h payload.x:1 send_*") is None


# ---------------------------------------------------------------------------------------------------- round trip

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=12)
odd_texts = st.one_of(
    texts, st.text('ab"\\ *:.\t', min_size=1, max_size=8), st.sampled_from(["1", "null", "1e5", "-0"])
)
numbers = st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
values = st.one_of(odd_texts, st.just(""), numbers, st.booleans(), st.none())


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(value: Any) -> str:
    """A value of a payload as a careful person writes it."""
    return quoted(value) if isinstance(value, str) else json.dumps(value)


# The first text of a process takes a second: Hypothesis collects its characters.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "queue": odd_texts,
            "error_type": odd_texts,
            "tenant": odd_texts,
            "unique_key": odd_texts,
            "name": odd_texts,
            "recurring": st.booleans(),
            "payload": st.dictionaries(odd_texts, values, min_size=1, max_size=3),
        },
    ),
    st.sampled_from(list(TABS)),
    st.randoms(),
)
def test_every_filter_can_be_written_and_its_chips_mean_the_same(wanted: dict[str, Any], tab: str, random: Any) -> None:
    qualifiers = {"queue": "queue", "error_type": "error", "tenant": "tenant", "unique_key": "unique", "name": "name"}
    words = [f"{qualifiers[key]}:{quoted(value)}" for key, value in wanted.items() if key in qualifiers]
    words += [f"payload.{quoted(field)}:{written(value)}" for field, value in wanted.get("payload", {}).items()]
    words += [f"recurring:{'yes' if wanted['recurring'] else 'no'}"] if "recurring" in wanted else []
    random.shuffle(words)
    view = view_of()
    search = search_of(view, "  ".join(words), tab)
    plain = structs.replace(search.filter, states=None, held=None, errored=None, due_after_ms=None, due_before_ms=None)
    assert repr(plain) == repr(Filter(**wanted)) or plain == Filter(**wanted)
    assert search_of(view, search.q, tab) == search
    assert repr(search_of(view, search.q, tab).filter) == repr(search.filter)
    for chip in search.chips:
        others = [one for one in search.chips if one != chip]
        assert search_of(view, " ".join(others), tab).chips == others
        assert search_of(view, chip, tab).chips == [chip]


@patient
@given(st.dictionaries(st.sampled_from(("queue", "tenant", "lane", "flow", "name")), odd_texts))
def test_a_link_to_a_search_means_what_it_was_made_of(wanted: dict[str, Any]) -> None:
    search = search_of(view_of(), search_text(wanted), None)
    assert search.filter == Filter(**wanted)
    assert search.q == search_text(wanted) or "*" in search.q


@patient
@given(st.one_of(st.text(max_size=30), st.text('qn:*." \\payload12', max_size=30)), st.sampled_from(list(TABS)))
def test_any_text_is_refused_or_is_the_same_search_as_its_chips(q: str, tab: str) -> None:
    view = view_of()
    try:
        search = search_of(view, q, tab)
    except InvalidValue:
        return
    again = search_of(view, search.q, search.state)
    assert (again.q, again.chips, repr(again.filter)) == (search.q, search.chips, repr(search.filter))


# ---------------------------------------------------------------------------------------------------- rights


def test_who_may_not_see_payloads_may_not_search_them() -> None:
    view = view_of(Access({"requeue"}))
    with pytest.raises(NotAllowed, match="its values are hidden"):
        search_of(view, "payload.to:ada", None)
    with pytest.raises(NotAllowed, match="its values are hidden"):
        search_of(view, "payload.to:null", None)
    assert search_of(view, "queue:mail", None).filter.queue == "mail"


def test_fields_that_nobody_sees_cannot_be_searched_by_anybody() -> None:
    view = view_of(redact=("pass*",))
    with pytest.raises(NotAllowed, match=r"payload\.PassWord"):
        search_of(view, "payload.PassWord:hunter2", None)
    assert search_of(view, "payload.user:ada", None).filter.payload == {"user": "ada"}


def test_a_search_stays_within_the_tenants_of_the_visitor() -> None:
    view = view_of(Access({"see_payload"}, tenants={"acme", "beta"}))
    assert search_of(view, "", None).filter.tenant == "acme"
    assert search_of(view, "tenant:beta", None).filter.tenant == "beta"
    with pytest.raises(NotAllowed):
        search_of(view, "tenant:other", None)
