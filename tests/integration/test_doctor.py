"""Every check of `doctor` is made to fail, and what it then says is read; and it is silent where all is
well."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery
from celery.schedules import crontab
from kombu.entity import Exchange, Queue
from sqlalchemy.orm import Session

from celery_singleton_lock import SingletonTask, outbox
from celery_singleton_lock.beat.book import entry_page, pause_page, trigger_page
from celery_singleton_lock.core.errors import BrokerUnavailable
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.core.models import Granted, LeaseRequest, Page
from celery_singleton_lock.doctor import Finding, Level, examine
from celery_singleton_lock.doctor.findings import Trouble, all_checks
from celery_singleton_lock.doctor.patient import Patient, Worker
from celery_singleton_lock.doctor.workers import workers_know_the_same_tasks
from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.ledger.happenings import News
from celery_singleton_lock.ledger.losses import Gap
from celery_singleton_lock.ledger.writing import write_news
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, SentinelSet, TcpProxy
from celery_singleton_lock.worker.parts import parts_of
from tests.integration.command_line import CommandLine
from tests.integration.letter_brokers import received
from tests.integration.test_cli_schedule import record_position
from tests.integration.workers import define, working
from tests.support import start_or_skip, until

TTL = timedelta(seconds=30)
SECRET = "tr0ub4dor"
FAR = f"redis://:{SECRET}@redis.example.com/0"


@pytest.fixture
def redis_url(valkey: RedisServer) -> Iterator[str]:
    client: Any = valkey.connect()
    client.flushall()
    yield valkey.url
    client.flushall()
    client.close()


def shop(url: str = "memory://", **config: Any) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(config)
    return app


def nothing() -> None:
    """A task."""


def shop_with_task(
    url: str = "memory://", *, config: dict[str, Any] | None = None, **options: Any
) -> Celery:
    app = shop(url, **(config or {}))
    define(app, name="shop.tick", base=SingletonTask, **options)(nothing)
    return app


def scheduled(**fields: Any) -> dict[str, Any]:
    return {"beat_schedule": {"tick": {"task": "shop.tick", "schedule": 60.0, **fields}}}


def found(app: Celery, check: str) -> list[Finding]:
    return [each for each in examine(app, only=[check], patience=0.5) if each.check == check]


def assert_found(app: Celery, check: str, level: Level, told: str) -> None:
    """Exactly one finding, of this level; `told` is in its reason, and there is a remedy."""
    assert_is(found(app, check), level, told)


def assert_is(findings: Sequence[Finding | Trouble], level: Level, told: str) -> None:
    [finding] = findings
    assert (finding.level, finding.remedy != "") == (level, True), finding
    assert re.search(told, finding.reason), finding.reason


def assert_well(app: Celery, check: str, *, level: Level = Level.OK) -> None:
    assert [each.level for each in found(app, check)] == [level], found(app, check)


WARNING, PROBLEM, NOT_APPLICABLE = Level.WARNING, Level.PROBLEM, Level.NOT_APPLICABLE


# Settings


@pytest.mark.parametrize(
    ("check", "level", "told", "bad", "good"),
    [
        ("settings-readable", PROBLEM, "did you mean", {"singleton_lock_tll": 3}, {}),
        ("settings-eager", PROBLEM, "task_always_eager", {"task_always_eager": True}, {}),
        ("settings-timezone", PROBLEM, "own time zone", {"enable_utc": False},
         {"enable_utc": False, "timezone": "Europe/Berlin"}),
        ("settings-without-effect", WARNING, "deadline", {"beat_cron_starting_deadline": 9}, {}),
        ("settings-pickle", WARNING, "run code", {"accept_content": ["json", "pickle"]}, {}),
        ("settings-http", WARNING, "without a password", {"singleton_http": "0.0.0.0:9808"},
         {"singleton_http": "127.0.0.1:9808"}),
        ("settings-tls", WARNING, "not encrypted", {"broker_url": FAR},
         {"broker_url": FAR.replace("redis:", "rediss:"), "singleton_lock_url": "memory://"}),
        ("settings-tls", WARNING, "singleton_lock_url", {"singleton_lock_url": FAR},
         {"singleton_lock_url": "redis://127.0.0.1/0"}),
        ("settings-passwords", PROBLEM, "has no password", {"broker_url": "redis://redis.example.com/0"},
         {"broker_url": FAR}),
        ("settings-passwords", PROBLEM, "guest",
         {"broker_url": "amqp://guest:guest@mq/", "singleton_lock_url": "memory://"},
         {"broker_url": "amqp://guest:guest@127.0.0.1/", "singleton_lock_url": "memory://"}),
        ("settings-result-expiry", WARNING, "waits for ever",
         {"result_backend": "redis://127.0.0.1/0", "result_expires": 60},
         {"result_backend": "redis://127.0.0.1/0", "result_expires": 86400}),
        ("settings-catch-up", WARNING, "more seldom",
         {"beat_schedule": {"rare": {"task": "t", "schedule": crontab(0, 0, day_of_month=1)}}},
         {"beat_schedule": {"rare": {"task": "t", "schedule": crontab(0, 0, day_of_month=1),
                                     "catch_up_window": timedelta(days=40)}}}),
        ("store-one-host", PROBLEM, "memory of one process", {}, None),
        ("broker-confirms", WARNING, "not confirmed",
         {"broker_url": "amqp://", "singleton_lock_url": "memory://"},
         {"broker_url": "amqp://", "singleton_lock_url": "memory://",
          "broker_transport_options": {"confirm_publish": True}}),
        ("worker-prefetch", WARNING, "whole queue", {"worker_prefetch_multiplier": 0}, {}),
        ("worker-prefetch", WARNING, "behind a slow one", {"worker_prefetch_multiplier": 50}, {}),
    ],
)  # fmt: skip
def test_setting_that_is_wrong_is_found(
    check: str, level: Level, told: str, bad: dict[str, Any], good: dict[str, Any] | None
) -> None:
    assert_found(shop(**bad), check, level, told)
    if good is not None:
        assert_well(shop(**good), check)


@pytest.mark.parametrize(
    ("check", "level", "told", "bad", "good"),
    [
        ("task-options", PROBLEM, "two renewals", {"lock_ttl": 0.5}, {}),
        ("task-acks-late", WARNING, "acks_late is off", {"acks_late": False}, {}),
        ("task-acks-late", WARNING, "reject_on_worker_lost", {"reject_on_worker_lost": False}, {}),
        ("task-lock-bound", PROBLEM, "Another run begins", {"lock_at_most": 60, "time_limit": 90},
         {"lock_at_most": 90, "time_limit": 60}),
        ("task-ttl", WARNING, "longer than it needs", {"lock_ttl": 600, "time_limit": 60},
         {"time_limit": 60}),
        ("task-bounded", WARNING, "no time limit", {}, {"expect_within": 60}),
        ("task-join", WARNING, "waits for ever", {"on_duplicate": "join"}, None),
        ("task-remembered", WARNING, "attempt", {"retry_backoff_max": 90000, "retry_backoff": 90000},
         {}),
    ],
)  # fmt: skip
def test_option_of_a_task_that_is_wrong_is_found(
    check: str, level: Level, told: str, bad: dict[str, Any], good: dict[str, Any] | None
) -> None:
    assert_found(shop_with_task(**bad), check, level, told)
    if good is not None:
        assert_well(shop_with_task(**good), check)
    assert_well(shop(), check, level=NOT_APPLICABLE)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0"])
def test_run_or_retry_beyond_the_visibility_timeout_is_found(url: str) -> None:
    assert_found(shop_with_task(url, time_limit=7200), "broker-visibility-run", WARNING, "shop.tick")
    assert_well(shop_with_task(url, time_limit=7200, acks_late=False), "broker-visibility-run")
    assert_well(shop_with_task(url, time_limit=60), "broker-visibility-run")
    assert_found(
        shop_with_task(url, default_retry_delay=7200), "broker-visibility-backoff", WARNING, "shop.tick"
    )
    assert_well(shop_with_task(url), "broker-visibility-backoff")
    slow = shop_with_task(url, time_limit=3000)
    assert_found(slow, "worker-prefetch", WARNING, "before it began")


def test_redelivery_that_a_dead_worker_would_hold_up_is_found() -> None:
    def of(**options: int) -> Celery:
        return shop("redis://127.0.0.1:1/0", broker_transport_options=options)

    low = of(visibility_timeout=60)
    assert_found(low, "broker-redelivery", WARNING, "0:05:00 .*visibility timeout .0:01:00")
    [finding] = found(low, "broker-redelivery")
    assert finding.remedy == "broker_transport_options = {'unacked_mutex_expire': 6}"
    assert_well(of(visibility_timeout=60, unacked_mutex_expire=6), "broker-redelivery")
    assert_well(of(), "broker-redelivery")
    rabbit = shop("amqp://", singleton_lock_url="memory://")
    assert_well(rabbit, "broker-redelivery", level=NOT_APPLICABLE)


def test_run_that_rabbitmq_would_cut_off_is_found() -> None:
    config = {"singleton_lock_url": "memory://"}
    long = shop_with_task("amqp://", config=config, time_limit=7200)
    assert_found(long, "broker-consumer-timeout", WARNING, "closes the channel")
    assert_well(shop_with_task("amqp://", config=config, time_limit=60), "broker-consumer-timeout")


def test_scheduled_task_without_a_lock_is_found() -> None:
    app = shop(**scheduled())
    define(app, name="shop.tick")(nothing)
    assert_found(app, "task-singleton", WARNING, "shop.tick")
    assert_well(shop_with_task(config=scheduled()), "task-singleton")


# Servers


def test_server_that_is_away_is_found_and_hides_nothing() -> None:
    app = shop_with_task(f"redis://:{SECRET}@127.0.0.1:1/0", config=scheduled())
    began = time.monotonic()
    findings = list(examine(app, patience=0.2))
    by_name = {each.check: each for each in findings}
    assert {each.name for each in all_checks()} == by_name.keys(), "each has said something"
    assert by_name["store-answers"].level is PROBLEM
    assert by_name["broker-answers"].level is PROBLEM
    assert by_name["store-eviction"].level is Level.UNKNOWN
    assert by_name["worker-alive"].level is Level.UNKNOWN
    assert by_name["task-bounded"].level is WARNING, "what needs no server is told all the same"
    assert SECRET not in repr(findings)
    assert time.monotonic() - began < 30, "each server is asked once"


def test_question_that_failed_is_not_asked_again() -> None:
    patient = Patient(shop("redis://127.0.0.1:1/0"))
    with pytest.raises(BrokerUnavailable) as first:
        _ = patient.broker
    with pytest.raises(BrokerUnavailable) as second:
        _ = patient.broker
    assert first.value is second.value


def test_check_that_breaks_is_told_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_singleton_lock.doctor.configuration.is_local", lambda host: 1 / 0)
    app = shop(broker_url=FAR, singleton_lock_url="memory://")
    [tls] = found(app, "settings-tls")
    assert (tls.level, "ZeroDivisionError" in tls.reason) == (Level.UNKNOWN, True)
    assert_well(app, "settings-eager")


def test_redis_that_evicts_forgets_and_is_full_is_found() -> None:
    options = {"maxmemory": "2mb", "maxmemory-policy": "allkeys-lru"}
    server = start_or_skip(RedisServer(options=options))
    try:
        app = shop(server.url)
        assert_found(app, "store-eviction", PROBLEM, "allkeys-lru")
        assert_found(app, "broker-eviction", PROBLEM, "allkeys-lru")
        assert_found(app, "store-persistence", WARNING, "writes nothing to disk")
        assert_found(app, "broker-persistence", WARNING, "writes nothing to disk")
        client: Any = server.connect()
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 50_000)
        assert_found(app, "store-memory", WARNING, "maxmemory")
        assert_found(app, "broker-memory", WARNING, "maxmemory")
        client.config_set("save", "3600 1")
        assert_found(app, "store-persistence", WARNING, "snapshots only")
        client.config_set("maxmemory", 0)
        assert_well(app, "store-memory")
        assert_well(app, "store-eviction")
        client.close()
    finally:
        server.stop()


def test_redis_that_keeps_all_is_well(redis_url: str) -> None:
    for check in ("store-eviction", "store-persistence", "broker-persistence", "store-replication"):
        assert_well(shop(redis_url), check)
    assert_well(shop(redis_url), "store-clock")


def test_replica_that_lags_is_found() -> None:
    master = start_or_skip(RedisServer())
    replica = RedisServer(options={"replicaof": f"127.0.0.1 {master.port}"})
    try:
        replica.start()
        client: Any = master.connect()
        until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        assert_well(shop(master.url), "store-replication")
        assert_found(shop(replica.url), "store-replication", PROBLEM, "is a replica")
        replica.pause()
        until(lambda: client.info("replication")["slave0"]["lag"] > 3)
        assert_found(shop(master.url), "store-replication", WARNING, "behind")
        client.close()
    finally:
        replica.stop()
        master.stop()


def test_sentinel_without_a_replica_is_found(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop(singleton_lock_url=sentinels.url)
    assert_well(app, "store-replication")
    # Not by stopping them: other tests use the set.
    monkeypatch.setattr("celery_singleton_lock.leases.redis.facts._replicas", lambda info: [])
    assert_found(app, "store-replication", WARNING, "nobody to fail over to")


def test_clock_that_is_wrong_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Late:
            return super().now(tz) - timedelta(seconds=90)

    monkeypatch.setattr("celery_singleton_lock.doctor.patient.datetime", Late)
    assert_found(shop(redis_url), "store-clock", WARNING, r"(89|90)\.\d s ahead of")


def test_slow_store_is_found(valkey: RedisServer) -> None:
    proxy = TcpProxy(valkey.port).start()
    try:
        proxy.delay(0.3)
        app = shop(f"redis://127.0.0.1:{proxy.port}/0")
        assert_found(app, "store-latency", WARNING, "given up after 1000 ms")
        proxy.heal()
        assert_well(shop(f"redis://127.0.0.1:{proxy.port}/0"), "store-latency")
    finally:
        proxy.stop()


def test_store_of_one_host_is_found_where_there_are_several(tmp_path: Path) -> None:
    app = shop(singleton_lock_url=f"sqlite:///{tmp_path / 'leases.db'}")
    store, group = parts_of(app).store, beat_group("shop")
    store.meet(group, "one:1:a@1", TTL)
    assert_well(app, "store-one-host")
    store.meet(group, "two:1:a@1", TTL)
    assert_found(app, "store-one-host", PROBLEM, "one, two")


def test_quorum_that_is_not_whole_is_found() -> None:
    servers = [start_or_skip(RedisServer()) for _ in range(3)]
    try:
        app = shop(singleton_lock_url=[server.url for server in servers])
        parts_of(app).store.now()
        assert_well(app, "store-quorum")
        servers[2].kill()
        assert_found(app, "store-quorum", WARNING, "does not take part")
        servers[1].kill()
        assert {each.level for each in found(app, "store-quorum")} == {PROBLEM}
    finally:
        for server in servers:
            server.stop()


def test_broker_and_store_that_answer_are_well(redis_url: str) -> None:
    assert_well(shop(redis_url), "broker-answers")
    assert_well(shop(redis_url), "store-answers")


def test_rabbitmq_is_looked_at(rabbitmq: RabbitMQServer) -> None:
    app = shop(rabbitmq.url, singleton_lock_url="memory://")
    assert_well(app, "broker-answers")
    assert_well(app, "broker-eviction", level=NOT_APPLICABLE)
    assert_found(app, "worker-alive", PROBLEM, "no worker answers")


# Beat


def test_stock_scheduler_is_found(redis_url: str) -> None:
    assert_found(shop(redis_url, **scheduled()), "beat-scheduler", PROBLEM, "stock one")
    for ours in ("singleton", "celery_singleton_lock:SingletonScheduler"):
        assert_well(shop(redis_url, beat_scheduler=ours, **scheduled()), "beat-scheduler")
    assert_well(shop(redis_url), "beat-scheduler", level=NOT_APPLICABLE)
    app = shop(redis_url, **scheduled())
    parts_of(app).store.meet(beat_group("shop"), "host:1:a@1", TTL)
    assert_well(app, "beat-scheduler")


def test_missing_replicas_of_beat_are_found(redis_url: str) -> None:
    app = shop(redis_url, **scheduled())
    store, group = parts_of(app).store, beat_group("shop")
    assert_found(app, "beat-alive", PROBLEM, "no replica of beat")
    store.meet(group, "one:1:a@1", TTL)
    assert_found(app, "beat-alive", WARNING, "only one")
    assert_well(app, "beat-hosts", level=NOT_APPLICABLE)
    store.meet(group, "one:2:a@1", TTL)
    assert_well(app, "beat-alive")
    assert_found(app, "beat-hosts", WARNING, "run on one")
    store.meet(group, "two:2:a@1", TTL)
    assert_well(app, "beat-hosts")


def test_other_scheduler_is_found(
    redis_url: str, valkey: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = shop(redis_url, **scheduled())
    assert_well(app, "beat-other-scheduler")
    (tmp_path / "celerybeat-schedule").touch()
    assert_found(app, "beat-other-scheduler", PROBLEM, "stock beat runs in this directory")
    (tmp_path / "celerybeat-schedule").unlink()
    client: Any = valkey.connect()
    client.set("redbeat::lock", "x")
    assert_found(app, "beat-other-scheduler", PROBLEM, "redbeat")
    client.delete("redbeat::lock")
    monkeypatch.setattr(
        "celery.app.control.Inspect.ping", lambda self: {"celerybeat@elsewhere": {"ok": "pong"}}
    )
    assert_found(app, "beat-other-scheduler", PROBLEM, "another scheduler runs on elsewhere")
    parts_of(app).store.meet(beat_group("shop"), "elsewhere:1:a@1", TTL)
    assert_well(app, "beat-other-scheduler")


# Entries


def test_late_entry_is_found(redis_url: str) -> None:
    app = shop(redis_url, **scheduled())
    line = CommandLine(app)
    record_position(line, "tick", datetime.now(UTC) - timedelta(minutes=10))
    assert_found(app, "schedule-late", PROBLEM, r"for up to 0:0\d:\d\d: tick")
    record_position(line, "tick", datetime.now(UTC))
    assert_well(app, "schedule-late")


def test_added_entry_that_does_not_count_is_found(redis_url: str) -> None:
    app = shop(redis_url, **scheduled())
    assert_well(app, "schedule-readable")
    page = entry_page("tick", {"task": "t", "schedule": {"every": 3, "relative": False}})
    parts_of(app).store.write(beat_group("shop"), [page])
    assert_found(app, "schedule-readable", WARNING, "go first: tick")
    unknown = Page("entry:new", 0, '{"task": "t", "schedule": {"lunar": 1}}')
    parts_of(app).store.write(beat_group("shop"), [unknown, Page("entry:tick", 0, None)])
    assert_found(app, "schedule-readable", WARNING, "not understood by this version: new")


def test_forgotten_pause_and_job_are_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = shop(redis_url, **scheduled())
    pages = [pause_page("tick", is_paused=True, by="anna", why=""), trigger_page("1", "tick", "anna")]
    parts_of(app).store.write(beat_group("shop"), pages)
    assert_well(app, "schedule-paused")
    assert_well(app, "schedule-jobs")
    store = parts_of(app).store
    later = store.now() + timedelta(days=3)
    monkeypatch.setattr(store, "now", lambda: later)
    assert_found(app, "schedule-paused", WARNING, "by anna, 3 days ago")
    assert_found(app, "schedule-jobs", WARNING, "trigger of tick")


def test_entry_that_is_never_due_is_found(redis_url: str) -> None:
    over = scheduled(end=datetime(2001, 1, 1, tzinfo=UTC))
    assert_found(shop(redis_url, **over), "schedule-never-due", WARNING, "no slot to come: tick")
    assert_well(shop(redis_url, **scheduled()), "schedule-never-due")


def test_run_that_expires_too_soon_is_found(redis_url: str) -> None:
    short = shop(redis_url, **scheduled(options={"expires": 10}))
    assert_found(short, "schedule-expiry", WARNING, "has expired when it is taken over")
    assert_well(shop(redis_url, **scheduled(options={"expires": 100})), "schedule-expiry")


def test_unknown_task_of_the_schedule_is_found(redis_url: str) -> None:
    assert_found(shop(redis_url, **scheduled()), "schedule-tasks", PROBLEM, "this app does not know")
    assert_well(shop_with_task(redis_url, config=scheduled()), "schedule-tasks")
    assert_well(shop(redis_url, **scheduled()), "schedule-queues", level=NOT_APPLICABLE)


def test_entry_whose_exchange_has_no_queue_is_found(redis_url: str) -> None:
    app = shop(redis_url, **scheduled(options={"exchange": "orders", "routing_key": "new"}))
    told = "no queue is bound to the exchange 'orders' for 'new', to which tick is sent"
    assert_found(app, "schedule-exchanges", PROBLEM, told)
    with app.connection_for_write() as connection:
        Queue("heard", Exchange("orders"), "new")(connection.default_channel).declare()
    assert_well(app, "schedule-exchanges")
    # These need no exchange, or bind their queue to it when they are published.
    for options in ({}, {"queue": "q"}, {"queue": "q", "exchange": "q", "routing_key": "q"}):
        assert_well(shop(redis_url, **scheduled(options=options)), "schedule-exchanges")


# Workers


def test_workers_that_answer_are_looked_at(redis_url: str) -> None:
    entries = {
        "beat_schedule": {
            "here": {"task": "shop.tick", "schedule": 60.0},
            "gone": {"task": "shop.gone", "schedule": 60.0},
            "lonely": {"task": "shop.tick", "schedule": 60.0, "options": {"queue": "nobody"}},
        }
    }
    app = shop_with_task(redis_url, config=entries, time_limit=60, on_lease_lost="abort")
    with working(app):
        # Together, so that the workers are asked once.
        checks = ["schedule-tasks", "schedule-queues", "worker-"]

        def by_name() -> dict[str, list[Finding]]:
            findings = list(examine(app, only=checks, patience=0.5))
            return {check: [each for each in findings if each.check == check] for check in names}

        names = (
            "schedule-tasks", "schedule-queues", "worker-time-limits", "worker-abort",
            "worker-dead-letters", "worker-tasks", "worker-alive",
        )  # fmt: skip
        told = until(lambda: (now := by_name())["worker-alive"][0].level is Level.OK and now)
        assert_is(told["schedule-tasks"], PROBLEM, "no worker that answers knows the task 'shop.gone'")
        assert_is(told["schedule-queues"], PROBLEM, "consumes the queue 'nobody', to which lonely")
        assert_is(told["worker-time-limits"], WARNING, "does not keep time limits: shop.tick")
        assert_is(told["worker-abort"], WARNING, "best effort")
        assert told["worker-dead-letters"][0].level is Level.OK
        assert told["worker-tasks"][0].level is Level.OK


def test_workers_of_two_releases_are_found() -> None:
    both, one = frozenset({"shop.tick", "shop.new"}), frozenset({"shop.tick"})
    queues = frozenset({"celery"})
    patient = Patient(shop())
    patient.answers["workers"] = (
        {
            "new@host": Worker("new@host", both, queues, "prefork", 4, 1),
            "old@host": Worker("old@host", one, queues, "prefork", 4, 1),
            "apart@host": Worker("apart@host", one, frozenset({"other"}), "prefork", 4, 1),
        },
        None,
    )
    told = {"worker-tasks": list(workers_know_the_same_tasks(patient))}
    assert_is(told["worker-tasks"], WARNING, "^old@host do not know shop.new")


def test_worker_that_consumes_dead_letters_is_found(redis_url: str) -> None:
    app = shop(redis_url, task_default_queue="dead-letters")
    with working(app):
        until(lambda: found(app, "worker-dead-letters")[0].level is PROBLEM)
        assert_found(app, "worker-dead-letters", PROBLEM, "letters are executed, or lost")


def test_workers_are_not_asked_where_they_do_not_listen(redis_url: str) -> None:
    app = shop(redis_url, worker_enable_remote_control=False)
    assert_well(app, "worker-alive", level=NOT_APPLICABLE)


# Runs


def test_run_that_is_overdue_is_found(redis_url: str) -> None:
    app = shop(redis_url)
    assert_well(app, "runs-overdue")
    note = {"task": "shop.slow", "worker": "w1@host", "expect_within": 1e-6}
    [answer] = parts_of(app).store.acquire([LeaseRequest("run:1", "me", TTL, note=note)])
    assert isinstance(answer, Granted)
    assert_found(app, "runs-overdue", WARNING, "run:1 on w1@host")


def test_run_that_nobody_takes_over_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = shop(redis_url)
    store = parts_of(app).store
    store.acquire([LeaseRequest("run:1", "me", timedelta(milliseconds=300))])
    until(store.expired)
    assert_well(app, "runs-taken-over")
    later = store.now() + timedelta(minutes=3)
    monkeypatch.setattr(store, "now", lambda: later)
    assert_found(app, "runs-taken-over", PROBLEM, "run:1")


def test_dead_letters_are_found_and_many_are_a_problem(redis_url: str) -> None:
    app = shop(redis_url)
    assert_well(app, "dead-letters")
    messages = received(redis_url, 12)
    for message in messages[:2]:
        dead_letters_of(app).send(Letter.about(message, "failed"))
    assert_found(
        app, "dead-letters", WARNING, "2 dead letters, 2 of the last hour: 2 x proj.report: failed"
    )
    for message in messages[2:]:
        dead_letters_of(app).send(Letter.about(message, "failed"))
    assert_found(app, "dead-letters", PROBLEM, "12 dead letters")


# The ledger


def test_ledger_that_is_away_or_old_is_found(tmp_path: Path) -> None:
    assert_well(shop(), "ledger-answers", level=NOT_APPLICABLE)
    away = shop(singleton_database_url=f"sqlite:///{tmp_path}/no/such/ledger.db")
    assert_found(away, "ledger-answers", PROBLEM, "Runs go on")
    app = shop(singleton_database_url=f"sqlite:///{tmp_path}/ledger.db")
    assert_well(app, "ledger-answers")
    assert_found(app, "ledger-schema", PROBLEM, "has no tables")
    required_ledger_of(app).schema.upgrade()
    assert_well(app, "ledger-schema")
    required_ledger_of(app).close()


DAY = timedelta(days=1)


def test_gaps_of_history_are_found(tmp_path: Path) -> None:
    app = shop(singleton_database_url=f"sqlite:///{tmp_path}/ledger.db")
    ledger = required_ledger_of(app)
    ledger.schema.upgrade()
    now = datetime.now(UTC)
    write_news(ledger, News(gaps=[Gap("old:1", now - 3 * DAY, now - 2 * DAY, 5)]))
    assert_well(app, "history-complete")
    write_news(ledger, News(gaps=[Gap("web:7", now - DAY / 4, now - DAY / 5, 250)]))
    assert_found(app, "history-complete", WARNING, r"250 facts were lost .* in web:7")
    ledger.close()


# The outbox


def test_outbox_that_nobody_relays_is_found(tmp_path: Path) -> None:
    assert_well(shop(), "outbox-relayed", level=NOT_APPLICABLE)
    away = shop(singleton_outbox_url=f"sqlite:///{tmp_path}/no/such/outbox.db")
    assert_found(away, "outbox-relayed", PROBLEM, "is unavailable|unable to open")
    app = shop(singleton_outbox_url=f"sqlite:///{tmp_path}/outbox.db")
    assert_found(app, "outbox-relayed", PROBLEM, "has no outbox")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/outbox.db")
    metadata = sa.MetaData()
    outbox.add_tables(metadata)
    metadata.create_all(engine)
    assert_well(app, "outbox-relayed")
    with Session(engine) as session, session.begin():
        outbox.send(session, "shop.noop", app=app)
    assert_well(app, "outbox-relayed")
    row = sa.update(outbox.OutboxRow)
    with engine.begin() as connection:
        connection.execute(row.values(created_at=datetime.now(UTC) - timedelta(minutes=2)))
    assert_found(app, "outbox-relayed", PROBLEM, "rows wait")
    with engine.begin() as connection:
        connection.execute(row.values(state="held"))
    assert_found(app, "outbox-relayed", WARNING, "refused")
    engine.dispose()


# All of it


def test_every_check_is_made_to_fail_here() -> None:
    list(examine(shop(), only=["settings-eager"]))
    text = Path(__file__).read_text()
    failing = set(re.findall(r'assert_found\(\s*[^"]*?"([a-z-]+)",\s*(?:WARNING|PROBLEM)', text))
    failing |= set(re.findall(r'\("([a-z-]+)", (?:WARNING|PROBLEM), ', text))
    failing |= set(re.findall(r'assert_is\(told\["([a-z-]+)"\], (?:WARNING|PROBLEM)', text))
    failing |= set(re.findall(r'by_name\["([a-z-]+)"\].level is PROBLEM', text))
    names = [each.name for each in all_checks()]
    assert len(names) == len(set(names))
    assert len(names) >= 20
    assert [name for name in names if name not in failing] == []


def test_every_check_says_what_should_hold_and_is_in_the_docs() -> None:
    list(examine(shop(), only=["settings-eager"]))
    assert all(each.title and each.title[0].isupper() for each in all_checks())
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    assert [each.name for each in all_checks() if f"| `{each.name}` | {each.title} |" not in page] == []


def test_exit_code_is_for_scripts(redis_url: str) -> None:
    bad = CommandLine(shop(redis_url, task_always_eager=True))
    result = bad.run("doctor", "settings")
    assert result.exit_code == 1
    assert "problem   settings-eager" in result.stdout
    assert "Do: set it in tests only" in result.stdout
    doubtful = CommandLine(shop(redis_url, accept_content=["pickle"]))
    assert doubtful.run("doctor", "settings").exit_code == 0
    assert doubtful.run("doctor", "settings", "--strict").exit_code == 1
    well = CommandLine(shop(redis_url))
    assert well.run("doctor", "settings", "--strict").exit_code == 0
    assert "ok" in well.ok("doctor", "settings-eager", "--all")
    misspelt = well.run("doctor", "settings", "settings-eagre")
    assert misspelt.exit_code == 2
    assert "no check is named so: settings-eagre" in misspelt.output


def test_json_of_doctor(redis_url: str) -> None:
    told = CommandLine(shop(redis_url, task_always_eager=True)).json("doctor", "settings-eager", code=1)
    assert told["counts"] == {"ok": 0, "warning": 0, "problem": 1, "unknown": 0, "not applicable": 0}
    [finding] = told["findings"]
    assert list(finding) == ["check", "level", "title", "reason", "remedy"]
    assert finding["level"] == "problem"


def test_doctor_of_broken_settings_needs_no_traceback() -> None:
    result = CommandLine(shop("redis://127.0.0.1:1/0", singleton_lock_tll=3)).run(
        "doctor", "--timeout", "0.2"
    )
    assert result.exit_code == 1
    assert "did you mean singleton_lock_ttl" in result.stdout
