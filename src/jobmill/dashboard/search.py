"""The search of jobs: what a visitor writes into the field, as a filter and as chips.

`queue:mail name:send_* error:TimeoutError payload.to:"Ada L" tenant:acme since:1h`. Quotation marks are for texts with
spaces, and for texts that would mean something else: `payload.zip:12345` is a number, `payload.zip:"12345"` a text. A
word without a qualifier is an id, or the beginning of a name. The state is not a part of the text: it is chosen by tabs
and has its own query parameter, `state`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from jobmill.client.filters import make_filter
from jobmill.core import limits
from jobmill.core.durations import instant_ms, to_ms
from jobmill.core.job import FINAL, State
from jobmill.core.values import Filter
from jobmill.dashboard.view import NotAllowed, View, quoted
from jobmill.errors import InvalidValue

#: The tabs: the word in the URL and on the page, and what it adds to a filter.
TABS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "due": {"states": ("waiting",), "held": False, "due": "now"},
    "later": {"states": ("waiting",), "held": False, "due": "later"},
    "retrying": {"states": ("waiting",), "held": False, "errored": True},
    "held": {"states": ("waiting",), "held": True},
    "running": {"states": ("running",)},
    "succeeded": {"states": ("succeeded",)},
    "failed": {"states": ("failed",)},
    "cancelled": {"states": ("cancelled",)},
}

#: Qualifiers whose value is a text of a filter.
_TEXTS: Final = {
    "queue": "queue",
    "error": "error_type",
    "tenant": "tenant",
    "lane": "lane",
    "unique": "unique_key",
    "flow": "flow",
}
_KNOWN: Final = (*_TEXTS, "name", "since", "recurring", "state")
_PAYLOAD: Final = "payload."
_MAX_INTEGER: Final = 2**63 - 1

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_WORD: Final = re.compile(rf'(?:{_QUOTED}|[^\s"])+', re.DOTALL)
_QUALIFIER: Final = re.compile(rf'((?:{_QUOTED}|[^":])+):(.*)', re.DOTALL)
_QUOTED_PART: Final = re.compile(_QUOTED, re.DOTALL)


class Word(NamedTuple):
    """One word of a search: its qualifier, its value with quotation marks, and all of it as it was written."""

    qualifier: str
    value: str
    written: str

    @property
    def is_known(self) -> bool:
        """Whether it has a qualifier that means something."""
        return self.qualifier in _KNOWN or self.qualifier.startswith(_PAYLOAD)

    @property
    def plain(self) -> str:
        """The value without quotation marks."""
        return _unquoted(self.value)

    @property
    def text(self) -> str:
        """All of it without quotation marks."""
        return _unquoted(self.written)


class Search(Struct, frozen=True, kw_only=True):
    """What is searched: text and tab of the URL, the words as chips, and the filter within the visitor's rights.

    `q` is the chips with spaces between them, and means the same as what the visitor wrote.
    """

    q: str
    state: str
    chips: list[str]
    filter: Filter
    #: A word without a qualifier, which may be an id; as a filter it is the beginning of a name.
    id: str | None = None


def search_of(view: View, q: str, state: str | None) -> Search:
    """Read the text of a search and a tab; InvalidValue says what cannot be read."""
    made, chips, id = dict[str, Any](), dict[str, str](), None
    for word in words_of(q):
        field = word.qualifier or "name"
        if field in chips:
            raise InvalidValue("q", f"{field}: once", word.text, "all filters must match")
        chips[field] = _read(view, word, made)
        if not word.qualifier and not word.value.endswith("*"):
            id = word.text
    chips.pop("state", None)
    tab, since_ms = made.pop("state", state or "all"), made.pop("since", None)
    if tab not in TABS:
        raise InvalidValue("state", "one of " + ", ".join(TABS), tab)
    wanted = _with_tab(make_filter(made), tab, view.now_ms, since_ms)
    shown = list(chips.values())
    return Search(q=" ".join(shown), state=tab, chips=shown, filter=view.limited(wanted), id=id)


def words_of(q: str) -> list[Word]:
    """The words of a search."""
    if limits.storable(q) != q:
        raise InvalidValue("q", "a text of UTF-8 without NUL", q)
    words, at = list[Word](), 0
    while at < len(q):
        if q[at].isspace():
            at += 1
            continue
        found = _WORD.match(q, at)
        end = at if found is None else found.end()
        if found is None or q[end : end + 1] == '"':
            raise InvalidValue("q", "words and filters, with quotation marks in pairs", q)
        parts = _QUALIFIER.fullmatch(found[0])
        qualifier, value = ("", found[0]) if parts is None else (_unquoted(parts[1]), parts[2])
        words.append(Word(qualifier, value, found[0]))
        at = end
    return words


def possible_id(q: str) -> str | None:
    """The word of a search that may be an id: one without a qualifier. Ids of BullMQ look like one with: mail:12."""
    return next((word.text for word in words_of(q) if not word.is_known and not word.value.endswith("*")), None)


def with_words(q: str, more: str) -> str:
    """A search with more words. They replace words with the same qualifier, because each can be given once."""
    added = words_of(more)
    replaced = {word.qualifier or "name" for word in added}
    kept = [word for word in words_of(q) if (word.qualifier or "name") not in replaced]
    return " ".join(word.written for word in (*kept, *added))


def whole_second(now_ms: int) -> int:
    """The end of this second: tabs that look at about the same time send the same query, which is then shared."""
    return -(-now_ms // 1_000) * 1_000


# ---------------------------------------------------------------------------------------------------- values


def _read(view: View, word: Word, made: dict[str, Any]) -> str:
    """Add a word to what a filter is made of; its chip."""
    field = word.qualifier
    if not field:
        return _read_name(word.value.removesuffix("*") + "*", made)
    if not word.is_known:
        raise InvalidValue("q", f"filters such as {_known_text()}", f"{field}:")
    if not word.value:
        raise InvalidValue(field, "a value after the colon, without a space", "nothing")
    if field == "name":
        return _read_name(word.value, made)
    if field.startswith(_PAYLOAD):
        return _read_payload(view, word, made)
    if field == "since":
        made[field] = _since_ms(view, word.plain)
    elif field == "recurring":
        made[field] = _yes_or_no(word.plain)
    else:
        made[_TEXTS.get(field, field)] = _not_empty(field, word.plain)
    return f"{field}:{quoted(word.plain)}"


def _read_name(value: str, made: dict[str, Any]) -> str:
    """Set the name, or its beginning if a * follows; the chip."""
    is_prefix = value.endswith("*")
    value = value.removesuffix("*")
    if "*" in _QUOTED_PART.sub("", value):
        raise InvalidValue("name", "a name, or its beginning and one *", value, "write other * in quotation marks")
    name = _unquoted(value)
    made["name_prefix" if is_prefix else "name"] = name if is_prefix else _not_empty("name", name)
    text = quoted(name, "*" in name) if name else ""
    return f"name:{text}*" if is_prefix else f"name:{text}"


def _read_payload(view: View, word: Word, made: dict[str, Any]) -> str:
    """Set a field of the payload; the chip."""
    field = word.qualifier.removeprefix(_PAYLOAD)
    if view.payload({field: True}) != {field: True}:
        # Otherwise a hidden value could be found by trying.
        raise NotAllowed(f"you may not search by payload.{field}: its values are hidden")
    text = word.plain
    json, is_json = _json(text)
    is_text = '"' in word.value or not is_json
    if not is_text and isinstance(json, int) and abs(json) > _MAX_INTEGER:
        raise InvalidValue(f"payload.{field}", "an integer of 64 bits, or a text in quotation marks", text)
    made.setdefault("payload", {})[field] = text if is_text else json
    return f"{_PAYLOAD}{quoted(field, ':' in field)}:{quoted(text, is_text and is_json)}"


def _json(text: str) -> tuple[Any, bool]:
    """A number, true, false or null, and whether the text is one of them."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None, False
    return value, value is None or isinstance(value, bool | int | float)


def _since_ms(view: View, text: str) -> int:
    """How long ago, or a date or a time in the zone of the visitor."""
    try:
        return max(0, whole_second(view.now_ms) - to_ms(text, "since"))
    except InvalidValue:
        pass
    try:
        at = datetime.fromisoformat(text)
        return instant_ms(at if at.tzinfo is not None else at.replace(tzinfo=view.zone), "since")
    except (ValueError, OverflowError):
        raise InvalidValue("since", "how long ago, such as 1h, or a date, such as 2026-11-16", text) from None


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidValue("recurring", "yes or no", text)
    return text == "yes"


def _not_empty(field: str, text: str) -> str:
    if not text:
        raise InvalidValue(field, "a text", "nothing")
    return text


def _with_tab(wanted: Filter, tab: str, now_ms: int, since_ms: int | None) -> Filter:
    given = TABS[tab]
    states: tuple[State, ...] | None = given.get("states")
    times: dict[str, int | None] = {}
    if given.get("due") == "now":
        times["due_before_ms"] = whole_second(now_ms) + 1
    elif given.get("due") == "later":
        # Still to come when the store reads: it then knows that jobs that are due now do not match.
        times["due_after_ms"] = whole_second(now_ms + 50) + 1
    times["finished_after_ms" if tab in FINAL else "created_after_ms"] = since_ms
    return structs.replace(wanted, states=states, held=given.get("held"), errored=given.get("errored"), **times)


# ---------------------------------------------------------------------------------------------------- quotation


def _unquoted(text: str) -> str:
    return _QUOTED_PART.sub(lambda part: re.sub(r"\\(.)", r"\1", part[0][1:-1], flags=re.DOTALL), text)


def _known_text() -> str:
    return ", ".join(f"{one}:" for one in (*_KNOWN, f"{_PAYLOAD}FIELD"))
