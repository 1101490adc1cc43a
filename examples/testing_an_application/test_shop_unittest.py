"""The same with unittest: `python -m unittest`, or pytest."""

from __future__ import annotations

import webshop
from webshop import place_order, send_mail, ship

from jobmill.testing import JobsTestCase


class ShopTests(JobsTestCase):
    jobs = webshop.jobs

    def setUp(self) -> None:
        super().setUp()
        webshop.mailbox.clear()
        webshop.shipped.clear()
        webshop.stock["lamp"] = 3

    async def test_an_order(self) -> None:
        await place_order("ada@example.com", "lamp")
        self.enqueued.one(ship, article="lamp")
        await self.drain()
        assert webshop.stock == {"lamp": 2}
        await self.travel("14d")
        assert webshop.mailbox[-1] == "Do you like it? to ada@example.com"

    def test_a_sync_test(self) -> None:
        self.jobs.sync(place_order("ada@example.com", "lamp"))
        self.drain.sync()
        self.enqueued.exactly(1, send_mail, state="waiting")
