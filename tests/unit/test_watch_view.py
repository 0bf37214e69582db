"""The live view: what is drawn, and what is told to have happened between two looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_singleton_lock.beat.entry_state import EntryState
from celery_singleton_lock.cli.printing import columns_of
from celery_singleton_lock.cli.watching.drawing import View, draw
from celery_singleton_lock.cli.watching.happening import Diary, Happening
from celery_singleton_lock.cli.watching.looking import Look
from celery_singleton_lock.core.models import RecordState
from celery_singleton_lock.recovery.locks import Lock

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def entry(name: str, **facts: Any) -> EntryState:
    state = EntryState(
        name, "shop.tick", "<freq: 10.00 seconds>", False, False, "", "", NOW, NOW + 10 * SECOND
    )
    return replace(state, **facts)


def lock(run: str, **facts: Any) -> Lock:
    note = {"task": "shop.slow", "worker": "w1@host", "run": run, "attempt": 1}
    held = Lock(f"run:{run}", RecordState.HELD, "o", 7, NOW, SECOND, 9 * SECOND, None, 0, None, note)
    return replace(held, **facts)


class Ended:
    outcome = "failed"


def look(**facts: Any) -> Look:
    seen = Look(
        "shop", "redis://host/0", NOW, ("web1:1:a@1",), [entry("tick")], 0, [lock("1")], 0,
        lambda keys: [Ended() for _ in keys],  # type: ignore[misc]
    )  # fmt: skip
    return replace(seen, **facts)


def told(before: Look, after: Look) -> list[str]:
    diary = Diary()
    diary.take_in(before)
    return [each.text for each in diary.take_in(after)]


def test_end_that_a_worker_told_is_told_once_and_in_its_words() -> None:
    def heard(run: str) -> Happening:
        return Happening(NOW, f"succeeded: shop.slow on w1@host, took {run}s", run=run, is_told=True)

    both = look(locks=[lock("1"), lock("2"), lock("3")])
    diary = Diary()
    diary.take_in(both)
    diary.hear([heard("1")])
    diary.take_in(look(locks=[]))
    lines = [each.text for each in diary.hear([heard("2")])]
    assert lines == [
        "succeeded: shop.slow on w1@host, took 2s",
        "failed: shop.slow on w1@host",
        "succeeded: shop.slow on w1@host, took 1s",
    ]


def test_view_fits_any_terminal() -> None:
    entries = [entry(f"<script>🚀\x1b[31m {n}" + "x" * 90) for n in range(10_000)]
    locks = [lock(str(n), overdue_by=SECOND) for n in range(500)]
    diary = Diary()
    diary.take_in(look())
    seen = look(entries=entries, locks=locks, members=("web1:1:a@1",) * 30, letters=5)
    view = View(seen, diary.take_in(seen))
    for width, height in ((80, 24), (40, 10), (200, 60), (20, 5)):
        lines = draw(view, width=width, height=height, has_colour=False)
        assert len(lines) <= height
        assert max(map(columns_of, lines)) <= max(width, 44), (width, height)
        assert "\x1b" not in "".join(lines)


def test_late_comes_first_then_what_is_due_next() -> None:
    entries = [
        entry("later", next_slot=NOW + 60 * SECOND),
        entry("soon", next_slot=NOW + SECOND),
        entry("stopped", is_paused=True, next_slot=None),
        entry("late", due_since=NOW - 60 * SECOND),
    ]
    lines = draw(View(look(entries=entries)), width=80, height=None, has_colour=False)
    rows = [line.split() for line in lines]
    order = [row for row in rows if any(name in row for name in ("later", "soon", "stopped", "late"))]
    names = [next(n for n in row if n in ("later", "soon", "stopped", "late")) for row in order]
    assert [name for name in names if name][-4:] == ["late", "soon", "later", "stopped"]


def test_lists_that_are_cut_say_so() -> None:
    entries = [entry(f"e{n}") for n in range(30)]
    lines = draw(View(look(entries=entries)), width=80, height=24, has_colour=False)
    assert any("more" in line for line in lines)


def test_no_beat_is_told_in_the_head() -> None:
    lines = draw(View(look(members=())), width=80, height=24, has_colour=False)
    assert "NONE ALIVE" in lines[1]


def test_store_that_is_away_is_told_over_the_last_view() -> None:
    lines = draw(View(look()).without_store("it is gone"), width=80, height=24, has_colour=False)
    assert lines[0] == "STORE AWAY: it is gone"
    assert any("tick" in line for line in lines)
    assert draw(View(None).without_store("x"), width=80, height=24, has_colour=False) == [
        "STORE AWAY: x"
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"members": ()}, "beat web1:1 is gone"),
        ({"members": ("web1:1:a@1", "web2:9:a@1")}, "beat web2:9 came"),
        ({"entries": [entry("tick", last_slot=NOW + SECOND)]}, "published tick of 12:00:01"),
        ({"entries": [entry("tick", is_paused=True, paused_by="anna")]}, "tick paused by anna"),
        ({"entries": [entry("tick"), entry("new")]}, "added new"),
        ({"entries": []}, "removed tick"),
        ({"locks": [lock("1"), lock("2")]}, "started shop.slow on w1@host"),
        ({"locks": []}, "failed: shop.slow on w1@host"),
        ({"locks": [lock("1", state=RecordState.EXPIRED)]}, "shop.slow: now expired"),
        ({"locks": [lock("1", fence=8)]}, "shop.slow: taken by w1@host"),
        ({"locks": [lock("1", overdue_by=SECOND)]}, "shop.slow on w1@host is overdue"),
        ({"letters": 2}, "2 more dead letters"),
    ],
)
def test_what_changed_is_told(change: dict[str, Any], text: str) -> None:
    assert told(look(), look(**change)) == [text]


def test_nothing_changed_nothing_is_told() -> None:
    assert told(look(), look()) == []
    assert told(look(letters=None), look(letters=3)) == []


def test_many_slots_at_once_are_told_as_a_number() -> None:
    before = [entry(f"e{n}") for n in range(1000)]
    after = [replace(each, last_slot=NOW + SECOND) for each in before]
    assert told(look(entries=before), look(entries=after)) == ["published: 1000 entries"]
