"""The schedule at run time, and rolling deploys: real rosters and books, in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar

from celery_singleton_lock import ConfigurationError
from celery_singleton_lock.beat import book, definitions
from celery_singleton_lock.beat.entry import SingletonEntry, mark_of
from celery_singleton_lock.beat.once import once
from celery_singleton_lock.beat.plan import run_id
from celery_singleton_lock.beat.slots import grid_of

from .world import SECOND, START, World, new_app


@pytest.fixture
def world() -> World:
    return World()


def seconds(*numbers: float) -> list[float]:
    return [float(number) for number in numbers]


EVERY_SECOND: Any = {"e": {"schedule": 1}}


# Entries


def test_added_entry_is_published_by_all_replicas_from_the_next_slot_on(world: World) -> None:
    for _ in range(3):
        world.add_beat()
    world.run(5.5)
    world.schedule().add("new", "tasks.new", 2, args=(1,), options={"queue": "q"})
    world.run(10)
    assert world.slots_of("new") == seconds(6, 8, 10, 12, 14)


def test_slot_between_the_adding_and_the_seeing_of_an_entry_is_not_lost(world: World) -> None:
    world.add_beat()
    world.run(5.98)
    world.schedule().add("new", "tasks.new", 1)
    world.run(4.5)
    assert world.slots_of("new") == seconds(6, 7, 8, 9, 10)


def test_changed_entry_leaves_its_old_slots_within_a_second(world: World) -> None:
    for _ in range(3):
        world.add_beat()
    changes = world.schedule()
    changes.add("e", "tasks.t", 1)
    world.run(5.5)
    changes.change("e", schedule=10)
    world.run(1)
    before = len(world.published)
    world.run(24)
    assert world.slots_of("e")[before:] == seconds(10, 20, 30)


def test_removed_entry_is_published_no_more_and_does_not_come_back(world: World) -> None:
    first = world.add_beat()
    changes = world.schedule()
    changes.add("e", "tasks.t", 1)
    world.run(5.5)
    changes.remove("e")
    world.run(1)
    before = len(world.published)
    world.add_beat()
    world.kill(first)
    world.run(10)
    assert len(world.published) == before
    assert [state.name for state in changes.entries()] == []


def test_added_entries_outlive_all_replicas(world: World) -> None:
    first = world.add_beat()
    world.schedule().add("e", "tasks.t", 60)
    world.run(61)
    world.kill(first)
    world.run(30)
    world.add_beat()
    world.run(60)
    assert world.slots_of("e") == seconds(60, 120)


def test_entry_that_is_due_once_is_published_once_and_gone(world: World) -> None:
    for _ in range(2):
        world.add_beat()
    changes = world.schedule()
    changes.add("e", "tasks.t", START + 10 * SECOND)
    world.run(9.9)
    assert world.published == []
    world.run(3)
    assert world.slots_of("e") == seconds(10)
    assert changes.entries() == []
    world.run(30)
    assert world.slots_of("e") == seconds(10)


def test_entry_is_due_only_from_its_start_to_its_end(world: World) -> None:
    bounds: Any = {"start": START + 3 * SECOND, "end": START + 6 * SECOND}
    world.add_beat(static={"schedule": 1, **bounds})
    world.schedule().add("dynamic", "tasks.t", 1, **bounds)
    world.run(20)
    assert world.slots_of("static") == seconds(3, 4, 5, 6)
    assert world.slots_of("dynamic") == seconds(3, 4, 5, 6)


def test_store_that_forgot_is_told_of_added_and_paused_entries(world: World) -> None:
    for _ in range(2):
        world.add_beat(p={"schedule": 1})
    changes = world.schedule(p={"schedule": 1})
    changes.add("e", "tasks.t", 1)
    world.run(3.5)
    changes.pause("p")
    world.run(2)
    paused_at = world.slots_of("p")
    world.store.forget()
    world.run(5)
    newcomer = world.add_beat(p={"schedule": 1})
    world.run(5)
    assert newcomer.is_ready
    assert world.slots_of("e") == seconds(*range(1, 16))
    assert world.slots_of("p") == paused_at
    assert {state.name: state.is_paused for state in changes.entries()} == {"e": False, "p": True}


def test_newcomer_that_meets_an_emptied_store_first_skips_no_slot(world: World) -> None:
    tens: Any = {"e": {"schedule": 10}}
    world.add_beat(**tens)
    world.run(19.85)
    world.broker_is_away = True
    world.run(0.8)  # slot 20 is due, and late
    world.broker_is_away = False
    world.store.forget()
    [(_, _, old)] = world._wakes
    world.kill(old)
    world.add_beat(**tens)
    world.run(0.1)  # the newcomer has looked, and found nothing
    world.wake(old)
    world.run(30)
    assert sorted(set(world.slots_of("e"))) == seconds(10, 20, 30, 40, 50)


def test_page_that_somebody_puts_back_does_not_undo_a_newer_one(world: World) -> None:
    world.add_beat(**EVERY_SECOND)
    changes = world.schedule(**EVERY_SECOND)
    changes.resume("e")
    [old] = world.store.read("beat:app").pages
    world.run(3.5)
    changes.pause("e")
    world.run(2)
    before = len(world.published)
    world.store.forget()
    world.store.write("beat:app", [old])
    world.run(10)
    assert len(world.published) == before
    assert [state.is_paused for state in changes.entries()] == [True]


def test_added_entries_stay_when_the_replicas_own_schedule_changes(world: World) -> None:
    replica = world.add_beat()
    world.schedule().add("e", "tasks.t", 1)
    world.run(3.5)
    replica.follow([])
    world.run(3)
    assert world.slots_of("e") == seconds(*range(1, 7))


def test_entry_of_beat_schedule_goes_before_an_added_one_of_its_name(world: World) -> None:
    world.schedule().add("e", "tasks.t", 1)
    world.add_beat(e={"schedule": 10})
    world.run(30.5)
    assert world.slots_of("e") == seconds(10, 20, 30)


# Turns of the key


def test_paused_entry_is_published_no_more_and_resumes_without_its_past(world: World) -> None:
    for _ in range(3):
        world.add_beat(**EVERY_SECOND)
    changes = world.schedule(**EVERY_SECOND)
    world.run(5.5)
    changes.pause("e", why="broken partner")
    world.run(1)
    before = world.slots_of("e")
    assert set(before) <= set(seconds(*range(1, 7)))
    world.run(9)
    assert world.slots_of("e") == before
    [state] = changes.entries()
    assert (state.is_paused, state.paused_by, state.paused_why) == (True, "tester", "broken partner")
    assert state.next_slot is None
    world.run(0.1)
    changes.resume("e")  # at 15.6
    world.run(5)
    assert world.slots_of("e") == before + seconds(*range(16, 21))


def test_pause_outlives_all_replicas(world: World) -> None:
    first = world.add_beat(**EVERY_SECOND)
    world.run(5.5)
    world.schedule(**EVERY_SECOND).pause("e")
    world.run(1)
    before = len(world.published)
    world.kill(first)
    world.add_beat(**EVERY_SECOND)
    world.run(10)
    assert len(world.published) == before


def test_trigger_is_published_once_and_leaves_the_schedule_alone(world: World) -> None:
    hourly: Any = {"e": {"schedule": 3600}}
    for _ in range(3):
        world.add_beat(**hourly)
    world.run(5)
    changes = world.schedule(**hourly)
    changes.pause("e")
    id_ = changes.trigger("e")
    world.run(2)
    [due] = world.published
    assert due.entry == "e"
    assert run_id("app", "e", due.slot) == id_
    assert START + 5 * SECOND <= due.slot < START + 6 * SECOND
    assert changes.jobs() == []
    changes.resume("e")
    world.run(3600)
    assert world.slots_of("e")[1:] == seconds(3600)


def test_backfill_publishes_every_slot_of_its_range_as_the_run_it_would_have_been(
    world: World,
) -> None:
    minutely: Any = {"e": {"schedule": 60}}
    for _ in range(3):
        world.add_beat(**minutely)
    world.run(5)
    changes = world.schedule(**minutely)
    backfill = changes.backfill("e", START - timedelta(hours=50), START - timedelta(minutes=1))
    assert backfill.slots == 3000
    assert [job.entry for job in changes.jobs()] == ["e"]
    world.run(30)
    slots = world.slots_of("e")
    assert slots == seconds(*range(-3000 * 60, 0, 60))
    assert changes.jobs() == []
    world.run(60)
    assert world.slots_of("e")[-1] == 60


def test_backfill_that_is_cancelled_ends_where_it_is(world: World) -> None:
    minutely: Any = {"e": {"schedule": 60}}
    for _ in range(2):
        world.add_beat(**minutely)
    world.run(5)
    changes = world.schedule(**minutely)

    def cancel() -> None:
        world.before_publish = lambda: None
        cancelled = changes.cancel(backfill.id[:6])
        assert cancelled is not None
        assert cancelled.id == backfill.id

    world.before_publish = cancel
    backfill = changes.backfill("e", START - timedelta(hours=500), START - timedelta(minutes=1))
    kept = changes.trigger("e")
    world.run(40)
    slots = world.slots_of("e")
    # It is heard of with the next heartbeat, and 5,000 are published in a second here.
    assert 0 < sum(slot < 0 for slot in slots) < 10_000 < backfill.slots
    assert changes.jobs() == []
    # The other job is done, and so is the schedule.
    assert kept in {run_id("app", "e", due.slot) for due in world.published}
    world.run(60)
    assert world.slots_of("e")[-1] == 60


def test_job_that_there_is_not_or_more_than_one_is_not_cancelled(world: World) -> None:
    minutely: Any = {"e": {"schedule": 60}}
    changes = world.schedule(**minutely)
    for _ in range(2):
        changes.trigger("e")
    assert changes.cancel("f" * 32) is None
    with pytest.raises(ConfigurationError, match="2 jobs begin with"):
        changes.cancel("")
    assert len(changes.jobs()) == 2


def test_job_of_a_replica_that_dies_in_the_middle_is_finished_by_another(world: World) -> None:
    minutely: Any = {"e": {"schedule": 60}}
    replicas = [world.add_beat(**minutely) for _ in range(2)]
    world.run(5)

    def die() -> None:
        if len(world.published) >= 1000:
            world.before_publish = lambda: None
            world.store.is_away = True  # the dead release nothing
            raise KeyboardInterrupt

    world.before_publish = die
    world.schedule(**minutely).backfill("e", START - timedelta(hours=50), START - SECOND)
    with pytest.raises(KeyboardInterrupt):
        world.run(30)
    world.store.is_away = False
    assert len(replicas) == 2
    world.run(15)
    assert sorted(set(world.slots_of("e"))) == seconds(*range(-3000 * 60, 0, 60))


def test_job_on_an_entry_that_is_removed_is_not_done(world: World) -> None:
    world.add_beat()
    changes = world.schedule()
    changes.add("e", "tasks.t", 3600)
    world.run(2)
    world.broker_is_away = True
    changes.backfill("e", START - timedelta(hours=5), START)
    world.run(2)
    changes.remove("e")
    world.run(2)
    world.broker_is_away = False
    world.run(10)
    assert world.published == []


def test_job_follows_its_entry_when_that_is_changed(world: World) -> None:
    world.add_beat()
    changes = world.schedule()
    changes.add("e", "tasks.t", 3600)
    world.run(2)
    world.broker_is_away = True
    changes.backfill("e", START - timedelta(hours=2), START)
    world.run(2)
    changes.change("e", schedule=1800)
    world.run(2)
    world.broker_is_away = False
    world.run(10)
    assert world.slots_of("e") == seconds(-7200, -5400, -3600, -1800, 0)


def test_jitter_puts_slots_off_alike_everywhere_and_in_order(world: World) -> None:
    spread: Any = {f"e{n}": {"schedule": 60, "jitter": 600} for n in range(20)}
    when: dict[str, list[float]] = {name: [] for name in spread}

    def note() -> None:
        for name in spread:
            when[name] += [world.seconds - 1000] * (len(world.slots_of(name)) - len(when[name]))

    for _ in range(3):
        world.add_beat(**spread)
    for _ in range(3000):
        world.run(0.1)
        note()
    for name in spread:
        assert world.slots_of(name)[:4] == seconds(60, 120, 180, 240)
        delays = [at - slot for at, slot in zip(when[name], world.slots_of(name), strict=True)]
        assert all(0 <= delay < 60.5 for delay in delays)
    assert len({round(when[name][0]) for name in spread}) > 8


# Rolling deploys


def test_entry_whose_schedule_changed_is_not_run_on_both_grids(world: World) -> None:
    old: Any = {"e": {"schedule": 1}, "same": {"schedule": 1}}
    new: Any = {"e": {"schedule": 10}, "same": {"schedule": 1}}
    olds = [world.add_beat(**old) for _ in range(2)]
    world.run(14.5)
    world.add_beat(**new)
    world.run(3)
    before = len(world.slots_of("e"))
    world.run(25)
    assert world.slots_of("e")[before:] == seconds(20, 30, 40)
    assert world.slots_of("same") == seconds(*range(1, 43))
    for replica in olds:
        world.kill(replica)
    world.run(10)
    assert world.slots_of("e")[before:] == seconds(20, 30, 40, 50)


def test_new_schedule_invents_no_past(world: World) -> None:
    first = world.add_beat(e={"schedule": 3600})
    world.run(1805)
    world.kill(first)
    world.add_beat(e={"schedule": 60})
    world.run(120)
    assert world.slots_of("e") == seconds(1860, 1920)
    assert world.missed == []


def test_old_replica_takes_its_entries_up_again_when_the_new_one_is_gone(world: World) -> None:
    world.add_beat(e={"schedule": 1})
    world.run(4.5)
    new = world.add_beat(e={"schedule": 10})
    world.run(8)
    world.kill(new)
    world.run(20)
    assert set(world.slots_of("e")) >= set(seconds(*range(20, 32)))


def test_config_that_is_rolled_back_counts_again(world: World) -> None:
    old: Any = {"e": {"schedule": 1}}
    world.add_beat(**old)
    world.run(4.5)
    new = world.add_beat(e={"schedule": 10})
    world.run(8)
    world.add_beat(**old)
    world.run(5)
    before = len(world.slots_of("e"))
    world.run(5)
    assert len(world.slots_of("e")) == before + 5
    world.kill(new)
    world.run(5)
    assert len(world.slots_of("e")) == before + 10


def test_entry_whose_arguments_changed_loses_no_slot(world: World) -> None:
    world.add_beat(e={"schedule": 1, "args": (1,)})
    world.run(5.9)
    world.broker_is_away = True
    world.run(0.3)  # slot 6 is due, and late
    world.add_beat(e={"schedule": 1, "args": (2,)})
    world.run(0.8)
    world.broker_is_away = False
    world.run(8.3)
    assert world.slots_of("e") == seconds(*range(1, 16))


def test_old_replica_neither_removes_nor_re_adds_entries(world: World) -> None:
    old = world.add_beat(gone={"schedule": 1}, stays={"schedule": 1})
    world.run(5.5)
    world.add_beat(stays={"schedule": 1}, new={"schedule": 1})
    world.run(5)
    world.kill(old)
    world.run(1)
    before = len(world.slots_of("gone"))
    world.run(10)
    assert len(world.slots_of("gone")) == before
    assert world.slots_of("stays") == seconds(*range(1, 22))
    assert world.slots_of("new")[-10:] == seconds(*range(12, 22))


# What cannot be


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda it: it.add("e", "t", 5), "there is an entry 'e' already"),
        (lambda it: it.add("n", "t", START - SECOND), "that is past"),
        (lambda it: it.add("n", "t", 5, args=(object(),)), "not plain JSON"),
        (lambda it: it.add("n", "t", 5, catch_up="sometimes"), "catch_up"),
        (lambda it: it.add("n", "t", 5, jiter=5), "unknown 'jiter': did you mean 'jitter'"),
        (lambda it: it.add("n", "t", 5, start=START.replace(tzinfo=None)), "time zone"),
        (lambda it: it.add("n", "t", 5, start=START, end=START - SECOND), "before its start"),
        (lambda it: it.add("n", "t", 5, end=datetime.max.replace(tzinfo=UTC)), "out of reach"),
        (lambda it: it.add("n", "t", datetime.max.replace(tzinfo=UTC)), "out of reach"),
        (lambda it: it.backfill("e", datetime.min.replace(tzinfo=UTC), START), "out of reach"),
        (lambda it: it.change("e", schedule=5), "stands in beat_schedule"),
        (lambda it: it.remove("e"), "stands in beat_schedule"),
        (lambda it: it.remove("n"), "there is no entry 'n'"),
        (lambda it: it.pause("ee"), "did you mean 'e'"),
        (lambda it: it.change("ee"), "^there is no entry 'ee'"),
        (lambda it: it.trigger("x"), "there is no entry 'x'"),
        (lambda it: it.backfill("e", START, START + timedelta(days=1)), "is to come"),
        (
            lambda it: it.backfill("e", START, START.replace(tzinfo=None)),
            "no datetime with a time zone",
        ),
        (lambda it: it.backfill("e", START, START), "no slot"),
    ],
)
def test_what_cannot_be_is_refused_and_says_what_to_do(world: World, call: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        call(world.schedule(e={"schedule": 7}))
    assert world.store.read("beat:app").pages == ()


@pytest.mark.parametrize(
    "given",
    [
        schedule(timedelta(seconds=1.5)),
        schedule(timedelta(days=1), relative=True),
        crontab(minute="*/5", hour="1-3", day_of_week="mon,fri"),
        crontab(minute=7, hour={1, 2}, day_of_month="1", month_of_year="*/2"),
        solar("sunrise", 48.1, 11.6),
        once(START),
    ],
)
def test_schedule_that_is_kept_in_the_store_has_the_same_slots(given: Any) -> None:
    app = new_app({})
    given.app = app
    back = definitions.decode_schedule(definitions.encode_schedule("e", given), app)
    assert type(back) is type(given)
    moment = START - timedelta(days=2)
    assert grid_of(back).next(moment) == grid_of(given).next(moment)


def test_mark_tells_definitions_apart_and_is_the_same_in_every_process() -> None:
    def mark(**changes: Any) -> str:
        fields = {"task": "t", "schedule": crontab(app=app), "args": (1,), **changes}
        return mark_of(SingletonEntry(name="e", app=app, **fields))

    app = new_app({})
    same = mark()
    assert same == mark()
    assert mark(args=(object(),)) == mark(args=(object(),))
    others = [mark(task="u"), mark(args=(2,)), mark(schedule=60), mark(jitter=5), mark(end=START)]
    assert len({same, *others}) == 6
    grids = [text.partition(".")[0] for text in (same, *others)]
    assert grids[0] == grids[1] == grids[2]
    assert len(set(grids)) == 4


@pytest.mark.parametrize("every", [1e300, "soon", None, [], {}])
def test_entry_that_is_not_understood_hides_no_other_and_can_be_removed(
    world: World, every: Any
) -> None:
    definition = {"task": "t", "schedule": {"every": every, "relative": False}}
    world.store.write("beat:app", [book.entry_page("odd", definition)])
    schedule = world.schedule(e={"schedule": 7})
    assert [entry.name for entry in schedule.entries()] == ["e"]
    with pytest.raises(ConfigurationError, match="remove it, and add it anew"):
        schedule.change("odd", args=[1])
    schedule.remove("odd")
    assert schedule.contents().unreadable == []


def test_page_that_is_not_understood_is_passed_over(world: World) -> None:
    from celery_singleton_lock.core.models import Page

    world.add_beat(**EVERY_SECOND)
    pages = [
        Page("entry:bad", 0, "{"),
        Page("entry:worse", 0, '{"task": "t", "schedule": {"lunar": 1}}'),
        Page("future:kind", 0, "{}"),
        Page("job:1", 0, '{"kind": "rewind", "entry": "e"}'),
        Page("pause:e", 0, "[]"),
    ]
    world.store.write("beat:app", pages)
    world.run(5.5)
    assert world.slots_of("e") == seconds(*range(1, 6))
