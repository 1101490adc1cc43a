"""A store in which every text that others chose is a script, and the addresses of all pages about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import quote, urlencode

import jobmill
from jobmill import Client
from jobmill.core.announcing import WorkerCard
from jobmill.dashboard.screens import SCREENS, Screen
from jobmill.testing import ManualClock

#: Without white space and ":", so that it can be a name and a queue. It leaves elements, attributes and templates.
SCRIPT: Final = """</script></title></textarea>"'><script>alert(1)</script><img/src=x/onerror=alert(2)>{{7*7}}"""
TEXT: Final = f"{SCRIPT} javascript:alert(3) <svg onload=alert(4)> <style>*{{display:none}}</style>"
PARAMS: Final = (
    *("q", "state", "cursor", "range", "since", "until", "queue", "name", "key", "tenant", "id", "act", "who", "what"),
    *("worker", "log", "tab", "sort", "back", "done", "note", "page", "spread", "delay", "token", "zone", "order"),
    *("before", "lane", "after"),
)


async def fill(jobs: Client, clock: ManualClock | None = None) -> dict[str, str]:
    """Jobs in all states. Returns ids by their states, and other values that paths are made of."""

    @jobs.handler(name=SCRIPT, queue=SCRIPT, max_attempts=1)
    async def scripted(context: jobmill.Context, **_: Any) -> str:
        context.log(TEXT)
        context.progress(50, TEXT)
        if context.job.tenant is None:
            return TEXT
        raise type(TEXT, (Exception,), {})(TEXT)

    options: dict[str, Any] = {"queue": SCRIPT, "unique_key": TEXT, "headers": {"x": TEXT}}
    failed = await jobs.enqueue(SCRIPT, {SCRIPT: TEXT}, tenant=TEXT, **options)
    await jobs.tick()
    succeeded = await jobs.enqueue(SCRIPT, {SCRIPT: [TEXT, {TEXT: TEXT}]}, **options)
    await jobs.tick()
    waiting = await jobs.enqueue(SCRIPT, {SCRIPT: TEXT}, tenant=TEXT, id=SCRIPT, **options)
    held = await jobs.enqueue(SCRIPT, {SCRIPT: TEXT}, queue=SCRIPT)
    await jobs.hold([held.id], note=TEXT, who=TEXT)
    recurring = await jobs.enqueue(SCRIPT, {SCRIPT: TEXT}, queue=SCRIPT, every="1h", key=SCRIPT, delay="1h")
    draft = jobs.draft(SCRIPT, queue=SCRIPT, tenant=TEXT)
    flow = await jobs.draft(SCRIPT, id=f"{SCRIPT}flow").after(draft, even_if_failed=True).enqueue()
    await jobs.signal(flow.id, SCRIPT, {SCRIPT: TEXT})
    await jobs.queue(SCRIPT).lanes(running=1, rate=(9, "1m"))
    lane = [await jobs.enqueue(SCRIPT, queue=SCRIPT, lane=TEXT, tenant=TEXT) for _ in range(2)]
    await jobs.queue(SCRIPT).lane(TEXT, running=1)
    await jobs.queue(SCRIPT).lane(SCRIPT, strict=True).pause(who=TEXT, note=TEXT)
    await jobs.queue(SCRIPT).pause(who=TEXT, note=TEXT, until="1h")
    await jobs.mark(TEXT, who=TEXT)
    now_ms = jobs.store.now()
    card = WorkerCard(
        id=SCRIPT,
        name=SCRIPT,
        host=TEXT,
        pid=1,
        version=TEXT,
        python=TEXT,
        started_ms=now_ms,
        queues=(SCRIPT,),
        names=(SCRIPT,),
        concurrency=1,
        announcement=1,
        loops={TEXT: 1},
    )
    await jobs.store.announce(card, [])
    return {
        "failed": failed.id,
        "succeeded": succeeded.id,
        "waiting": waiting.id,
        "held": held.id,
        "recurring": recurring.id,
        "flow": flow.id,
        "in_lane": lane[1].id,
        "queue": SCRIPT,
        "worker": SCRIPT,
    }


def addresses(known: dict[str, str], screens: Iterable[Screen] = SCREENS) -> list[str]:
    """Every screen, with each value that its path can have, without and with a query of hostile values."""
    found = []
    queries = [
        "",
        urlencode({"id": known["failed"], "queue": SCRIPT, "act": "requeue", "worker": SCRIPT, "back": "/queues"}),
        urlencode({"id": known["waiting"], "act": "cancel", "q": f"'name:{SCRIPT}'", "state": "all", "log": "1"}),
        urlencode({"id": known["recurring"], "q": f'tenant:"{SCRIPT}" error:"{SCRIPT}"', "state": "failed"}),
        urlencode({"id": known["recurring"]}),
        urlencode({"id": known["flow"], "act": "flow_cancel", "tenant": ""}),
        urlencode({"id": known["worker"]}),
        urlencode({"queue": SCRIPT, "lane": TEXT, "q": f'lane:"{SCRIPT}"', "back": "/queues"}),
        urlencode(dict.fromkeys(PARAMS, TEXT)),
    ]
    for screen in screens:
        values = list(known.values()) if "{" in screen.path else [""]
        for path in (re.sub(r"\{\w+(:\w+)?\}", lambda _: quote(value, safe=""), screen.path) for value in values):  # noqa: B023
            found += [path + (f"?{query}" if query else "") for query in queries]
    return list(dict.fromkeys(found))


class Tags(HTMLParser):
    """What a browser makes of a page that must not come from the data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        self.names.add(tag)
        given = {name: value or "" for name, value in attrs}
        is_ours = given.get("src", "").startswith("/") and "/static/" in given.get("src", "")
        if tag in ("img", "style", "iframe", "object", "base") or (tag == "script" and not is_ours):
            self.wrong.append(f"<{tag}>")
        for name, value in given.items():
            outside = name in ("href", "action", "src", "hx-get") and not value.startswith(("/", "#"))
            if name.startswith(("on", "hx-on")) or name == "style" or outside or value.startswith("//"):
                self.wrong.append(f"{name}={value}")
