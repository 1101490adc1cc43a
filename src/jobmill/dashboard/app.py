"""The ASGI app: who may enter, which page or act a request is for, and what an error looks like."""

from __future__ import annotations

import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from jobmill.client.client import Client
from jobmill.dashboard.access import Access
from jobmill.dashboard.acts import ACTS
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.live import Live
from jobmill.dashboard.login import Login
from jobmill.dashboard.pages import STATIC, answer_json, asset_hash, navigation, render
from jobmill.dashboard.problems import Problem, problem_of
from jobmill.dashboard.reads import Reads
from jobmill.dashboard.redact import Redact
from jobmill.dashboard.runs import BulkRuns
from jobmill.dashboard.schema import openapi
from jobmill.dashboard.screens import SCREENS, Screen
from jobmill.dashboard.security import headers, is_from_this_machine
from jobmill.dashboard.view import Mistake, NotAllowed, Outage, View
from jobmill.errors import InvalidValue, StoreUnavailable

log = logging.getLogger("jobmill")

#: Returns what a visitor may do; None refuses the visitor.
Authorize: TypeAlias = Callable[[Request], Access | Awaitable[Access | None] | None]

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

COLORS: Final = ("red", "green", "blue")
STORE_NAMES: Final = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "mongo": "MongoDB",
    "redis": "Redis",
    "memory": "memory of this process",
}
_ASSETS: Final = frozenset({"jobmill.css", "app.js", "htmx.min.js", "hx-sse.min.js", "icon.svg"})
_MAX_NOTICES: Final = 200
#: Usually the first visitor who reads it has just mounted the dashboard.
ONLY_THIS_MACHINE: Final = (
    "this dashboard has neither a token nor authorize, so it accepts only browsers on this machine, and no proxies"
)


class Dashboard:
    """An ASGI app with the pages of one store: serve it alone, or mount it at any path of another app.

    `authorize` decides about each request. Without it, requests need the `token`; without a token too, only browsers on
    this machine may enter. `redact` has the names of payload fields whose values nobody sees. `path` is where a reverse
    proxy shows the dashboard, if nothing else says so.
    """

    def __init__(
        self,
        jobs: Client,
        *,
        authorize: Authorize | None = None,
        token: str | None = None,
        read_only: bool = False,
        redact: Iterable[str] = (),
        title: str | None = None,
        color: str | None = None,
        path: str = "",
        frame_ancestors: str = "'none'",
    ) -> None:
        if not isinstance(jobs, Client):
            raise InvalidValue("jobs", "a client, as jobmill.connect() returns it", jobs)
        if color is not None and color not in COLORS:
            raise InvalidValue("color", "one of " + ", ".join(COLORS), color)
        if authorize is not None and token is not None:
            raise InvalidValue("token", "authorize or token, not both", "both")
        if path and (not path.startswith("/") or path.endswith("/")):
            raise InvalidValue("path", 'a path such as "/jobs"', path)
        if not frame_ancestors.isprintable() or ";" in frame_ancestors or "," in frame_ancestors:
            raise InvalidValue("frame_ancestors", "sources of a Content-Security-Policy, with spaces", frame_ancestors)
        self.jobs = jobs
        self.title = title or "Jobmill"
        self.page_title = f"{title} · Jobmill" if title else self.title
        self.store_name = STORE_NAMES.get(jobs.store.name, jobs.store.name)
        self.color = color
        self.is_read_only = read_only
        self.redact = Redact(redact)
        self.reads = Reads(jobs)
        self.live = Live(self.reads)
        self.runs = BulkRuns(jobs)
        #: Sentences about acts, shown once by the page after it.
        self.notices: dict[str, Done] = {}
        self._authorize = authorize
        self._login = None if token is None else Login(token)
        self._path = path
        self._headers = headers(frame_ancestors)
        self._app = self._make_app()

    def _make_app(self) -> Starlette:
        self._screens = [
            (Route(screen.path, self._guarded(self._page(screen)), methods=["GET"]), screen) for screen in SCREENS
        ]
        routes = [
            Route("/static/{hash}/{name}", self._guarded(self._static)),
            Route("/login", self._guarded(self._log_in), methods=["GET", "POST"]),
            Route("/live", self._guarded(self._live)),
            Route("/openapi.json", self._guarded(self._openapi)),
            Route("/acts/{act}", self._guarded(self._act), methods=["POST"]),
            *(route for route, _ in self._screens),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: self._on_http_error})
        app.router.redirect_slashes = False  # it would send a token of the address on, and believes the Host header
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the dashboard serves HTTP, not {scope['type']}")
        scope = self._at_path(dict(scope))

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode("latin-1")) for name, value in self._headers.items()]
                message["headers"] = [*message["headers"], *(one for one in extra if one[0] not in given)]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _at_path(self, scope: Scope) -> Scope:
        """With `path`: links begin with it, whether or not the proxy has removed it from the request."""
        root = scope.get("root_path", "")
        if self._path and not root.endswith(self._path):
            inside = scope["path"].removeprefix(root) if root else scope["path"]
            is_kept = inside == self._path or inside.startswith(f"{self._path}/")
            scope["path"] = root + (inside if is_kept else self._path + inside)
            scope["root_path"] = root + self._path
        if scope["path"] == scope.get("root_path", ""):
            scope["path"] += "/"
        return scope

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def close(self) -> None:
        """End what runs in the background. The client stays open: it belongs to the application."""
        await self.runs.close()
        await self.live.close()

    # ------------------------------------------------------------------------------------------------ who

    async def _view(self, request: Request) -> View:
        """The view of a visitor who may enter."""
        access = await self._access(request)
        if access is None:
            is_open_here = self._authorize is None and self._login is None
            raise NotAllowed(ONLY_THIS_MACHINE if is_open_here else "you may not see this page")
        view = View(request, self, access.reading_only() if self.is_read_only else access)
        request.state.view = view
        return view

    async def _access(self, request: Request) -> Access | None:
        if self._authorize is not None:
            decided = self._authorize(request)
            access = await decided if inspect.isawaitable(decided) else decided
            if access is not None and not isinstance(access, Access):
                raise TypeError(f"authorize must return an Access or None, and returned {access!r}")
            return access
        if self._login is not None:
            return Access.ALL if self._login.knows(request, int(time.time())) else None
        return Access.ALL if is_from_this_machine(request) else None

    async def _log_in(self, request: Request) -> Response:
        view = View(request, self, Access())
        if self._login is None:
            return RedirectResponse(view.url(), 303)
        if request.method != "POST":
            return render(view, "login.html", None)
        if view.is_foreign:
            raise NotAllowed("this form belongs to another site")
        given = Fields(await view.form()).optional("token")
        if given is None or not self._login.is_token(request, given):
            return render(view, "login.html", "This is not the token.", status=403)
        response = RedirectResponse(view.url(), 303)
        self._login.remember(response, request, int(time.time()), view.base)
        return response

    # ------------------------------------------------------------------------------------------------ answers

    def _page(self, screen: Screen) -> Endpoint:
        async def page(request: Request) -> Response:
            given = request.query_params.get("token")
            if given is not None and self._login is not None:
                return self._enter(request, given)
            # The act was perhaps in another process of the server. Live updates keep the parameter, and share reads.
            if request.query_params.get("done") and "hx-request" not in request.headers:
                self.reads.forget()
            view = await self._view(request)
            try:
                return await self._shown(view, screen)
            except StoreUnavailable as error:
                last = await self._last_shown(view, screen, error)
                if last is None:
                    raise
                return last

        return page

    async def _last_shown(self, view: View, screen: Screen, error: StoreUnavailable) -> Response | None:
        """The page with its last figures and without any act; None if it has none. Programs get the error."""
        reads = self.reads.last(error) if screen.shows_last and not view.wants_json else None
        if reads is None:
            return None
        page = View(view.request, self, view.access.reading_only())
        page.reads, page.outage = reads, Outage(problem_of(error, self.reads.down_since_ms), reads.at_ms)
        try:
            return await self._shown(page, screen, 503)
        except StoreUnavailable:
            return None

    async def _shown(self, view: View, screen: Screen, status: int = 200) -> Response:
        if screen.of_all_tenants:
            view.require_all_tenants()
        data = await screen.read(view)
        if isinstance(data, Response):
            return data
        if view.wants_json:
            return answer_json(data)
        return render(view, screen.template, data, status=status, nav=navigation(view))

    def _enter(self, request: Request, given: str) -> Response:
        """A link with the token: the page without it follows at once, so that the token stays in no address bar."""
        view = View(request, self, Access())
        assert self._login is not None
        if not self._login.is_token(request, given):
            raise NotAllowed("the token of this link is not valid")
        response = RedirectResponse(view.here(), 303)
        self._login.remember(response, request, int(time.time()), view.base)
        return response

    async def _act(self, request: Request) -> Response:
        view = await self._view(request)
        if view.is_foreign:
            raise NotAllowed("this form belongs to another site")
        name = request.path_params["act"]
        if name not in ACTS:
            raise HTTPException(404)
        permission, act = ACTS[name]
        if permission is not None:
            view.require(permission)
        fields = Fields(await view.form())
        back = view.local(fields.optional("back"), view.url())
        try:
            done = await act(view, fields)
        except InvalidValue as error:
            if view.wants_json:
                raise
            again = await self._form_again(view, fields, error)
            if again is not None:
                return again
            done = Done(text=str(error), level="failed")
        finally:
            self.reads.forget()
        if view.wants_json:
            return answer_json(done, 200 if done.level != "failed" else 409)
        return RedirectResponse(self._with_notice(done, done.goto or back), 303)

    async def _form_again(self, view: View, fields: Fields, error: InvalidValue) -> Response | None:
        """The page of the form, with what was written and what is wrong with it; None if the form names no page."""
        url = urlsplit(view.local(fields.optional("form"), ""))
        scope = {**view.request.scope, "method": "GET", "path": unquote(url.path), "query_string": url.query.encode()}
        for route, screen in self._screens if url.path else ():
            match, found = route.matches(scope)
            if match is Match.FULL:
                page = View(Request({**scope, **found}), self, view.access)
                page.mistake = Mistake(error, fields)
                return await self._shown(page, screen, 400)
        return None

    def _with_notice(self, done: Done, url: str) -> str:
        """A URL whose page shows the notice: its text is not in the URL, where anybody could write another one."""
        key = secrets.token_urlsafe(9)
        self.notices[key] = done
        while len(self.notices) > _MAX_NOTICES:
            del self.notices[next(iter(self.notices))]
        path, mark, fragment = url.partition("#")
        return f"{path}{'&' if '?' in path else '?'}done={key}{mark}{fragment}"

    async def _live(self, request: Request) -> Response:
        view = await self._view(request)
        if not view.has_live or request.method == "HEAD":
            return Response(status_code=204)
        events = self.live.stream(again="last-event-id" in request.headers, version=view.param("version"))
        # nginx would keep events back.
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _openapi(self, request: Request) -> Response:
        view = await self._view(request)
        return answer_json(openapi(view.base))

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS or request.path_params["hash"] != asset_hash(name):
            raise HTTPException(404)
        return FileResponse(STATIC / name, headers={"Cache-Control": "public, max-age=31536000, immutable"})

    # ------------------------------------------------------------------------------------------------ errors

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint whose errors are pages, and never end the server."""

        async def guarded(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Exception as error:
                return self._failed(request, error)

        return guarded

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        """No route has this path or method. Only visitors with access get this response."""
        try:
            await self._view(request)
        except Exception as refusal:
            error = refusal
        return self._failed(request, error)

    def _failed(self, request: Request, error: Exception) -> Response:
        response = self._problem(request, problem_of(error, self.reads.down_since_ms, request.path_params.get("id")))
        if isinstance(error, HTTPException):  # which methods are allowed, or where `authorize` sends people to log in
            response.headers.update(error.headers or {})
        return response

    def _problem(self, request: Request, problem: Problem) -> Response:
        # A visitor who may enter keeps the navigation, without counts: the store may be what fails.
        known: View | None = getattr(request.state, "view", None)
        view = known or View(request, self, Access())
        if view.wants_json:
            return answer_json(problem, problem.status)
        if problem.status == 403 and self._login is not None and request.method == "GET":
            return render(view, "login.html", None, status=403)
        return render(view, "problem.html", problem, status=problem.status, nav=navigation(known) if known else None)
