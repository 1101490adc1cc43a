"""One request as a page sees it: who looks, at what time, in which zone, and how links are made."""

from __future__ import annotations

import asyncio
import re
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
from markupsafe import Markup
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.core.job import Job
from jobmill.core.values import Filter
from jobmill.dashboard import shown
from jobmill.dashboard.access import Access
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.redact import hidden_errors
from jobmill.dashboard.runs import BulkRun, RunNotFound
from jobmill.dashboard.security import MAX_BODY, is_same_origin
from jobmill.errors import InvalidValue, JobNotFound

if TYPE_CHECKING:
    from jobmill.dashboard.app import Dashboard
    from jobmill.dashboard.problems import Problem

#: What a WSGI server says about a request, if one serves the dashboard.
WSGI_ENVIRON: Final = "wsgi_environ"
ZONE_COOKIE: Final = "jobmill_zone"
#: Rows of one page of a list.
PAGE: Final = 50
#: How long a form may take to arrive.
_BODY_S: Final = 30


class NotAllowed(Exception):
    """The visitor has no permission for this; the message says which one is missing."""


class Mistake(NamedTuple):
    """Why a form was refused, and what it brought."""

    error: InvalidValue
    fields: Fields


class Outage(NamedTuple):
    """Why the store is unavailable, and when the figures of the page were read."""

    problem: Problem
    figures_ms: int


#: A time in a sentence: 2026-11-17T11:39:00Z.
_INSTANT: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def search_text(words: Mapping[str, str]) -> str:
    """The text of a search with these filters."""
    return " ".join(f"{qualifier}:{quoted(value, '*' in value)}" for qualifier, value in words.items())


def quoted(text: str, always: bool = False) -> str:
    """A text as a value of a search, in quotation marks if it needs them."""
    if text and not always and re.search(r'[\s"]', text) is None:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class View:
    """What the functions of pages and acts work with."""

    def __init__(self, request: Request, dashboard: Dashboard, access: Access) -> None:
        self.request = request
        self.dashboard = dashboard
        self.access = access
        self.reads = dashboard.reads
        self.jobs = dashboard.jobs
        self.base: str = request.scope.get("root_path", "").rstrip("/")
        self.zone = _zone(request.cookies.get(ZONE_COOKIE))
        self.wants_json = _wants_json(request)
        #: Set while the page of a form is shown again because of what was written into it.
        self.mistake: Mistake | None = None
        #: A form of another site. The answer has no script, because one that loads the page again would send the form
        #: again, and the browser would then say that it comes from here.
        self.is_foreign = request.method == "POST" and not is_same_origin(request)
        #: In a WSGI server each stream would keep a thread busy: there, pages are loaded again every 30 s only.
        self.has_live = WSGI_ENVIRON not in request.scope
        #: Set on a page that shows its last figures, because the store is unavailable.
        self.outage: Outage | None = None
        #: Of the live updates, before the page reads anything: its stream begins with what has changed since.
        self.version = dashboard.live.version

    @property
    def now_ms(self) -> int:
        """The time of the page: that of the store, or of the last figures."""
        return self.present_ms if self.outage is None else self.outage.figures_ms

    @property
    def present_ms(self) -> int:
        """The time of the store."""
        return self.jobs.store.now()

    @property
    def who(self) -> str:
        """The name of the visitor in the audit log."""
        return self.access.who or "dashboard"

    # ------------------------------------------------------------------------------------------------ URLs

    def url(self, *parts: str, **query: Any) -> str:
        """The URL of a page: `url("jobs", id)`, `url("jobs", q="queue:mail")`, without parameters that are None."""
        path = "/".join(quote(part, safe="") for part in parts)
        given = [(key, str(value)) for key, value in query.items() if value is not None]
        return f"{self.base}/{path}" + (f"?{urlencode(given)}" if given else "")

    def search(self, state: str, **words: str) -> str:
        """The URL of the jobs in a tab with these filters: `search("due", queue="mail")`."""
        return self.url("jobs", q=search_text(words), state=state)

    def here(self, **changed: Any) -> str:
        """The URL of this page with some query parameters changed; those that are None are left out."""
        # A token stays in no page and no address. A parameter may be given several times: the ids of a form that asks.
        given: dict[str, Any] = {"done": None} | changed | {"token": None}
        kept = [(key, value) for key, value in self.request.query_params.multi_items() if key not in given]
        query = urlencode([*kept, *((key, str(value)) for key, value in given.items() if value is not None)])
        path = quote(self.request.scope["path"], safe="/")
        return path + (f"?{query}" if query else "")

    def param(self, name: str, default: str | None = None) -> str | None:
        """A query parameter; None for an empty one."""
        return self.request.query_params.get(name) or default

    def local(self, url: str | None, default: str) -> str:
        """A URL that a form brought, if it is one of this dashboard: nobody is sent elsewhere."""
        if not url or not url.startswith(f"{self.base}/") or url.startswith("//") or "\\" in url:
            return default
        parts = urlsplit(url)
        return url if not parts.scheme and not parts.netloc and url.isprintable() else default

    def query_of(self, url: str) -> list[tuple[str, str]]:
        """The query parameters of a URL, as the fields of a form that leads to it."""
        return parse_qsl(urlsplit(url).query, keep_blank_values=True)

    # ------------------------------------------------------------------------------------------------ permission

    def can(self, action: str) -> bool:
        """Whether the visitor may do this."""
        return self.access.may(action)

    def require(self, action: str) -> None:
        """Refuse a visitor who may not do this."""
        if not self.can(action):
            raise NotAllowed(self.access.refusal(action))

    def require_all_tenants(self) -> None:
        """Refuse a visitor who may see the jobs of some tenants only."""
        if self.access.tenants is not None:
            raise NotAllowed("this page shows the jobs of all tenants")

    def limited(self, wanted: Filter) -> Filter:
        """A filter within the tenants of the visitor. With several tenants and none chosen it is the first one."""
        if self.access.tenants is None:
            return wanted
        if wanted.tenant is None and self.access.tenants:
            return structs.replace(wanted, tenant=self.access.tenants[0])
        if wanted.tenant not in self.access.tenants:
            raise NotAllowed("you may not see the jobs of this tenant")
        return wanted

    async def job(self, id: str) -> Job:
        """A job that the visitor may see. For others there is none."""
        job = await self.reads.get(id)
        if self.access.tenants is not None and job.tenant not in self.access.tenants:
            raise JobNotFound(f"there is no job {id!r} in the {self.jobs.store.name} store")
        return self.visible(job)

    def run(self, id: str) -> BulkRun:
        """An act on all that match, if the visitor may see the jobs. For others there is none."""
        run = self.dashboard.runs.get(id)
        if self.access.tenants is not None and run.order.searched.tenant not in self.access.tenants:
            raise RunNotFound("there is no such run, or it ended more than an hour ago")
        return run

    def visible(self, job: Job) -> Job:
        """A job without what the visitor may not see."""
        return job if self.can("see_payload") else hidden_errors(job)

    def document(self, job: Job) -> dict[str, Any]:
        """A job as JSON-ready values without what the visitor may not see."""
        made = self.visible(job).to_dict()
        made["payload"] = self._by_name(job)
        return made | {field: self.payload(made[field]) for field in ("payload", "result", "headers")}

    def hidden_count(self, job: Job) -> int:
        """How many values of its payload are hidden fields."""
        return self.dashboard.redact.count(self._by_name(job))

    def _by_name(self, job: Job) -> Any:
        return self.dashboard.redact.by_name(job.to_dict()["payload"], self.jobs.handlers.get(job.name))

    def payload(self, value: Any) -> Any:
        """A payload, a result or headers without the values that the visitor may not see."""
        return self.dashboard.redact.value(value, all=not self.can("see_payload"))

    # ------------------------------------------------------------------------------------------------ forms

    async def form(self) -> dict[str, list[str]]:
        """The fields of a form, or of a JSON object; bounded in size."""
        size, parts = 0, list[bytes]()
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in self.request.stream():
                    size += len(part)
                    if size > MAX_BODY:
                        raise InvalidValue("form", f"at most {MAX_BODY:,} bytes", f"more than {MAX_BODY:,}")
                    parts.append(part)
        except TimeoutError:
            raise HTTPException(408, f"The form did not arrive within {_BODY_S} seconds.") from None
        except ClientDisconnect:
            raise HTTPException(400, "The form did not arrive as a whole.") from None
        body = b"".join(parts)
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return _json_fields(body)
        fields: dict[str, list[str]] = {}
        try:
            given = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=10_000, errors="strict")
        except (ValueError, UnicodeDecodeError) as error:
            raise InvalidValue("form", "a form in UTF-8", "another text", str(error)) from None
        for name, value in given:
            fields.setdefault(name, []).append(value)
        return fields

    def typed(self, name: str, default: Any = None) -> str:
        """What a field of a form shows: what the visitor wrote if the form was refused, else its present value."""
        given = [] if self.mistake is None else self.mistake.fields.all(name)
        if given:
            return given[0]
        return "" if default is None else str(default)

    def wrong(self, name: str) -> str | None:
        """What is wrong with a field of a form that was refused."""
        if self.mistake is None or self.mistake.error.field != name:
            return None
        error = self.mistake.error
        return f"Must be {error.expected}." + (f" {error.advice[0].upper()}{error.advice[1:]}." if error.advice else "")

    # ------------------------------------------------------------------------------------------------ shown values

    def time(self, ms: int | None) -> Markup | str:
        """A time of the day or a date, in the zone of the visitor."""
        return "–" if ms is None else shown.time_element(ms, self.clock(ms), self.zone)

    def timed(self, text: str) -> str:
        """A sentence of the core, with its times in the zone of the visitor."""
        return _INSTANT.sub(lambda at: self.clock(instant_ms(datetime.fromisoformat(at[0]), "time")), text)

    def clock(self, ms: int) -> str:
        """A time of the day or a date as plain text."""
        return shown.clock_text(ms, self.now_ms, self.zone)

    def exact(self, ms: int) -> str:
        """A time with milliseconds, for log lines; with the day if that is not today."""
        at, now = to_datetime(ms).astimezone(self.zone), to_datetime(self.now_ms).astimezone(self.zone)
        day = "" if at.date() == now.date() else f"{at.day} {at:%b} "
        return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"

    def minute(self, ms: int) -> str:
        """A time of the day or a date as plain text, without seconds."""
        return shown.minute_text(ms, self.now_ms, self.zone)

    def ago(self, ms: int | None) -> Markup | str:
        """How long ago, or in how long."""
        if ms is None:
            return "–"
        passed = self.now_ms - ms
        text = f"{shown.duration(passed)} ago" if passed >= 0 else f"in {shown.duration(-passed)}"
        return shown.time_element(ms, text, self.zone)

    def since(self, ms: int | None) -> str:
        """How much time has passed since then."""
        return "–" if ms is None else shown.duration(self.now_ms - ms)


def _zone(name: str | None) -> tzinfo:
    try:
        return zoneinfo.ZoneInfo(name) if name else UTC
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return UTC


def _wants_json(request: Request) -> bool:
    if request.query_params.get("json") == "1":
        return True
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _json_fields(body: bytes) -> dict[str, list[str]]:
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue("body", "a JSON object", "another text", str(error)) from None
    fields = dict[str, list[str]]()
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        fields[name] = [_field(one) for one in values if one is not None]
    return fields


def _field(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
