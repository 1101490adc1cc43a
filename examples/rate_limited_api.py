"""A client of an API that allows five requests a second, and answers 429 to all others.

    $ pip install jobmill
    $ python rate_limited_api.py

The program starts such an API on this machine and calls it 20 times in two ways. You should see something like this:

    without a limit: 20 answers, 35 refused requests, in 3.4 s
    with a limit: 20 answers, 0 refused requests, in 3.7 s

Without a limit, all jobs call at once. A job that is refused waits as long as the API says, and no attempt is counted.
With a rate limit on the queue, workers claim no more jobs than the API allows, in all processes together. So requests
are not wasted, and the jobs wait in the store.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jobmill

ALLOWED, WINDOW_S = 5, 1.0

jobs = jobmill.connect()


@jobs.handler(queue="api", retry_on=(OSError,), timeout="30s")
def fetch_price(url: str, item: int) -> int:
    """A plain function runs in a thread, so it may use a client that blocks."""
    try:
        with urllib.request.urlopen(f"{url}/{item}", timeout=10) as response:
            price: int = json.load(response)["price"]
            return price
    except urllib.error.HTTPError as error:
        if error.code != 429:
            raise
        # Not an error of this job: it runs again when the API says so, and its attempts are not used up.
        raise jobmill.Snooze(float(error.headers["Retry-After"])) from error


# ---------------------------------------------------------------------------------------------------- the program


async def main() -> None:
    async with jobs:
        with running_api() as api:
            await call(api, "without a limit")
            # The store keeps the limit, and all workers of this queue obey it. Set it once, for example at deployment,
            # or with `jobmill queues limits api --rate 5/1s`. Requests come a little later than claims, so our window
            # is a fifth longer than that of the API.
            await jobs.queue("api").rate_limit(ALLOWED, per=WINDOW_S * 1.2)
            await call(api, "with a limit")
            await jobs.queue("api").rate_limit(None)


async def call(api: Api, how: str) -> None:
    await asyncio.sleep(WINDOW_S)  # so that both ways begin with an API that is at rest
    api.refused, begin = 0, time.monotonic()
    async with jobmill.Worker(jobs, concurrency=20):
        enqueued = [await fetch_price.enqueue(url=api.url, item=item) for item in range(20)]
        prices = [await one.result(timeout="1m") for one in enqueued]
    assert prices == [10 * item for item in range(20)]
    print(f"{how}: {len(prices)} answers, {api.refused} refused requests, in {time.monotonic() - begin:.1f} s")


# ---------------------------------------------------------------------------------------------------- the API


class Api(ThreadingHTTPServer):
    """An API with windows of a second, as many have them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.refused = 0
        self._lock = threading.Lock()
        self._ends = self._answered = 0.0

    def wait_s(self) -> float | None:
        """How long a request has to wait; None if it is answered."""
        with self._lock:
            now = time.monotonic()
            if now >= self._ends:
                self._ends, self._answered = now + WINDOW_S, 0
            if self._answered < ALLOWED:
                self._answered += 1
                return None
            self.refused += 1
            return self._ends - now


class _Request(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        wait_s = self.server.wait_s()
        body = json.dumps({"price": 10 * int(self.path[1:])}).encode()
        self.send_response(200 if wait_s is None else 429)
        if wait_s is not None:
            self.send_header("Retry-After", f"{wait_s:.3f}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def running_api() -> Iterator[Api]:
    with Api() as api:
        thread = threading.Thread(target=api.serve_forever)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


if __name__ == "__main__":
    asyncio.run(main())
