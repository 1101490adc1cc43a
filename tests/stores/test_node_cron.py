from __future__ import annotations

import pytest

from jobmill.core.recurrence import Recurrence
from jobmill.stores.common.node_cron import for_node

WRITTEN = [
    ("0 9 * * *", "0 9 * * *"),
    ("0 0 * * 0,7", "0 0 * * 0"),
    ("*/15,0 * * * *", "*/15 * * * *"),
    ("0 9 * * 1-5,WED", "0 9 * * 1-5"),
    ("0 9 */1 * MON", "0 9 * * 1"),  # a restriction to Node: every day
    ("0 9 ? * MON-fri", "0 9 * * 1-5"),
    ("0 9 1-31 * 5", "0 9 * * *"),  # one of two conditions
    ("0 9 31 feb 5", "0 9 * 2 5"),  # a day that no February has
    ("0 9 1-29 2 5", "0 9 * 2 *"),
    ("0 9 29-31,L feb *", "0 9 29,L 2 *"),
    ("0 9 * * */2", "0 9 * * 0,2,4,6"),
    ("0 9 * * sunl,5,5L", "0 9 * * 5,0L"),
    ("0 9 * * 7#2", "0 9 * * 0#2"),
    ("0 9 * * 5,5#2", "0 9 * * 5"),
    ("5/20 * * * * *", "5,25,45 * * * * *"),
    ("00 0 9 * * *", "0 9 * * *"),
    ("0 9 *,LW * 5", "0 9 * * 5"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
]


@pytest.mark.parametrize(("cron", "written"), WRITTEN)
def test_cron_for_node(cron: str, written: str) -> None:
    assert for_node(Recurrence(key="k", cron=cron)) == Recurrence(key="k", cron=written)


@pytest.mark.parametrize("cron", ["0 9 LW * *", "0 9 1,LW * 5", "0 9 * * 1#1,1#3", "0 9 * * 2,1#1", "0 9 * * 1L,1#1"])
def test_cron_that_node_has_no_words_for(cron: str) -> None:
    assert for_node(Recurrence(key="k", cron=cron)) is None


def test_a_zone_in_the_text_is_the_zone_of_the_rule() -> None:
    rule = Recurrence(key="k", cron="TZ=Europe/Berlin 0 9 * * mon", timezone="Asia/Tokyo", until_ms=5)
    assert for_node(rule) == Recurrence(key="k", cron="0 9 * * 1", timezone="Europe/Berlin", until_ms=5)


def test_every_is_an_interval() -> None:
    assert for_node(Recurrence(key="k", cron="@every 1h")) == Recurrence(key="k", every_ms=3_600_000)
    assert for_node(Recurrence(key="k", every_ms=5)) == Recurrence(key="k", every_ms=5)
