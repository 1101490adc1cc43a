"""The dashboard as a view of Django, for staff with the permission `jobmill.view` or `jobmill.act`."""

from __future__ import annotations

import io
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from jobmill.client.client import Client
from jobmill.dashboard import ACTIONS, Access, Dashboard
from jobmill.dashboard.view import WSGI_ENVIRON
from jobmill.dashboard.wsgi import wsgi_app
from jobmill.django.backend import client

#: What a visitor may do, in the variables of the request.
_ACCESS = "jobmill.access"

#: By backend and options: a dashboard as a WSGI app.
_dashboards: dict[str, Any] = {}


# The dashboard itself accepts only forms of its own origin.
@csrf_exempt
def dashboard(request: Any, path: str, alias: str = "default", **options: Any) -> Any:
    """One page, or one act. `options` are those of `jobmill.Dashboard`: `title`, `color`, `redact`, `read_only`."""
    access = _access(request.user)
    if access is None:
        if request.user.is_authenticated:
            raise PermissionDenied("the permission jobmill.view is missing")
        return redirect_to_login(request.get_full_path(), _login_url())
    key = f"{alias} {sorted(options.items())}"
    if key not in _dashboards:
        _dashboards[key] = wsgi_app(new_dashboard(client(alias), **options))
    app = _dashboards[key]
    started: list[Any] = []
    parts = app(_environ(request, path) | {_ACCESS: access}, lambda *start: started.append(start))
    ((status, headers),) = started
    response = HttpResponse(b"".join(parts), status=int(status.partition(" ")[0]))
    del response["Content-Type"]
    for name, value in headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response


def new_dashboard(jobs: Client, **options: Any) -> Dashboard:
    """A dashboard for users of Django; InvalidValue or TypeError if an option is wrong."""
    return Dashboard(jobs, authorize=_authorize, **options)


class StaffAccess(Access):
    """What a user of Django may do. All acts have one permission there."""

    def refusal(self, action: str) -> str:
        """Name the permission of Django."""
        return f"this needs the permission jobmill.act ({action})"


def _access(user: Any) -> Access | None:
    """What a user may do; None for everybody but staff with a permission."""
    if not (user.is_active and user.is_staff):
        return None
    who = user.get_username()
    if user.has_perm("jobmill.act"):
        return Access(ACTIONS, who=who)
    return StaffAccess({"see_payload"}, who=who) if user.has_perm("jobmill.view") else None


def _authorize(request: Any) -> Access:
    access: Access = request.scope[WSGI_ENVIRON][_ACCESS]
    return access


def _login_url() -> str:
    """The login of the admin site, which only staff can use, else that of the settings."""
    from django.conf import settings

    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))


def _environ(request: Any, path: str) -> dict[str, Any]:
    """The request as WSGI has it, also where Django runs on ASGI; the path of the dashboard is its root."""
    root = request.path.removesuffix(path).rstrip("/")
    return {name: value for name, value in request.META.items() if isinstance(value, str)} | {
        "SCRIPT_NAME": _latin(root),
        "PATH_INFO": _latin(f"/{path}"),
        "REQUEST_METHOD": request.method,
        "wsgi.url_scheme": request.scheme,
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.input": io.BytesIO(request.body),
    }


def _latin(text: str) -> str:
    """WSGI has the bytes of texts as Latin-1."""
    return text.encode().decode("latin-1")
