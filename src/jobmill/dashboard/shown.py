"""Numbers, durations, times and JSON as the pages show them."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from typing import Any, Final

from markupsafe import Markup, escape

from jobmill.core.durations import shown_ms, to_datetime
from jobmill.core.values import DEPTH_LIMIT, RateLimit

HIDDEN: Final = "•••• hidden"
#: Windows of a rate that a form offers, in words.
WINDOWS: Final = {"1s": "a second", "1m": "a minute", "1h": "an hour"}
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# JavaScript cannot hold larger integers exactly: as text they stay what they are.
_MAX_SAFE: Final = 2**53 - 1


def number(value: float) -> str:
    """A number with commas."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def count(value: int, limit: int = DEPTH_LIMIT) -> str:
    """A count that stops at a limit: "10,000+"."""
    return f"{value:,}+" if value >= limit else f"{value:,}"


def duration(ms: float | None) -> str:
    """A duration in at most two units: "38 ms", "1.2 s", "4 min 12 s", "3 d 04 h"; "–" without one."""
    if ms is None:
        return "–"
    ms = max(0.0, ms)
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 10 * _SECOND:
        return f"{int(ms / 100) / 10:.1f} s"
    whole = int(ms)
    if ms < _MINUTE:
        return f"{whole // _SECOND} s"
    if ms < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE // _SECOND:02} s"
    if ms < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02} h"


def rate(limit: RateLimit) -> str:
    """A rate in words: "30 a minute", "5 in 1m30s"."""
    return f"{limit.count:,} {per(limit)}"


def per(limit: RateLimit) -> str:
    """The window of a rate in words: "a minute", "in 1m30s"."""
    window = shown_ms(limit.per_ms)
    return WINDOWS.get(window, f"in {window}")


def size(number: float) -> str:
    """A number of bytes: "812 B", "48.2 MB", "4.8 GB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.95 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.0f} B" if units[0] == "B" else f"{number:.1f} {units[0]}"


def short_id(id: str) -> str:
    """The end of a long id, which differs most."""
    return id if len(id) <= 12 else f"…{id[-8:]}"


def clock_text(ms: int, now_ms: int, zone: tzinfo) -> str:
    """A time: "14:05:08" today, "12 Nov 17:20" on other days, with the year in other years."""
    at, now = to_datetime(ms).astimezone(zone), to_datetime(now_ms).astimezone(zone)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    if at.year == now.year:
        return f"{at.day} {at:%b %H:%M}"
    return f"{at.day} {at:%b %Y %H:%M}"


def minute_text(ms: int, now_ms: int, zone: tzinfo) -> str:
    """A minute: "14:05" today, "12 Nov 17:20" on other days."""
    at = to_datetime(ms).astimezone(zone)
    is_today = at.date() == to_datetime(now_ms).astimezone(zone).date()
    return f"{at:%H:%M}" if is_today else f"{at.day} {at:%b %H:%M}"


def time_element(ms: int, text: str, zone: tzinfo) -> Markup:
    """A time that shows its exact value on hover."""
    at = to_datetime(ms)
    exact = _exact(at.astimezone(zone))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", exact, text)


def _exact(at: datetime) -> str:
    return f"{at:%a} {at.day} {at:%b %Y %H:%M:%S}.{at.microsecond // 1000:03} {at:%Z}"


def json_element(value: Any) -> Markup:
    """JSON with keys, texts and numbers marked."""
    return _marked(value, "")


def _marked(value: Any, indent: str) -> Markup:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        fields = [
            Markup('{}<span class="k">{}</span>: {}').format(deeper, _text(key), _marked(one, deeper))
            for key, one in value.items()
        ]
        return Markup("{{\n{}\n{}}}").format(Markup(",\n").join(fields), indent)
    if isinstance(value, list) and value:
        if all(not isinstance(one, dict | list) for one in value) and len(value) <= 8:
            return Markup("[{}]").format(Markup(", ").join(_marked(one, deeper) for one in value))
        parts = [Markup("{}{}").format(deeper, _marked(one, deeper)) for one in value]
        return Markup("[\n{}\n{}]").format(Markup(",\n").join(parts), indent)
    if isinstance(value, str):
        return Markup('<span class="s">{}</span>').format(_text(value))
    return Markup('<span class="n">{}</span>').format(json.dumps(value, ensure_ascii=False))


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def exact_integers(value: Any) -> Any:
    """The same value with integers as texts where JavaScript would change them."""
    if isinstance(value, dict):
        return {key: exact_integers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact_integers(one) for one in value]
    is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX_SAFE
    return str(value) if is_large else value


def lines(text: str) -> Markup:
    """A text with its line breaks."""
    return Markup("<br>").join(escape(line) for line in text.splitlines())


def sentence(text: str) -> str:
    """A text as a sentence: with a capital letter and a period."""
    return text if not text else f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def traceback_element(text: str) -> Markup:
    """A traceback whose places and whose error are marked."""
    all_lines = text.rstrip().splitlines()
    last = max((index for index, line in enumerate(all_lines) if line and not line.startswith(" ")), default=-1)
    marked = [
        Markup('<span class="x">{}</span>').format(line)
        if index == last
        else Markup('<span class="k">{}</span>').format(line)
        if line.startswith("  File ")
        else escape(line)
        for index, line in enumerate(all_lines)
    ]
    return Markup("\n").join(marked)
