"""The fields of a form, with sentences for what cannot be read."""

from __future__ import annotations

from datetime import datetime, tzinfo

from jobmill.core.durations import to_ms
from jobmill.errors import InvalidValue


class Fields:
    """What a form brought."""

    def __init__(self, given: dict[str, list[str]]) -> None:
        self._given = given

    def all(self, name: str) -> list[str]:
        """All values of a field that may be given several times."""
        return self._given.get(name, [])

    def optional(self, name: str) -> str | None:
        """A text; None if the field is empty or missing."""
        return next(iter(self.all(name)), "").strip() or None

    def exact(self, name: str) -> str | None:
        """A text with the spaces around it, which belong to the name of a lane; None if the field is empty."""
        return next(iter(self.all(name)), "") or None

    def text(self, name: str) -> str:
        """A text that must be given."""
        value = self.optional(name)
        if value is None:
            raise InvalidValue(name, "a text", "nothing")
        return value

    def flag(self, name: str) -> bool:
        """A box that is ticked or not."""
        return self.optional(name) in ("1", "on", "true", "yes")

    def optional_int(self, name: str) -> int | None:
        """A whole number; None if the field is empty."""
        value = self.optional(name)
        if value is None:
            return None
        try:
            return int(value.replace(",", ""))
        except ValueError:
            raise InvalidValue(name, "a whole number, for example 2", value) from None

    def duration(self, name: str, default: str | None = None) -> str:
        """A duration such as 10m."""
        value = self.optional(name) or default
        if value is None:
            raise InvalidValue(name, "a duration, for example 10m", "nothing")
        to_ms(value, name)
        return value

    def instant_or_duration(self, name: str, zone: tzinfo) -> datetime | str | None:
        """A time such as 2026-11-16T15:00 in the zone of the visitor, or how long from now; None if empty."""
        value = self.optional(name)
        if value is None:
            return None
        return _time(value, zone) or self.duration(name)

    def instant(self, name: str, zone: tzinfo) -> datetime:
        """A time such as 2026-11-16T15:00 in the zone of the visitor."""
        value = self.optional(name)
        at = None if value is None else _time(value, zone)
        if at is None:
            raise InvalidValue(name, "a time, for example 2026-11-16T15:00", value or "nothing")
        return at


def _time(text: str, zone: tzinfo) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)


def whole_page(text: str | None) -> int:
    """The number of a page in a URL, from 1 on."""
    if text is None:
        return 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 10_000:
        raise InvalidValue("page", "a number from 1 on", text)
    return int(text[:9])
