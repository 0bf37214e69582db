"""Numbers: what is counted, in a process and its children, and what Prometheus reads of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_singleton_lock.core import facts
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Granted, LeaseRequest, Release
from celery_singleton_lock.leases import open_store
from celery_singleton_lock.observability.metrics import catalogue as all_
from celery_singleton_lock.observability.metrics.counts import Counts
from celery_singleton_lock.observability.metrics.exposition import SingletonCollector, page
from celery_singleton_lock.observability.metrics.measured_store import Measures, measured
from celery_singleton_lock.observability.metrics.names import OTHER, Names
from celery_singleton_lock.observability.metrics.recorder import Recorder

AT = datetime(2026, 3, 1, 4, 0, 2, tzinfo=UTC)
SLOT = datetime(2026, 3, 1, 4, 0, 0, tzinfo=UTC)
RUN = facts.RunName("run-1", "shop.report", "report", SLOT)

Value = Callable[..., float | None]


@pytest.fixture
def counts() -> Iterator[Counts]:
    counts = Counts()
    yield counts
    counts.close()


@pytest.fixture
def value(counts: Counts) -> Value:
    """The value of a sample as Prometheus reads it; None where there is none."""

    def value(sample: str, **labels: str) -> float | None:
        _, body = page(SingletonCollector(counts.read), "text/plain")
        found = [
            each.value
            for family in text_string_to_metric_families(body.decode())
            for each in family.samples
            if each.name == sample and each.labels == labels
        ]
        assert len(found) < 2, "a sample stands twice"
        return found[0] if found else None

    return value


def in_child(work: Callable[[], Any], *, killed: bool = False) -> int:
    """Do the work in a forked child, which then ends; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the child must not go on as the test
            os._exit(1)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) == killed
    assert killed or os.waitstatus_to_exitcode(status) == 0
    return pid


# Counting


def test_what_was_not_counted_is_not_there_but_for_counters_without_labels(value: Value) -> None:
    assert value("singleton_slots_published_total", entry="a") is None
    assert value("singleton_store_memory_losses_total") == 0


def test_counters_gauges_and_histograms(counts: Counts, value: Value) -> None:
    counts.add(all_.SLOTS_PUBLISHED, "a", by=3)
    counts.add(all_.SLOTS_PUBLISHED, "a")
    counts.set(all_.TROUBLE, "store", to=1)
    counts.set(all_.TROUBLE, "store", to=0)
    for seconds in (0.005, 0.01, 0.2, 9999.0):
        counts.observe(all_.SLOT_LAG, value=seconds)
    assert value("singleton_slots_published_total", entry="a") == 4
    assert value("singleton_trouble", part="store") == 0
    assert value("singleton_slot_lag_seconds_bucket", le="0.01") == 2, "a bound belongs to its bucket"
    assert value("singleton_slot_lag_seconds_bucket", le="0.25") == 3
    assert value("singleton_slot_lag_seconds_bucket", le="3600.0") == 3
    assert value("singleton_slot_lag_seconds_bucket", le="+Inf") == 4
    assert value("singleton_slot_lag_seconds_count") == 4
    assert value("singleton_slot_lag_seconds_sum") == pytest.approx(9999.215)


def test_threads_lose_no_count(counts: Counts, value: Value) -> None:
    def count() -> None:
        for _ in range(5000):
            counts.add(all_.SLOTS_PUBLISHED, "a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value("singleton_slots_published_total", entry="a") == 20_000


def test_names_in_labels_are_escaped(counts: Counts, value: Value) -> None:
    name = 'a "quoted" \\ name\nwith {all} of it'
    counts.add(all_.SLOTS_PUBLISHED, name)
    assert value("singleton_slots_published_total", entry=name) == 1


def test_openmetrics_is_served_to_who_asks_for_it(counts: Counts) -> None:
    content_type, body = page(
        SingletonCollector(counts.read), "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


# Children


def test_children_are_counted_once_living_and_dead(counts: Counts, value: Value) -> None:
    counts.share()
    counts.add(all_.SLOTS_PUBLISHED, "a", by=100)
    in_child(lambda: counts.add(all_.SLOTS_PUBLISHED, "a", by=10))
    assert value("singleton_slots_published_total", entry="a") == 110
    assert value("singleton_slots_published_total", entry="a") == 110, "asked twice"
    in_child(lambda: counts.observe(all_.SLOT_LAG, value=0.02), killed=True)
    assert value("singleton_slot_lag_seconds_count") == 1, "what a killed child has counted"


def test_child_that_lives_is_counted_while_it_counts(counts: Counts, value: Value) -> None:
    counts.share()
    asked, told = os.pipe()
    begun, may_begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        counts.add(all_.RUNS_IN_PROGRESS, "t")
        counts.add(all_.RUNS_STARTED, "t")
        os.write(told, b"x")
        os.read(begun, 1)
        counts.add(all_.RUNS_STARTED, "t")
        os.write(told, b"x")
        signal.pause()
    try:
        os.read(asked, 1)
        assert value("singleton_runs_started_total", task="t") == 1
        os.write(may_begin, b"x")
        os.read(asked, 1)
        assert value("singleton_runs_started_total", task="t") == 2
        assert value("singleton_runs_in_progress", task="t") == 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (asked, told, begun, may_begin):
            os.close(each)
    assert value("singleton_runs_started_total", task="t") == 2
    assert not value("singleton_runs_in_progress", task="t"), "the dead have nothing in hand"


def test_files_of_the_dead_are_taken_over(counts: Counts, value: Value, tmp_path: Path) -> None:
    counts.share()
    assert counts._directory is not None
    for _ in range(20):
        in_child(lambda: counts.add(all_.SLOTS_PUBLISHED, "a"))
    assert value("singleton_slots_published_total", entry="a") == 20
    assert list(counts._directory.iterdir()) == []
    assert value("singleton_slots_published_total", entry="a") == 20


def test_child_begins_at_nothing_and_so_does_its_child(counts: Counts, value: Value) -> None:
    counts.share()
    counts.add(all_.SLOTS_PUBLISHED, "a")

    def count_and_fork() -> None:
        counts.add(all_.SLOTS_PUBLISHED, "a")
        in_child(lambda: counts.add(all_.SLOTS_PUBLISHED, "a"))

    in_child(count_and_fork)
    assert value("singleton_slots_published_total", entry="a") == 3


def test_fork_while_a_thread_counts_leaves_no_lock_behind(counts: Counts) -> None:
    counts.share()
    with counts._counting:
        in_child(lambda: counts.add(all_.SLOTS_PUBLISHED, "a"))


def test_child_without_room_counts_for_itself(
    counts: Counts, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    counts.share()
    counts._directory, made = tmp_path / "gone", counts._directory

    def count() -> None:
        counts.add(all_.SLOTS_PUBLISHED, "a")
        counts.add(all_.SLOTS_PUBLISHED, "a")
        assert caplog.text.count("metrics_not_shared") == 1

    in_child(count)
    counts._directory = made


def test_end_of_a_child_leaves_what_is_shared(counts: Counts) -> None:
    counts.share()
    in_child(counts.close)
    assert counts._directory is not None
    assert counts._directory.exists()
    directory = counts._directory
    counts.close()
    assert not directory.exists()


# Labels


def test_names_beyond_the_limit_are_other() -> None:
    names = Names(limit=2)
    shown = [names.shown(each) for each in ("a", "b", "c", "a", None, "d")]
    assert shown == ["a", "b", OTHER, "a", "", OTHER]


# Facts


def worker_fact(kind: Any, **more: Any) -> Any:
    return kind(at=AT, run=RUN, worker="w", **more)


def ended(outcome: str, **more: Any) -> Any:
    return worker_fact(facts.RunEnded, attempt=1, fence=1, outcome=outcome, **more)


def started(takeovers: int = 0, **more: Any) -> Any:
    return worker_fact(facts.RunStarted, attempt=1, fence=1, takeovers=takeovers, **more)


@pytest.mark.parametrize(
    ("fact", "sample", "labels"),
    [
        (
            facts.SlotsPublished(at=AT, runs=(RUN,), replica="r"),
            "slots_published_total",
            {"entry": "report"},
        ),
        (
            facts.SlotMissed(at=AT, run=RUN, reason="too old"),
            "slots_missed_total",
            {"entry": "report", "reason": "too old"},
        ),
        (
            facts.SlotPublishedAgain(at=AT, run=RUN, replica="r"),
            "slots_published_again_total",
            {"entry": "report"},
        ),
        (
            facts.RunPublishedAgain(at=AT, run=RUN, fence=1, worker="w", is_whole=True),
            "runs_published_again_total",
            {"task": "shop.report"},
        ),
        (
            facts.RunPublishedAgain(at=AT, run=RUN, fence=1, worker="w", is_whole=False),
            "runs_left_to_broker_total",
            {"task": "shop.report"},
        ),
        (facts.TroubleBegan(at=AT, part="broker", reason="gone"), "trouble", {"part": "broker"}),
        (started(), "runs_started_total", {"task": "shop.report"}),
        (started(), "runs_in_progress", {"task": "shop.report"}),
        (started(waited=timedelta(seconds=9)), "lease_wait_seconds_count", {"kind": "run"}),
        (started(takeovers=2), "runs_taken_over_total", {"task": "shop.report"}),
        (ended("retried"), "runs_ended_total", {"task": "shop.report", "outcome": "retried"}),
        (ended("failed, letter due"), "runs_ended_total", {"task": "shop.report", "outcome": "failed"}),
        (
            worker_fact(facts.RunSkipped, reason="overlap", by="x"),
            "runs_skipped_total",
            {"task": "shop.report", "reason": "overlap"},
        ),
        (
            worker_fact(facts.RunKept, reason="held", by="x"),
            "runs_kept_total",
            {"task": "shop.report", "reason": "held"},
        ),
        (
            worker_fact(facts.CopyIgnored, outcome="succeeded"),
            "copies_ignored_total",
            {"task": "shop.report"},
        ),
        (
            worker_fact(facts.LeaseMayBeLost, key="k", fence=1),
            "leases_lost_total",
            {"task": "shop.report"},
        ),
        (
            worker_fact(facts.RunOverdue, expected=timedelta(1)),
            "runs_overdue_total",
            {"task": "shop.report"},
        ),
        (
            facts.DeadLettered(at=AT, run=RUN, reason="failed", letter={}),
            "dead_letters_total",
            {"task": "shop.report", "reason": "failed"},
        ),
        (
            facts.DeadLettered(at=AT, run=None, reason="undecodable", letter={}),
            "dead_letters_total",
            {"task": "", "reason": "undecodable"},
        ),
    ],
)
def test_fact_is_counted(
    counts: Counts, value: Value, fact: facts.Fact, sample: str, labels: dict[str, str]
) -> None:
    Recorder(counts)(fact)
    assert value(f"singleton_{sample}", **labels) == 1


def test_every_kind_of_fact_is_counted_or_known_not_to_be() -> None:
    kinds = {each.__name__ for each in facts.Fact.__subclasses__()}
    source = Path(str(Recorder.__call__.__code__.co_filename)).read_text()
    # Who is alive is asked of the store when somebody looks: workers know it then, too. A slot that
    # waits is counted with its lag when it is published, and else as missed.
    assert {kind for kind in kinds if f"facts.{kind}" not in source} == {"MembersChanged", "SlotsDue"}


def test_lag_is_from_the_slot_to_its_publishing(counts: Counts, value: Value) -> None:
    Recorder(counts)(facts.SlotsPublished(at=AT, runs=(RUN, RUN), replica="r"))
    assert value("singleton_slot_lag_seconds_sum") == 4
    assert value("singleton_slot_lag_seconds_count") == 2


def test_run_is_in_progress_until_it_ended_and_its_time_is_measured(
    counts: Counts, value: Value
) -> None:
    record = Recorder(counts)
    record(started())
    assert value("singleton_runs_in_progress", task="shop.report") == 1
    record(ended("succeeded", took=timedelta(seconds=7)))
    assert value("singleton_runs_in_progress", task="shop.report") == 0
    assert value("singleton_run_seconds_sum", task="shop.report") == 7


def test_expected_tasks_are_there_from_the_start_and_stay_when_children_end(
    counts: Counts, value: Value
) -> None:
    record = Recorder(counts)
    record.expect(["shop.report", "shop.mail"])
    counts.share()
    assert value("singleton_runs_in_progress", task="shop.mail") == 0
    assert value("singleton_runs_ended_total", task="shop.mail", outcome="failed") == 0
    in_child(lambda: record(started()), killed=True)
    assert value("singleton_runs_started_total", task="shop.report") == 1
    assert value("singleton_runs_in_progress", task="shop.report") == 0, "it died with its child"


def test_end_of_what_did_not_begin_here_leaves_those_in_progress(counts: Counts, value: Value) -> None:
    record = Recorder(counts)
    record(started())
    other = facts.RunName("run-2", "shop.report")
    record(facts.RunEnded(at=AT, run=other, worker="w", attempt=1, fence=1, outcome="revoked"))
    assert value("singleton_runs_in_progress", task="shop.report") == 1


# The store


def test_store_is_measured_and_stays_what_it_is(counts: Counts, value: Value) -> None:
    plain = open_store("memory://")
    store = measured(plain, Measures(counts))
    assert store is plain
    assert isinstance(store, type(open_store("memory://")))
    assert measured(store, Measures(counts)) is store

    def ask(key: str, owner: str) -> LeaseRequest:
        return LeaseRequest(key, owner, timedelta(seconds=30), position=1 if "run" in key else None)

    answers = store.acquire([ask("run:1", "a"), ask("task:t", "a"), ask("mine", "a")])
    for held in store.acquire([ask("task:t", "b"), ask("mine", "b")]):
        assert not isinstance(held, Granted)
    leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
    assert store.renew(leases) == [True] * 3
    store.release([Release(leases[0], position=1), Release(leases[1]), Release(leases[2])])
    store.acquire([ask("task:t", "b"), ask("run:1", "b"), ask("mine", "b")])

    def acquisitions(kind: str, result: str) -> float | None:
        return value("singleton_lease_acquisitions_total", kind=kind, result=result)

    assert acquisitions("run", "granted") == 1
    assert acquisitions("task", "granted") == 2
    assert acquisitions("task", "held") == 1
    assert acquisitions("other", "granted") == 2
    assert acquisitions("run", "done") == 1
    assert value("singleton_lease_renewals_total", kind="run", result="renewed") == 1
    assert value("singleton_lease_hold_seconds_count", kind="task") == 1
    assert value("singleton_lease_wait_seconds_count", kind="other") == 1, "b waited for a"
    assert value("singleton_lease_wait_seconds_count", kind="task") is None, "runs tell it themselves"
    assert value("singleton_store_call_seconds_count", call="acquire") == 3


def test_store_that_is_away_is_counted_as_errors(counts: Counts, value: Value) -> None:
    store = measured(
        open_store("redis://127.0.0.1:1", timeout=timedelta(seconds=0.2)), Measures(counts)
    )
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.now()
    assert value("singleton_store_errors_total", call="meet") == 2


def test_loss_of_memory_is_counted(counts: Counts, value: Value) -> None:
    store = measured(open_store("memory://"), Measures(counts))
    store._notice_memory_loss()
    store.now()
    assert value("singleton_store_memory_losses_total") == 1
