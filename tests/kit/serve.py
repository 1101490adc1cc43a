"""An ASGI app under a real uvicorn, in a thread with an event loop of its own.

    async with serve(app, root_path="/jobs") as url:
        ...                                              # url: http://127.0.0.1:PORT

Stores and clients of Jobmill belong to no loop: the app and the test may share one. With `port=port_of(url)` an app is
served again where another one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tests.kit.places import held_port
from tests.kit.processes import PATIENCE_S, NoServer

#: How long requests that still run may take when the server stops; then they are cancelled.
ENDS_WITHIN_S = 2


@contextlib.asynccontextmanager
async def serve(app: Any, *, root_path: str = "", port: int = 0, **config: Any) -> AsyncIterator[str]:
    """The address of an app, which answers there until the block ends.

    uvicorn puts `root_path` before every path, as behind a proxy that strips it. `config` is uvicorn's.
    """
    with contextlib.ExitStack() as sockets:
        if not port:
            port, holder = held_port()
            sockets.enter_context(holder)
        listening = sockets.enter_context(socket.create_server(("127.0.0.1", port)))
        # `ws`: the app has no websockets, and the modules for them warn. `log_config`: leave logging as it is.
        options = {"root_path": root_path, "ws": "none", "log_config": None, "access_log": False, **config}
        server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=ENDS_WITHIN_S, **options))
        thread = threading.Thread(target=server.run, args=([listening],), name=f"uvicorn-{port}", daemon=True)
        thread.start()
        try:
            await _until_started(server, thread)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join, PATIENCE_S)
            if thread.is_alive():
                raise NoServer(f"uvicorn at port {port} did not stop within {PATIENCE_S:g} s")


async def _until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not server.started:
            if not thread.is_alive():
                raise NoServer("uvicorn ended while it started; the log says why")
            await asyncio.sleep(0.005)
