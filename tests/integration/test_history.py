"""History: what happened is written down, in any order, and whatever becomes of the database."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery

from celery_singleton_lock.core import facts
from celery_singleton_lock.ledger import Ledger, open_ledger
from celery_singleton_lock.ledger.happenings import News, Status
from celery_singleton_lock.ledger.history import History
from celery_singleton_lock.ledger.queries import Filter, PastRun, Queries
from celery_singleton_lock.ledger.retention import Pruning, Retention
from celery_singleton_lock.ledger.tables import AttemptRow, AuditRow, ClaimRow, LetterRow, RunRow
from celery_singleton_lock.ledger.writing import write_news
from celery_singleton_lock.observability.history import new_history
from celery_singleton_lock.observability.measuring import metrics_of
from celery_singleton_lock.observability.metrics.catalogue import HISTORY_LOST
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.testing.servers import PostgresServer, TcpProxy

from .ledgers import DATABASES, ready_ledger, url_of

SLOT = datetime(2026, 5, 1, 12, tzinfo=UTC)
RUN = facts.RunName("run-1", "shop.report", "nightly", SLOT)


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    ledger = ready_ledger(url_of(request.param, request))
    yield ledger
    ledger.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.schema.upgrade()
    yield ledger
    ledger.close()


def at(seconds: float) -> datetime:
    return SLOT + timedelta(seconds=seconds)


def fence_at(seconds: float) -> int:
    """As stores give them: the time in µs."""
    return int(at(seconds).timestamp() * 1_000_000)


FIRST, SECOND, THIRD = fence_at(0.4), fence_at(20), fence_at(90)


def published(run: facts.RunName = RUN) -> facts.Fact:
    return facts.SlotsPublished(at=at(0.1), runs=(run,), replica="beat-1")


def started(fence: int = FIRST, attempt: int = 1, *, after: float = 0.5, **more: Any) -> facts.Fact:
    more = {"run": RUN, "takeovers": 0, "worker": "w1", **more}
    return facts.RunStarted(at=at(after), attempt=attempt, fence=fence, **more)


def ended(
    outcome: str, fence: int = FIRST, attempt: int = 1, *, after: float = 2.5, **more: Any
) -> facts.Fact:
    more = {"run": RUN, "worker": "w1", "took": timedelta(seconds=2), **more}
    return facts.RunEnded(at=at(after), attempt=attempt, fence=fence, outcome=outcome, **more)


def dead(after: float = 9) -> facts.Fact:
    letter = {"id": "letter-1", "task": RUN.task, "exception": "ValueError: no", "attempts": 2}
    return facts.DeadLettered(at=at(after), run=RUN, reason="failed", letter=letter)


def write(ledger: Ledger, *batches: Sequence[facts.Fact]) -> PastRun:
    for batch in batches:
        news = News()
        for fact in batch:
            news.add(fact)
        write_news(ledger, news)
    found = Queries(ledger).run(RUN.id)
    assert found is not None
    return found


# What is written


def test_a_run_from_its_slot_to_its_end(ledger: Ledger) -> None:
    run = write(ledger, [published()])
    assert (run.status, run.published_at) == (Status.PUBLISHED, at(0.1))
    run = write(ledger, [started()])
    assert (run.status, run.started_at, run.lag_s, run.worker) == ("running", at(0.5), 0.5, "w1")
    run = write(ledger, [ended("succeeded")])
    assert (run.status, run.duration_s, run.ended_at) == (Status.SUCCEEDED, 2.0, at(2.5))
    assert (run.task, run.entry, run.slot, run.fence) == ("shop.report", "nightly", SLOT, FIRST)
    assert Queries(ledger).attempts(RUN.id) == []


LIVES: dict[str, tuple[list[facts.Fact], str, str | None]] = {
    "succeeds at once": ([published(), started(), ended("succeeded")], "succeeded", None),
    "retries": (
        [
            published(),
            started(),
            ended("retried", error="OSError: no"),
            started(SECOND, 2, after=20),
            ended("succeeded", SECOND, 2, after=22),
        ],
        "succeeded",
        None,
    ),
    "dies": (
        [published(), started(), ended("failed, letter due", error="ValueError: no"), dead()],
        "dead",
        "failed",
    ),
    "is taken over": (
        [
            published(),
            started(),
            facts.RunPublishedAgain(at=at(10), run=RUN, fence=FIRST, worker="w1", is_whole=True),
            started(SECOND, after=20.1, takeovers=1, worker="w2"),
            ended("lost", FIRST, after=50),
            ended("succeeded", SECOND, after=22, worker="w2"),
        ],
        "succeeded",
        None,
    ),
    "is put back": ([started(), ended("put back"), started(SECOND, after=20.1)], "running", None),
    "is skipped": (
        [published(), facts.RunSkipped(at=at(1), run=RUN, worker="w1", reason="overlap", by="other")],
        "skipped",
        "overlap",
    ),
    "is missed": ([facts.SlotMissed(at=at(90), run=RUN, reason="too old")], "missed", "too old"),
    "is missed, and filled": (
        [facts.SlotMissed(at=at(90), run=RUN, reason="too old"), started(after=99)],
        "running",
        None,
    ),
    "is revoked": ([started(), ended("revoked")], "failed", "revoked"),
    "is replayed": (
        [started(), ended("failed, letter due"), dead(), started(THIRD, after=91)],
        "running",
        None,
    ),
}


@pytest.mark.parametrize("life", LIVES)
def test_how_a_run_that(ledger: Ledger, life: str) -> None:
    story, status, reason = LIVES[life]
    run = write(ledger, *([each] for each in story))
    assert (run.status, run.reason) == (status, reason)


@pytest.mark.parametrize("life", LIVES)
def test_order_and_batches_do_not_matter_for_a_run_that(ledger: Ledger, life: str) -> None:
    story, *_ = LIVES[life]
    expected = _shown(write(ledger, story))
    orders = list(itertools.permutations(story))
    chance = random.Random(life)
    for order in chance.sample(orders, min(len(orders), 12)):
        ledger.write(lambda connection: connection.execute(sa.delete(RunRow)))
        cut = chance.randrange(len(order) + 1)
        assert _shown(write(ledger, order[:cut], order[cut:])) == expected


def test_letter_leaves_what_is_known_of_the_last_attempt(ledger: Ledger) -> None:
    story = [
        started(),
        ended("retried", error="OSError: no"),
        started(SECOND, 2, after=20),
        ended("failed, letter due", SECOND, 2, after=23),
        dead(after=24),
    ]
    run = write(ledger, *([fact] for fact in story))
    assert (run.status, run.duration_s) == (Status.DEAD, 2.0)
    assert [each.run_id for each in Queries(ledger).slowest(limit=3)] == [RUN.id]


def test_letter_of_a_run_that_killed_its_worker_has_no_duration(ledger: Ledger) -> None:
    story = [
        started(),
        ended("retried", error="OSError: no"),
        started(SECOND, 2, after=20),
        dead(after=24),
    ]
    assert write(ledger, story).duration_s is None


def test_writing_a_batch_twice_is_writing_it_once(ledger: Ledger) -> None:
    story = LIVES["retries"][0]
    once = write(ledger, story)
    assert write(ledger, story) == once
    assert len(Queries(ledger).attempts(RUN.id)) == 2


def test_what_is_told_twice_is_one_row_also_within_a_batch(ledger: Ledger) -> None:
    news = News()
    letter = {"id": "letter-1", "task": RUN.task, "exception": "ValueError: no", "attempts": 2}
    for error in ("ValueError: first", "ValueError: later"):
        news.add(ended("failed", error=error))
        news.add(facts.DeadLettered(at=at(3), run=RUN, reason="failed", letter=letter))
    write_news(ledger, news)
    [attempt] = Queries(ledger).attempts(RUN.id)
    assert attempt.error == "ValueError: later"
    assert ledger.read(lambda it: it.scalar(sa.select(sa.func.count()).select_from(LetterRow))) == 1


@pytest.mark.parametrize("text", ["naïve ✓ 𝄞", "a\0b", "\ud800 half", 'quo"te \\ \n', "x" * 5000])
def test_any_text_can_be_written(ledger: Ledger, text: str) -> None:
    news = News()
    news.add(ended("failed", error=text, worker=text))
    write_news(ledger, news)
    [attempt] = Queries(ledger).attempts(RUN.id)
    assert attempt.error == text.encode(errors="replace").decode().replace("\0", " ")[:4000]


def test_attempts_tell_why_each_failed(ledger: Ledger) -> None:
    write(ledger, LIVES["retries"][0])
    first, second = Queries(ledger).attempts(RUN.id)
    assert (first.outcome, first.error, first.duration_s) == ("retried", "OSError: no", 2.0)
    assert (second.outcome, second.attempt, second.error) == ("succeeded", 2, None)


def test_letters_are_in_history(ledger: Ledger) -> None:
    write(ledger, LIVES["dies"][0])
    [letter] = Queries(ledger).letters()
    assert (letter["letter_id"], letter["run_id"], letter["reason"]) == ("letter-1", RUN.id, "failed")


def test_what_no_database_takes_is_written_all_the_same(ledger: Ledger) -> None:
    name = facts.RunName("run-1", "task\0\ud800" + "x" * 400, "entry", SLOT)
    error = "OSError: redis://ann:s3cret@host \0"
    run = write(ledger, [started(run=name), ended("failed", run=name, error=error)])
    assert run.task is not None
    assert len(run.task) == 255
    assert run.error is not None
    assert "s3cret" not in run.error


def test_several_processes_write_the_same_runs_without_harm(ledger: Ledger) -> None:
    names = [facts.RunName(f"run-{number}", "t", "e", SLOT) for number in range(60)]
    fork = multiprocessing.get_context("fork")

    def child(fence: int) -> None:
        for start in range(0, 60, 20):
            news = News()
            for name in random.sample(names[start : start + 20], 20):
                news.add(started(fence, run=name))
                news.add(ended("succeeded", fence, run=name))
            write_news(ledger, news)

    children = [fork.Process(target=child, args=(fence,)) for fence in (10, 20, 30)]
    for process in children:
        process.start()
    for process in children:
        process.join(40)
    assert [process.exitcode for process in children] == [0, 0, 0]
    runs = Queries(ledger).runs(limit=100).runs
    assert {(run.status, run.fence) for run in runs} == {("succeeded", 30)}
    assert len(runs) == 60


# The writing thread


def test_facts_are_written_soon_by_a_thread(sqlite: Ledger) -> None:
    history = History(sqlite)
    history(started())
    _until(lambda: Queries(sqlite).run(RUN.id))
    assert history.waiting == 0


def test_the_end_of_a_process_writes_what_waits(sqlite: Ledger) -> None:
    history = History(sqlite)
    history.FLUSH_EVERY = 60
    history(started())
    history.close()
    assert Queries(sqlite).run(RUN.id) is not None


def test_a_child_writes_its_own_facts_and_not_its_parents(sqlite: Ledger) -> None:
    history = History(sqlite)
    history.FLUSH_EVERY = 60
    history(started(run=facts.RunName("parents", "t")))
    fork = multiprocessing.get_context("fork")

    def child() -> None:
        assert history.waiting == 0
        history(started(run=facts.RunName("childs", "t")))
        history.close()

    process = fork.Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert [run.run_id for run in Queries(sqlite).runs().runs] == ["childs"]
    assert history.waiting == 1


def test_while_the_database_is_away_facts_wait_and_what_does_not_fit_is_counted(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ready_ledger(postgres.url)
    with TcpProxy(postgres.port) as proxy:
        url = postgres.url.replace(f":{postgres.port}/", f":{proxy.port}/")
        told: list[int] = []
        history = History(open_ledger(url, timeout=timedelta(seconds=2)), on_lost=told.append)
        history.FLUSH_EVERY = history.LONGEST_PAUSE = 0.05
        history.MOST_WAITING = 100
        began = datetime.now(UTC)
        history(started())
        _until(lambda: history.waiting == 0)
        proxy.refuse()
        proxy.cut()
        with caplog.at_level(logging.ERROR):
            history(started(run=facts.RunName("first", "t")))
            _until(lambda: "history_trouble_began" in caplog.text)
            for number in range(300):
                history(started(run=facts.RunName(f"more-{number}", "t")))
            assert history.lost >= 150
            proxy.heal()
            _until(lambda: Queries(ledger).gaps(began))
            _until(lambda: history.waiting == 0)
        assert caplog.text.count("history_trouble_began") == 1
        assert f"history_trouble_ended ledger={history.ledger.name} lost={history.lost}" in caplog.text
        known = Queries(history.ledger).runs(limit=1000).runs
        assert len(known) == 302 - history.lost
        # It is said beside what it is missing from, once, though it was tried in vain many times.
        [gap] = Queries(history.ledger).gaps(began)
        assert (gap.facts, gap.replica) == (history.lost, f"{socket.gethostname()}:{os.getpid()}")
        assert began <= gap.began_at <= gap.ended_at <= datetime.now(UTC)
        assert sum(told) == history.lost
        assert Queries(history.ledger).gaps(datetime.now(UTC)) == []
        history.ledger.close()
    ledger.close()


def test_what_is_lost_is_counted_for_prometheus(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.singleton_lock_url = "memory://"
    app.conf.singleton_database_url = f"sqlite:///{tmp_path}/ledger.db"
    app.conf.singleton_http = "127.0.0.1:0"
    metrics = metrics_of(Settings.from_app(app))
    assert metrics is not None
    before = metrics.counts.read().get((HISTORY_LOST.name, (), ""), 0.0)
    history = new_history(app)
    history.MOST_WAITING = 0
    history(started())
    assert metrics.counts.read()[HISTORY_LOST.name, (), ""] == before + 1


def test_missing_tables_are_said_with_what_to_do_and_used_once_they_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    history = History(ledger)
    history.FLUSH_EVERY = history.LONGEST_PAUSE = 0.05
    with caplog.at_level(logging.ERROR):
        history(started())
        _until(lambda: "singleton db upgrade" in caplog.text)
    ledger.schema.upgrade()
    _until(lambda: Queries(ledger).run(RUN.id))


def test_fact_that_makes_no_sense_holds_up_no_other(sqlite: Ledger) -> None:
    history = History(sqlite)
    naive = facts.RunName("run-2", "t", "e", SLOT.replace(tzinfo=None))
    history(started(run=naive))
    history(started())
    assert history.flush()
    assert history.lost == 1
    assert Queries(sqlite).run(RUN.id) is not None


def test_runs_whose_names_agree_in_what_a_column_keeps_are_one_row(ledger: Ledger) -> None:
    news = News()
    for end in "ab":
        news.add(started(run=facts.RunName("x" * 300 + end, "t")))
    write_news(ledger, news)
    assert Queries(ledger).run("x" * 255) is not None


def test_a_batch_that_is_refused_for_what_is_in_it_holds_up_no_other(
    sqlite: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(sqlite)
    history(started(2**70))
    assert history.flush()
    assert history.lost == 1
    history(started())
    assert history.flush()
    assert [gap.facts for gap in Queries(sqlite).gaps(SLOT)] == [1]
    assert Queries(sqlite).run(RUN.id) is not None
    assert "history_refused" in caplog.text


# Questions


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    news = News()
    for number in range(120):
        slot = at(60 * number)
        name = facts.RunName(f"run-{number:03}", f"task-{number % 2}", f"entry-{number % 3}", slot)
        if number % 10 == 9:
            news.add(facts.SlotMissed(at=slot, run=name, reason="too old"))
            continue
        moment = slot + timedelta(seconds=1)
        news.add(started(number, run=name) if number < 5 else _started(name, number, moment))
        took = timedelta(seconds=number)
        outcome = "failed" if number % 7 == 0 else "succeeded"
        news.add(
            facts.RunEnded(
                at=moment, run=name, worker="w", attempt=1, fence=number, outcome=outcome, took=took
            )
        )
    write_news(ledger, news)
    return ledger


def test_pages_follow_each_other_without_gap_or_repeat(filled: Ledger) -> None:
    queries, seen, after = Queries(filled), [], None
    while True:
        page = queries.runs(Filter(after=after), limit=17)
        seen += [run.run_id for run in page.runs]
        after = page.next
        if after is None:
            break
    assert seen == [f"run-{number:03}" for number in reversed(range(120))]


def test_runs_of_one_time_are_paged_too(ledger: Ledger) -> None:
    news = News()
    for number in range(30):
        news.add(published(facts.RunName(f"run-{number}", "t", f"e{number}", SLOT)))
    write_news(ledger, news)
    queries = Queries(ledger)
    first = queries.runs(limit=20)
    rest = queries.runs(Filter(after=first.next), limit=20)
    assert len({run.run_id for run in (*first.runs, *rest.runs)}) == 30
    assert rest.next is None


@pytest.mark.parametrize(
    ("which", "is_in"),
    [
        (Filter(entry="entry-1"), lambda number: number % 3 == 1),
        (Filter(task="task-1"), lambda number: number % 2 == 1),
        (Filter(statuses=[Status.MISSED]), lambda number: number % 10 == 9),
        (
            Filter(statuses=[Status.MISSED, Status.FAILED], entry="entry-0"),
            lambda n: n % 3 == 0 and (n % 10 == 9 or n % 7 == 0),
        ),
        (Filter(since=at(60 * 100)), lambda number: number >= 100),
        (Filter(since=at(60 * 10), until=at(60 * 20)), lambda number: 10 <= number < 20),
    ],
)
def test_runs_are_found_by(filled: Ledger, which: Filter, is_in: Callable[[int], bool]) -> None:
    found = [run.run_id for run in Queries(filled).runs(which, limit=200).runs]
    assert found == [f"run-{number:03}" for number in reversed(range(120)) if is_in(number)]


def test_slowest_missed_counts_and_the_last_of_each_entry(filled: Ledger) -> None:
    queries = Queries(filled)
    assert [run.duration_s for run in queries.slowest(limit=3)] == [118.0, 117.0, 116.0]
    assert len(queries.missed().runs) == 12
    assert queries.counts(at(0))[Status.MISSED] == 12
    last = queries.last_of(["entry-0", "entry-2", "nobody"], 4)
    assert [run.run_id for run in last["entry-0"]] == ["run-117", "run-114", "run-111", "run-108"]
    assert last["entry-2"][0].run_id == "run-119"
    assert last["nobody"] == []


def test_applications_that_share_a_database_do_not_see_each_other(filled: Ledger) -> None:
    other = Ledger(filled.database.url, prefix="other")
    try:
        assert Queries(other).runs().runs == ()
        write(other, [started(run=facts.RunName("run-001", "t")), started()])
        assert len(Queries(filled).runs(limit=200).runs) == 120
    finally:
        other.close()


# Retention


def test_history_is_pruned_by_age_and_by_number(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    news = News()
    for hours in range(1, 41):
        slot = now - timedelta(hours=hours)
        name = facts.RunName(f"run-{hours:02}", "t", "e", slot)
        news.add(_started(name, hours, slot))
        news.add(facts.RunEnded(at=slot, run=name, worker="w", attempt=1, fence=1, outcome="failed"))
    write_news(ledger, news)
    keep = {"remember_for": timedelta(hours=2.5)}
    by_age = Retention(keep_for=timedelta(hours=30.5), keep_most=1000, **keep)
    assert Pruning(ledger, by_age).prune() == 10
    by_number = Retention(keep_for=timedelta(days=10), keep_most=12, **keep)
    assert Pruning(ledger, by_number).prune() == 18
    assert len(Queries(ledger).runs(limit=100).runs) == 12
    fewer_than_remembered = Retention(keep_for=timedelta(days=10), keep_most=1, **keep)
    assert Pruning(ledger, fewer_than_remembered).prune() == 10
    assert [run.run_id for run in Queries(ledger).runs().runs] == ["run-01", "run-02"]
    for table in (AttemptRow, LetterRow, AuditRow, ClaimRow):
        assert _count(ledger, table) == (30 if table is AttemptRow else 0)


def test_one_process_prunes_at_a_time(ledger: Ledger) -> None:
    from celery_singleton_lock.ledger.claims import Claims

    claims = Claims(ledger)
    assert claims.take_turn("prune", every=timedelta(minutes=10))
    assert not claims.take_turn("prune", every=timedelta(minutes=10))
    assert claims.take_turn("prune", every=timedelta(0))


def _started(name: facts.RunName, fence: int, moment: datetime) -> facts.Fact:
    return facts.RunStarted(at=moment, run=name, worker="w", attempt=1, fence=fence, takeovers=0)


def _shown(run: PastRun) -> dict[str, Any]:
    return {name: value for name, value in run.facts.items() if name != "id"}


def _count(ledger: Ledger, row: Any) -> int:
    return ledger.read(lambda c: c.scalar(sa.select(sa.func.count()).select_from(row))) or 0


def _until(fact: Callable[[], Any], within: float = 20) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.01)
