"""Rules in words, next occurrences, and the coming week."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from msgspec import Raw

from jobmill.core.cron import Cron
from jobmill.core.due import Held
from jobmill.core.durations import instant_ms, to_datetime
from jobmill.core.job import Job
from jobmill.core.recurrence import Recurrence
from jobmill.dashboard.schedules import coming, coming_week, described, expression, first_of
from jobmill.errors import InvalidValue

NOW = instant_ms(datetime(2026, 11, 16, 14, 5, 20, tzinfo=UTC), "time")  # a Monday
HOUR_MS = 3_600_000


def _job(rule: Recurrence, **about: object) -> Job:
    given: dict[str, object] = {
        "id": "j",
        "name": "report",
        "queue": "default",
        "payload_json": Raw(b"{}"),
        "state": "waiting",
        "priority": 0,
        "due_ms": NOW + 1_000,
        "created_ms": NOW,
        "updated_ms": NOW,
        "recurrence": rule,
        **about,
    }
    return Job(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "Every minute"),
        ("* * * * * *", "Every second"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("0 * * * * *", "Every minute"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("0,15,30,45 * * * *", "Every 15 minutes"),
        ("*/30 * * * *", "Every 30 minutes"),
        ("39 * * * *", "Every hour, at minute 39 UTC"),
        ("@hourly", "Every hour, at minute 0 UTC"),
        ("5,20,36 * * * *", "Every hour, at minutes 5, 20 and 36 UTC"),
        ("5-59/10 * * * *", "Every hour, at minutes 5, 15, 25, 35, 45 and 55 UTC"),
        ("0 8 * * *", "Every day at 08:00 UTC"),
        ("@daily", "Every day at 00:00 UTC"),
        ("30 15 8 * * *", "Every day at 08:15:30 UTC"),
        ("0 8,20 * * *", "Every day at 08:00 and 20:00 UTC"),
        ("0 */6 * * *", "Every day at 00:00, 06:00, 12:00 and 18:00 UTC"),
        ("0 */2 * * *", "Every 2 hours from 00:00 to 22:00 UTC"),
        ("15 9-17 * * *", "Every hour from 09:15 to 17:15 UTC"),
        ("*/15 9-17 * * mon-fri", "Every 15 minutes from 09:00 to 17:45 on every weekday UTC"),
        ("* 9 * * *", "Every minute from 09:00 to 09:59 UTC"),
        ("0 8 * * 1-5", "Every weekday at 08:00 UTC"),
        ("0 4 * * 0", "Every Sunday at 04:00 UTC"),
        ("0 4 * * 7", "Every Sunday at 04:00 UTC"),
        ("@weekly", "Every Sunday at 00:00 UTC"),
        ("0 4 * * sat,sun", "Every Saturday and Sunday at 04:00 UTC"),
        ("0 4 ? * 5,1,3", "Every Monday, Wednesday and Friday at 04:00 UTC"),
        ("0 4 * 1 *", "Every day in January at 04:00 UTC"),
        ("0 4 * jun-aug mon", "Every Monday in June, July and August at 04:00 UTC"),
        ("0 0 1 * *", "On the 1st of every month at 00:00 UTC"),
        ("0 0 31 * *", "On the 31st of every month that has it at 00:00 UTC"),
        ("@yearly", "On the 1st of January at 00:00 UTC"),
        ("30 2,14 1,15 1,4,7,10 *", "On the 1st and 15th of January, April, July and October at 02:30 and 14:30 UTC"),
        ("0 0 2,3,22,23 * *", "On the 2nd, 3rd, 22nd and 23rd of every month at 00:00 UTC"),
        ("* * 13 * *", "Every minute on the 13th of every month UTC"),
        ("0 8 1-31 * mon", "Every day at 08:00 UTC"),  # not a bare star: one of both is enough
        ("@every 90s", "Every 90 seconds"),
        ("TZ=Asia/Tokyo 0 8 * * *", "Every day at 08:00 Asia/Tokyo"),
    ],
)
def test_a_cron_in_words(cron: str, words: str) -> None:
    assert described(Recurrence(key="k", cron=cron)) == words


@pytest.mark.parametrize(
    "cron",
    [
        "*/7 * * * *",
        "0 8 L * *",
        "0 8 LW * *",
        "0 8 * * 5#2",
        "0 8 * * 5L",
        "0 8 13 * 5",
        "0 8 1,31 * *",
        "0 8 30 2,3 *",
        "0 8 1-7 * *",
        "0 8 * 1-7 *",
        "*/7 8 * * *",
        "1,2,4 1,3,7 * * *",
        "30 * * * * *",
        "*/20 5 8 * * *",
        "0 1,2,4,8,9,10,11 * * *",
    ],
)
def test_what_no_short_sentence_says_is_shown_as_it_is(cron: str) -> None:
    assert described(Recurrence(key="k", cron=cron)) == f"{cron} UTC"


def test_other_rules_in_words() -> None:
    berlin = Recurrence(key="k", cron="0 8 * * 1-5", timezone="Europe/Berlin")
    assert described(berlin) == "Every weekday at 08:00 Europe/Berlin"
    words = {1_000: "Every second", 30_000: "Every 30 seconds", 90_000: "Every 90 seconds", 60_000: "Every minute"}
    words |= {HOUR_MS: "Every hour", 24 * HOUR_MS: "Every 24 hours", 1_500: "Every 1,500 ms", 1: "Every 1 ms"}
    assert {ms: described(Recurrence(key="k", every_ms=ms)) for ms in words} == words
    assert expression(Recurrence(key="k", every_ms=90_000)) == "every 1m30s"
    assert expression(Recurrence(key="k", cron="0 8 * * *")) == "0 8 * * *"


@pytest.mark.parametrize("cron", ["", "nonsense", "0 8 * *", "61 * * * *", "@reboot", "0 0 30 2 *"])
def test_a_rule_that_cannot_be_read_is_shown_as_it_is(cron: str) -> None:
    assert described(Recurrence(key="k", cron=cron)) == cron
    assert described(Recurrence(key="k", cron=cron, timezone="No/Where")) == cron
    assert described(Recurrence(key="k")) == ""


def test_rules_with_the_same_words_have_the_same_occurrences() -> None:
    """Thousands of expressions: no two that differ have one sentence, and each time that is named does occur."""
    dice = random.Random(17)
    pieces = {
        "minute": ["*", "0", "5", "*/5", "*/15", "*/7", "0,30", "0-30", "10-50/20", "59"],
        "hour": ["*", "8", "*/2", "*/6", "*/5", "9-17", "8,20", "9-17/2", "22-23", "0-22"],
        "day": ["*", "1", "1,15", "*/2", "31", "1-7", "1-31", "L", "28"],
        "month": ["*", "1", "1,7", "1-6", "*/3", "2", "jan-dec"],
        "weekday": ["*", "1-5", "0", "7", "0,6", "mon,wed", "*/2", "0-6", "1-7", "5L"],
    }
    seen: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    worded = 0
    for _ in range(1_500):
        text = " ".join(dice.choice(choices) for choices in pieces.values())
        try:
            cron = Cron.parse(text)
        except InvalidValue:
            continue
        words = described(Recurrence(key="k", cron=text))
        worded += words != f"{text} UTC"
        occurrences: list[int | None] = [NOW]
        for _ in range(15):
            last = occurrences[-1]
            occurrences.append(None if last is None else cron.next(last))
        first = seen.setdefault(words, (text, tuple(occurrences)))
        assert first[1] == tuple(occurrences), (words, first[0], text)
    assert worded > 200


def test_next_occurrences() -> None:
    daily = Recurrence(key="k", cron="0 8 * * *", timezone="Europe/Berlin")
    due = instant_ms(datetime(2026, 11, 17, 7, tzinfo=UTC), "time")
    days = [due + n * 24 * HOUR_MS for n in range(5)]
    assert coming(_job(daily, due_ms=due, occurrence_ms=due), NOW, 5) == days
    # A retry comes first, and then what the rule says.
    retry = _job(daily, due_ms=NOW + 5_000, occurrence_ms=due - 24 * HOUR_MS, errors=1)
    assert coming(retry, NOW, 3) == [NOW + 5_000, *days[:2]]
    # A late run is the next one; the occurrences that it missed are left out.
    late = _job(daily, due_ms=due - 72 * HOUR_MS, occurrence_ms=due - 72 * HOUR_MS)
    assert coming(late, NOW, 3) == [due - 72 * HOUR_MS, *days[:2]]
    assert coming(_job(daily, state="running", occurrence_ms=due - 24 * HOUR_MS), NOW, 2) == days[:2]
    assert coming(_job(daily, held=Held(by=("person",))), NOW, 5) == []
    ending = Recurrence(key="k", every_ms=1_000, until_ms=NOW + 3_000)
    assert coming(_job(ending, occurrence_ms=NOW + 1_000), NOW, 5) == [NOW + 1_000, NOW + 2_000, NOW + 3_000]
    assert first_of(ending, NOW, 2) == [NOW, NOW + 1_000]
    assert first_of(daily, NOW, 2) == days[:2]
    with pytest.raises(InvalidValue):
        coming(_job(Recurrence(key="k", cron="nonsense")), NOW, 5)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/New_York"])
@pytest.mark.parametrize("now", [NOW, NOW - 25 * 24 * HOUR_MS, NOW - 17 * 24 * HOUR_MS, NOW + 135 * 24 * HOUR_MS])
def test_the_coming_week_has_all_occurrences(zone: str, now: int) -> None:
    """Also in weeks in which the clock changes, for the rule or for the visitor."""
    crons = ["0 8 * * 1-5", "*/20 * * * *", "30 1-3 * * *", "* 9-10 17 * *", "45 23 * * 0", "7 7 1 1 *", "0 0 2 * * *"]
    for cron in crons:
        for rule_zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu"):
            rule = Recurrence(key="k", cron=cron, timezone=rule_zone)
            days, is_all = coming_week([_job(rule)], now, ZoneInfo(zone))
            expected: Counter[tuple[str, int]] = Counter()
            parsed, at = Cron.parse(cron, rule_zone), now
            while (found := parsed.next(at)) is not None and found < now + 9 * 24 * HOUR_MS:
                local = to_datetime(found).astimezone(ZoneInfo(zone))
                expected[local.date().isoformat(), local.hour] += 1
                at = found
            shown = {(day.date, hour): n for day in days for hour, n in enumerate(day.hours) if n}
            dates = {day.date for day in days}
            assert shown == {key: n for key, n in expected.items() if key[0] in dates}, (cron, rule_zone)
            assert is_all


def test_intervals_ends_and_paused_jobs_in_the_coming_week() -> None:
    minutely = Recurrence(key="k", every_ms=60_000)
    days, _ = coming_week([_job(minutely, due_ms=NOW + 40_000, occurrence_ms=NOW + 40_000)], NOW, UTC)
    assert days[0].hours[13:16] == [0, 54, 60]
    assert sum(sum(day.hours) for day in days) == 54 + 9 * 60 + 6 * 24 * 60
    late = NOW - 3 * HOUR_MS
    days, _ = coming_week([_job(minutely, due_ms=late, occurrence_ms=late)], NOW, UTC)
    assert days[0].hours[10:16] == [0, 0, 0, 0, 54, 60]
    ending = Recurrence(key="k", every_ms=60_000, until_ms=NOW + 100_000)
    assert coming_week([_job(ending, due_ms=NOW + 40_000, occurrence_ms=NOW + 40_000)], NOW, UTC)[0][0].hours[14] == 2
    ended_cron = Recurrence(key="k", cron="0 * * * *", until_ms=NOW + 2 * HOUR_MS)
    assert sum(coming_week([_job(ended_cron)], NOW, UTC)[0][0].hours) == 2
    nothing = [
        _job(minutely, held=Held(by=("person",))),
        _job(Recurrence(key="k", cron="nonsense")),
        _job(Recurrence(key="k")),
        _job(Recurrence(key="k", every_ms=0)),
    ]
    assert sum(sum(day.hours) for day in coming_week(nothing, NOW, UTC)[0]) == 0


def test_the_work_for_the_coming_week_is_bounded() -> None:
    rules = [Recurrence(key="k", cron=f"{n % 60} {n // 60} * * *") for n in range(600)]
    jobs = [_job(rule) for rule in rules]
    now = NOW + 400 * 24 * HOUR_MS
    days, is_all = coming_week(jobs, now, UTC)
    assert not is_all
    first = sum(days[1].hours)
    assert 0 < first < 600
    for _ in range(3):  # what was computed before is known
        days, is_all = coming_week(jobs, now, UTC)
    assert (is_all, sum(days[1].hours)) == (True, 600)


def test_cronsim_has_the_fields_that_are_read() -> None:
    parsed = CronSim("0 0 8 L * 5#2", datetime(2000, 1, 1))
    assert all(value < 0 or isinstance(value, tuple) for value in [*parsed.days])
    assert [type(value) for value in parsed.weekdays] == [tuple]
    assert not parsed.day_and
    assert all(one < other for one, other in pairwise(sorted(parsed.months)))
