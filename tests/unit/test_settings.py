"""What is read from the Celery config, what is refused and how, and that no password is shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pytest
from celery import Celery
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.models import Granted, LeaseRequest
from celery_singleton_lock.leases.opening import REDIS_SCHEMES, SQL_SCHEMES, open_store
from celery_singleton_lock.settings import Settings, describe
from celery_singleton_lock.settings.hiding import hide_secrets
from celery_singleton_lock.settings.urls import DATABASES, STORES

REDIS = "redis://h:6379/0"
NODES = ["redis://h1", "rediss://h2:6380/1", "unix:///run/redis.sock"]
HEAD, TAIL = "Zq9x", "x9qZ"

# The first example imports SQLAlchemy and its drivers.
without_deadline = hypothesis_settings(deadline=None)


def read(mapping: dict[str, Any] | None = None, /, **broker: Any) -> Settings:
    return Settings.from_mapping({"singleton_lock_url": "memory://", **(mapping or {})}, **broker)


def refusal(mapping: dict[str, Any] | None = None, /, **broker: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_mapping(mapping or {}, **broker)
    return str(caught.value)


def refusal_of(name: str, value: object) -> str:
    """That names the setting."""
    text = refusal({"singleton_lock_url": "memory://", name: value})
    assert text.startswith(f"{name} = ")
    return text


# Defaults


def test_defaults_are_those_of_the_design() -> None:
    assert read() == Settings(
        lock_url="memory://",
        database_url=None,
        key_prefix="singleton",
        lock_ttl=timedelta(seconds=30),
        slot_ttl=timedelta(seconds=3),
        remember_for=timedelta(seconds=7200),
        catch_up="latest",
        catch_up_window=timedelta(days=1),
        when_store_down="wait",
        dead_letter_queue="dead-letters",
        max_deliveries=5,
        http=None,
        stuck_after=timedelta(seconds=120),
        log_format="text",
        log_repeats=100,
        tracing=False,
        alert_on=("slot_missed", "dead_lettered", "lease_lost", "overdue", "trouble"),
        alert_webhook=None,
        alert_format="plain",
        alert_key=None,
        alert_smtp_url=None,
        alert_email=(),
        alert_email_from=None,
    )


def test_none_means_not_set() -> None:
    names = [row.name for row in describe()]
    assert Settings.from_mapping(dict.fromkeys(names), broker_url=REDIS) == Settings(lock_url=REDIS)


def test_settings_cannot_be_changed_but_replaced_with_the_same_checks() -> None:
    settings = read()
    with pytest.raises(FrozenInstanceError):
        settings.lock_ttl = timedelta(seconds=1)  # type: ignore[misc]
    assert replace(settings, max_deliveries=7).max_deliveries == 7
    with pytest.raises(ConfigurationError, match="singleton_slot_ttl"):
        replace(settings, slot_ttl=timedelta(minutes=1))


def test_settings_survive_pickling() -> None:
    settings = read()
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_every_setting_is_described_with_its_kind_default_and_meaning() -> None:
    rows = describe()
    assert [row.name for row in rows] == [f"singleton_{each.name}" for each in fields(Settings)]
    assert all(row.kind and row.default and row.doc.endswith(".") for row in rows)
    defaults = {row.name: row.default for row in rows}
    assert defaults["singleton_lock_ttl"] == "30 s"
    assert defaults["singleton_lock_url"] == "the broker, where it is Redis; otherwise required"


# Where settings are found


@pytest.fixture(autouse=True)
def _no_broker_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)


def new_app(**options: Any) -> Celery:
    return Celery("settings-test", set_as_current=False, **options)


def test_app_configured_by_update_and_attribute_is_read() -> None:
    app = new_app(broker=REDIS)
    app.conf.update(singleton_lock_ttl=20)
    app.conf.singleton_slot_ttl = 2
    settings = Settings.from_app(app)
    assert (settings.lock_url, settings.lock_ttl.seconds, settings.slot_ttl.seconds) == (REDIS, 20, 2)


def test_app_configured_after_it_was_used_is_read() -> None:
    app = new_app(broker=REDIS)
    assert app.conf.broker_url == REDIS
    app.conf.singleton_max_deliveries = 9
    assert Settings.from_app(app).max_deliveries == 9


@pytest.mark.parametrize("namespace", ["CELERY", "CELERY_", "celery"])
def test_django_settings_are_read_without_their_namespace(namespace: str) -> None:
    app = new_app()
    django = SimpleNamespace(
        CELERY_BROKER_URL="amqp://h", CELERY_SINGLETON_LOCK_URL=REDIS, CELERY_SINGLETON_MAX_DELIVERIES=3
    )
    if namespace.islower():
        django = SimpleNamespace(**{name.lower(): value for name, value in vars(django).items()})
    app.config_from_object(django, namespace=namespace)
    settings = Settings.from_app(app)
    assert (settings.lock_url, settings.max_deliveries) == (REDIS, 3)


def test_broker_in_a_namespace_is_the_default() -> None:
    app = new_app()
    options = {"visibility_timeout": 5000}
    app.config_from_object(
        SimpleNamespace(CELERY_BROKER_URL=REDIS, CELERY_BROKER_TRANSPORT_OPTIONS=options),
        namespace="CELERY",
    )
    settings = Settings.from_app(app)
    assert (settings.lock_url, settings.remember_for.total_seconds()) == (REDIS, 10_000)


def test_of_two_spellings_the_one_that_celery_prefers_is_read() -> None:
    app = new_app(broker=REDIS)
    app.config_from_object(SimpleNamespace(CELERY_SINGLETON_LOCK_TTL=10), namespace="CELERY")
    assert Settings.from_app(app).lock_ttl.seconds == app.conf.singleton_lock_ttl == 10
    app.add_defaults({"singleton_lock_ttl": 15})
    assert Settings.from_app(app).lock_ttl.seconds == app.conf.singleton_lock_ttl == 15
    app.conf.CELERY_SINGLETON_LOCK_TTL = 20
    assert Settings.from_app(app).lock_ttl.seconds == app.conf.singleton_lock_ttl == 20


def test_change_at_run_time_beats_the_config_of_a_namespace() -> None:
    app = new_app(broker=REDIS)
    app.config_from_object(SimpleNamespace(CELERY_SINGLETON_LOCK_TTL=10), namespace="CELERY")
    assert Settings.from_app(app).lock_ttl.seconds == 10
    app.conf.singleton_lock_ttl = 20
    assert Settings.from_app(app).lock_ttl.seconds == app.conf.singleton_lock_ttl == 20


def test_broker_in_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://from-the-environment")
    assert Settings.from_app(new_app(broker=REDIS)).lock_url == "redis://from-the-environment"


@pytest.mark.parametrize("key", ["singleton_lock_ttl", "SINGLETON_LOCK_TTL", "Singleton_Lock_Ttl"])
def test_case_of_a_key_does_not_matter(key: str) -> None:
    assert read({key: 20}).lock_ttl.seconds == 20


def test_other_keys_are_none_of_our_business() -> None:
    assert read({"task_acks_late": True, "singletons": 1, 5: 6}) == read()  # type: ignore[dict-item]


def test_what_a_config_module_imports_is_no_setting() -> None:
    module = ModuleType("celeryconfig")
    vars(module).update(broker_url=REDIS, singleton_lock=lambda key: key, singleton_module=sys)
    app = new_app()
    app.config_from_object(module)
    assert Settings.from_app(app).lock_url == REDIS


def test_unknown_keys_are_all_named_each_with_what_was_meant() -> None:
    text = refusal({"singleton_lok_url": REDIS, "SINGLETON_CATCHUP": "all", "singleton_zzz": 1})
    assert "singleton_lok_url (did you mean singleton_lock_url?)" in text
    assert "SINGLETON_CATCHUP (did you mean SINGLETON_CATCH_UP?)" in text
    assert "singleton_zzz" in text
    assert REDIS not in text


def test_known_settings_are_spelt_as_they_are_here() -> None:
    """With Django's namespace somebody would look in vain for `singleton_lock_url`."""
    module = ModuleType("settings")
    vars(module).update(CELERY_BROKER_URL=REDIS, CELERY_SINGLETON_ZZZ=1)
    app = new_app()
    app.config_from_object(module, namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"Known: .*CELERY_SINGLETON_CATCH_UP") as refused:
        Settings.from_app(app)
    assert "CELERY_SINGLETON_ZZZ" in str(refused.value)


def test_settings_that_another_package_left_are_said_by_their_name_here() -> None:
    text = refusal({"singleton_backend_url": REDIS, "singleton_lock_expiry": 60})
    assert "singleton_backend_url (here it is singleton_lock_url)" in text
    assert "singleton_lock_expiry (not needed here: locks are renewed, remove it)" in text
    assert REDIS not in text


def test_unknown_key_in_a_namespace_is_refused_in_its_spelling() -> None:
    app = new_app(broker=REDIS)
    app.config_from_object(SimpleNamespace(CELERY_SINGLETON_LOK_TTL=10), namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"mean CELERY_SINGLETON_LOCK_TTL\?"):
        Settings.from_app(app)


def test_key_without_its_namespace_is_refused_but_somebody_elses_is_not() -> None:
    text = refusal({"SINGLETON_LOCK_URL": REDIS}, namespace="CELERY")
    assert "CELERY_SINGLETON_LOCK_URL" in text
    assert read({"SINGLETON_OF_ANOTHER_PACKAGE": 1}, namespace="CELERY") == read()


def test_setting_given_twice_is_refused() -> None:
    text = refusal({"singleton_lock_ttl": 20, "SINGLETON_LOCK_TTL": 30})
    assert "singleton_lock_ttl" in text
    assert "SINGLETON_LOCK_TTL" in text


# Single values

DURATIONS = [
    "singleton_lock_ttl",
    "singleton_slot_ttl",
    "singleton_remember_for",
    "singleton_catch_up_window",
]


@pytest.mark.parametrize("given_as", [90, 90.0, timedelta(seconds=90)])
def test_duration_is_seconds_or_a_timedelta(given_as: object) -> None:
    assert read({"singleton_lock_ttl": given_as}).lock_ttl == timedelta(minutes=1.5)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value",
    [0, -1, 0.0, 1e-9, float("nan"), float("inf"), -float("inf"), 1e300, 10**12, timedelta(0),
     timedelta(days=9999), timedelta(-1), True, False, "30", b"30", [30], {}, object()],
)  # fmt: skip
def test_duration_that_is_none_is_refused(name: str, value: object) -> None:
    assert "seconds" in refusal_of(name, value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "5", [5]])
def test_count_that_is_none_is_refused(value: object) -> None:
    assert "1 or more" in refusal_of("singleton_max_deliveries", value)


@pytest.mark.parametrize("name", ["singleton_key_prefix", "singleton_dead_letter_queue"])
@pytest.mark.parametrize("value", ["", "  ", "a\0b", "a" * 256, 5, b"x", ["x"]])
def test_name_that_is_none_is_refused(name: str, value: object) -> None:
    assert "give a text" in refusal_of(name, value)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("singleton_catch_up", ["none", "latest", "all"]),
        ("singleton_when_store_down", ["wait", "run", "fail"]),
    ],
)
def test_choice_is_one_of_those_named(name: str, choices: list[str]) -> None:
    for choice in choices:
        assert getattr(read({name: choice}), name.removeprefix("singleton_")) == choice
    for wrong in ("", "LATEST", "sometimes", 1, True, ["all"]):
        assert ", ".join(map(repr, choices)) in refusal_of(name, wrong)


@pytest.mark.parametrize("address", ["127.0.0.1:9808", "localhost:0", "[::1]:9808", "host-1.x:65535"])
def test_address_is_host_and_port(address: str) -> None:
    assert read({"singleton_http": address}).http == address


@pytest.mark.parametrize(
    "address",
    ["", "localhost", ":9808", "h:", "h:65536", "h:-1", "h:x", "::1:9808", "http://h:1", "h:1/x",
     "u:p@h:1", "h:1\n", "h:\u0661", 9808, True, ("h", 1)],
)  # fmt: skip
def test_address_without_host_or_port_is_refused(address: object) -> None:
    assert "'127.0.0.1:9808'" in refusal_of("singleton_http", address)


# URLs


def test_schemes_are_those_that_a_store_can_be_opened_for() -> None:
    assert set(STORES) == REDIS_SCHEMES | {"memory"}
    assert set(DATABASES) == SQL_SCHEMES


@pytest.mark.parametrize(
    "url",
    ["redis://", REDIS, "rediss://u:p@h", "unix:///s?db=1", "redis+socket:///s", "memory://",
     "sentinel://h1:26379;h2:26379/mymaster/1", "redis+cluster://h1,h2", "sqlite:////tmp/x.db",
     "postgresql+psycopg://u:p@h/db", "mysql+pymysql://u:p@h/db", "mariadb+pymysql://h/db"],
)  # fmt: skip
def test_url_of_every_store_is_kept_as_it_is(url: str) -> None:
    assert read({"singleton_lock_url": url}).lock_url == url
    assert read({"singleton_lock_url": [url]}).lock_url == url


@pytest.mark.parametrize(
    "url", ["", "h:6379", "redi://h", "amqp://h", "http://h", "oracle://h", "://h"]
)
def test_lock_url_of_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    assert "redis://, rediss://, unix://" in refusal_of("singleton_lock_url", url)


@pytest.mark.parametrize(
    "url", ["redis://h:port", "redis://:a/b@h", "redis://[::1", "rediss://h:99999"]
)
def test_lock_url_that_cannot_be_parsed_is_refused(url: str) -> None:
    assert "percent-encode" in refusal_of("singleton_lock_url", url)


@pytest.mark.parametrize("value", [5, True, b"redis://h", {}, [], (), [5], [REDIS, None], {REDIS}])
def test_lock_url_of_another_type_is_refused(value: object) -> None:
    assert "give a URL" in refusal_of("singleton_lock_url", value)


@pytest.mark.parametrize(
    "url", ["redis://h1;redis://h2", "redis://h1, redis://h2", "sentinel://h;sentinel://i/m"]
)
def test_several_urls_in_one_text_are_refused(url: str) -> None:
    assert "give a list" in refusal_of("singleton_lock_url", url)


@pytest.mark.parametrize("kind", [list, tuple])
def test_three_servers_are_a_quorum(kind: Any) -> None:
    assert read({"singleton_lock_url": kind(NODES)}).lock_url == tuple(NODES)


def test_quorum_of_two_is_refused_with_the_reason() -> None:
    text = refusal_of("singleton_lock_url", NODES[:2])
    assert "a majority of two is two, so losing either stops everything" in text


@pytest.mark.parametrize(
    "node", ["sentinel://h/m", "redis+cluster://h", "memory://", "sqlite:////tmp/x"]
)
def test_node_of_a_quorum_that_is_no_single_redis_server_is_refused(node: str) -> None:
    assert "redis://, rediss:// or unix://" in refusal_of("singleton_lock_url", [*NODES, node])


@pytest.mark.parametrize(
    "node",
    ["redis://h1", "redis://u:p@H1:6379/5", "unix://u:p@/run/redis.sock?db=3", "rediss://h2:6380"],
)
def test_server_named_twice_in_a_quorum_is_refused(node: str) -> None:
    assert "two votes" in refusal_of("singleton_lock_url", [*NODES, node])


DATABASE_SETTINGS = pytest.mark.parametrize("name", ["singleton_database_url", "singleton_lock_url"])


@DATABASE_SETTINGS
@pytest.mark.parametrize(
    ("url", "module", "driver", "extra"),
    [
        ("postgresql+psycopg://u:p@h/db", "psycopg", "psycopg", "celery-singleton-lock[postgres]"),
        ("mysql+pymysql://u:p@h/db", "pymysql", "pymysql", "celery-singleton-lock[mysql]"),
        ("mariadb+pymysql://u:p@h/db", "pymysql", "pymysql", "celery-singleton-lock[mysql]"),
        ("postgresql+psycopg2://u:p@h/db", "psycopg2", "psycopg2", "celery-singleton-lock[postgres]"),
        ("mysql://u:p@h/db", "MySQLdb", "mysqldb", "celery-singleton-lock[mysql]"),
    ],
)
def test_missing_driver_is_named_with_the_extra_that_brings_it(
    name: str, url: str, module: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    text = refusal_of(name, url)
    assert f"its driver {driver} is missing" in text
    assert extra in text


@DATABASE_SETTINGS
@pytest.mark.parametrize("url", ["postgresql+psycopg://h:port/db", "postgresql+nonsense://h/db"])
def test_database_url_that_cannot_be_parsed_is_refused_with_examples(name: str, url: str) -> None:
    assert DATABASES["postgresql"] in refusal_of(name, url)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "postgres://h/db", "oracle://h/db", "redis://h", "memory://"]
)
def test_database_that_is_not_supported_is_refused_with_examples(url: str) -> None:
    assert DATABASES["postgresql"] in refusal_of("singleton_database_url", url)


@DATABASE_SETTINGS
@pytest.mark.parametrize("url", ["postgresql+asyncpg://h/db", "postgresql+psycopg_async://h/db"])
def test_asynchronous_driver_is_refused(name: str, url: str) -> None:
    assert "asynchronous" in refusal_of(name, url)


@DATABASE_SETTINGS
@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_sqlite_in_memory_is_refused(name: str, url: str) -> None:
    assert DATABASES["sqlite"] in refusal_of(name, url)


@pytest.mark.parametrize("value", [5, True, b"sqlite:////x", ["sqlite:////x"]])
def test_database_url_of_another_type_is_refused(value: object) -> None:
    assert "as a text" in refusal_of("singleton_database_url", value)


# What depends on another setting


@pytest.mark.parametrize(("slot_ttl", "store_timeout"), [(0.5, 0.5 / 3), (2.4, 0.8), (3, 1), (30, 1)])
def test_store_call_may_take_a_third_of_the_slot_ttl_but_at_most_a_second(
    slot_ttl: float, store_timeout: float
) -> None:
    settings = read({"singleton_slot_ttl": slot_ttl})
    assert settings.store_timeout.total_seconds() == pytest.approx(store_timeout, abs=1e-6)


@pytest.mark.parametrize(
    ("lock_ttl", "slot_ttl", "refused"),
    [
        (30, 30, None),
        (30, 30.001, "singleton_slot_ttl"),
        (30, 0.5, None),
        (30, 0.499, "singleton_slot_ttl"),
        (1, 0.75, None),
        (0.999, 0.5, "singleton_lock_ttl"),
        (4, 3, None),
        (3.999, 3, "singleton_lock_ttl"),
        (3, 3, "singleton_lock_ttl"),
        (2, 1.5, None),
        (1.9, 1.5, "singleton_lock_ttl"),
        (2, 3, "singleton_slot_ttl"),
    ],
)
def test_ttls_must_leave_time_for_the_calls_within_them(
    lock_ttl: float, slot_ttl: float, refused: str | None
) -> None:
    mapping = {"singleton_lock_ttl": lock_ttl, "singleton_slot_ttl": slot_ttl}
    if refused is None:
        assert read(mapping).lock_ttl.total_seconds() == lock_ttl
    else:
        text = refusal({"singleton_lock_url": "memory://", **mapping})
        assert text.startswith(f"{refused} = ")
        assert "raise" in text


@without_deadline
@given(slot_ttl=st.floats(0.5, 60), surplus=st.floats(0, 60))
def test_second_renewal_ends_before_the_deadline_though_the_store_is_slow(
    slot_ttl: float, surplus: float
) -> None:
    least = read({"singleton_slot_ttl": slot_ttl, "singleton_lock_ttl": 3600}).shortest_lock_ttl
    lock_ttl = max(least.total_seconds(), slot_ttl) + surplus
    settings = read({"singleton_slot_ttl": slot_ttl, "singleton_lock_ttl": lock_ttl})
    deadline = lock_ttl * 0.99 - 0.002
    assert lock_ttl * 2 / 3 + settings.store_timeout.total_seconds() < deadline


def test_run_is_remembered_at_least_as_long_as_its_lease() -> None:
    text = refusal_of("singleton_remember_for", 29.9)
    assert "30 s" in text
    assert read({"singleton_remember_for": 30}).remember_for.seconds == 30
    assert read({"singleton_lock_ttl": 9000}).remember_for.seconds == 9000


def test_default_of_remember_for_satisfies_every_bound_at_once() -> None:
    options = {"visibility_timeout": 20_000}
    told: dict[str, Any] = {"broker_url": REDIS, "broker_transport_options": options}
    assert read({"singleton_lock_ttl": 9000}, **told).remember_for.total_seconds() == 40_000
    assert read({"singleton_lock_ttl": 50_000}, **told).remember_for.total_seconds() == 50_000


@pytest.mark.parametrize(
    ("broker", "options", "default", "least"),
    [
        (REDIS, None, 7200, 7200),
        (REDIS, {"visibility_timeout": None}, 7200, 7200),
        (REDIS, {"visibility_timeout": 60}, 7200, 120),
        (REDIS, {"visibility_timeout": 43200}, 86400, 86400),
        (["sentinel://h"], None, 7200, 7200),
        ("redis+socket:///s", None, 7200, 7200),
        ("sqs://", None, 7200, 3600),
        ("amqp://h", None, 7200, 30),
        (None, None, 7200, 30),
    ],
)
def test_run_is_remembered_for_twice_the_visibility_timeout(
    broker: Any, options: dict[str, Any] | None, default: int, least: int
) -> None:
    told: dict[str, Any] = {"broker_url": broker, "broker_transport_options": options}
    assert read(**told).remember_for.total_seconds() == default
    assert read({"singleton_remember_for": least}, **told).remember_for.total_seconds() == least
    too_short = {"singleton_lock_url": "memory://", "singleton_remember_for": least - 1}
    text = refusal(too_short, **told)
    assert text.startswith(f"singleton_remember_for = {least - 1} s: ")
    assert f"{least}" in text


@pytest.mark.parametrize("value", [0, -5, "soon", True, float("nan")])
def test_visibility_timeout_that_is_none_is_refused(value: object) -> None:
    text = refusal(broker_url=REDIS, broker_transport_options={"visibility_timeout": value})
    assert text.startswith("broker_transport_options['visibility_timeout'] = ")


# The lock URL that follows from the broker


@pytest.mark.parametrize(
    "url",
    [REDIS, "redis://", "rediss://:p@h/1?ssl_cert_reqs=CERT_NONE", "redis+socket:///s?virtual_host=1"],
)
def test_redis_broker_is_the_lock_store(url: str) -> None:
    assert Settings.from_mapping({}, broker_url=url).lock_url == url
    assert Settings.from_mapping({}, broker_url=[url]).lock_url == url


def test_lock_url_that_is_set_beats_the_broker() -> None:
    told: dict[str, Any] = {"broker_url": "amqp://a;amqp://b", "broker_use_ssl": True}
    assert read({"singleton_lock_url": REDIS}, **told).lock_url == REDIS


def test_memory_broker_takes_locks_in_memory() -> None:
    assert Settings.from_mapping({}, broker_url="memory://localhost/").lock_url == "memory://"


@pytest.mark.parametrize(
    "broker",
    [None, "", "amqp://guest:p@h//", "sqs://", "sqla+sqlite:///x", "localhost", ["amqp://a", REDIS]],
)
def test_broker_that_is_not_redis_requires_a_lock_url(broker: Any) -> None:
    text = refusal(broker_url=broker)
    assert text.startswith("singleton_lock_url is not set")
    assert "singleton_lock_url = 'redis://host:6379/0'" in text


@pytest.mark.parametrize("broker", ["redis://a;redis://b", ["redis://a", "redis://b"]])
def test_several_brokers_require_a_lock_url_and_say_why(broker: Any) -> None:
    assert "would not see each other's locks" in refusal(broker_url=broker)


@pytest.mark.parametrize("broker", [REDIS, "rediss://h", "sentinel://h/0"])
def test_tls_options_beside_the_broker_url_require_a_lock_url(broker: str) -> None:
    """Else the lock store would be reached without TLS, or with another idea of whom to trust."""
    text = refusal(
        broker_url=broker,
        broker_use_ssl={"ssl_ca_certs": "/ca.pem"},
        broker_transport_options={"master_name": "m"},
    )
    assert "rediss://" in text


def test_tls_options_of_an_app_are_seen() -> None:
    app = new_app(broker=REDIS)
    app.conf.broker_use_ssl = {"ssl_ca_certs": "/ca.pem"}
    with pytest.raises(ConfigurationError, match="broker_use_ssl"):
        Settings.from_app(app)


@pytest.mark.parametrize(
    ("broker", "options", "lock_url"),
    [
        ("sentinel://h1:26379", {}, "sentinel://h1:26379/x"),
        ("sentinel://h1:26379;sentinel://h2:26379", {}, "sentinel://h1:26379;h2:26379/x"),
        ("sentinel://h1:26379;sentinel://h2:26379/0", {}, "sentinel://h1:26379;h2:26379/x/0"),
        (["sentinel://h1/2", "sentinel://h2/2"], {}, "sentinel://h1;h2/x/2"),
        ("sentinel://h1;h2/1;", {}, "sentinel://h1;h2/x/1"),
        ("sentinel://:p%40@h1;sentinel://:p%40@h2", {}, "sentinel://:p%40@h1;h2/x"),
        ("sentinel://u:p@h1;sentinel://h2", {}, "sentinel://u:p@h1;h2/x"),
        ("sentinel://[::1]:1;sentinel://h2", {}, "sentinel://[::1]:1;h2/x"),
        ("sentinel://h", {"sentinel_kwargs": None}, "sentinel://h/x"),
        (
            "sentinel://h",
            {"sentinel_kwargs": {"password": "a&b/c%", "socket_timeout": 1}},
            "sentinel://h/x?sentinel_password=a%26b%2Fc%25",
        ),
        ("sentinel://h", {"master_name": "a/b"}, "sentinel://h/a%2Fb"),
    ],
)
def test_sentinels_of_the_broker_are_spelt_our_way(
    broker: Any, options: dict[str, Any], lock_url: str
) -> None:
    told = {"master_name": "x"} | options
    settings = Settings.from_mapping({}, broker_url=broker, broker_transport_options=told)
    assert settings.lock_url == lock_url
    open_store(lock_url).close()
    assert Settings.from_mapping({"singleton_lock_url": lock_url}) == settings


@pytest.mark.parametrize(
    ("broker", "options"),
    [
        ("sentinel://h", {"master_name": None}),
        ("sentinel://:a@h1;sentinel://:b@h2", {}),
        ("sentinel://h1/1;sentinel://h2/2", {}),
        ("sentinel://h1/name", {}),
        ("sentinel://h1?ssl_cert_reqs=none", {}),
        ("sentinel://h1;redis://h2", {}),
        ("sentinel://h", {"sentinel_kwargs": {"username": "u", "password": "p"}}),
        ("sentinel://h", {"sentinel_kwargs": {"ssl": True}}),
    ],
)
def test_sentinels_that_our_url_cannot_express_require_a_lock_url(
    broker: str, options: dict[str, Any]
) -> None:
    told = {"master_name": "x"} | options
    text = refusal(broker_url=broker, broker_transport_options=told)
    assert "singleton_lock_url = 'sentinel://host1:26379;host2:26379/mymaster'" in text


# Secrets

_special = st.sampled_from("@:/?#;,=%[]\\ '\"+.-_0123456789") | st.sampled_from(
    ["%40", "%3A", "%2F", "://", ";x://", "@h/", "password=", "\n", "é", "℀"]
)
_inner = st.lists(_special | st.characters(codec="utf-8"), max_size=12).map("".join)
passwords = _inner.map(lambda inner: HEAD + inner.replace("&", "%26") + TAIL)

URLS = [
    "redis://u:{}@h",
    "redis://:{}@h:6379/0",
    "rediss://u:{}@h:port/0",
    "rediss://h?ssl_password={}",
    "unix://u:{0}@/path?password={0}",
    "redis+socket://:{}@/path",
    "sentinel://u:{}@h1:26379;h2:26379/mymaster",
    "sentinel://:{0}@h1;sentinel://:{0}@h2/0",
    "sentinel://h1;h2/mymaster?sentinel_password={}",
    "redis+cluster://u:{}@h1:7000,h2:7001",
    "redis+cluster://u:{0}@h1:7000,u:{0}@h2:7001",
    "postgresql+psycopg://u:{}@h/db",
    "postgresql+psycopg://h/db?sslpassword={}",
    "postgresql+psycopg2://u:{}@h:port/db",
    "mysql+pymysql://u:{}@h/db?ssl_key_password={}",
    "mysql+mysqldb://u:{}@h/db",
    "amqp://u:{}@h//",
    "redi://u:{}@h",
    "u:{}@h:6379",
]


def everything_shown(mapping: dict[str, Any], **broker: Any) -> str:
    """What a person could come to see: of settings that are read, or of those that are refused."""
    try:
        settings = Settings.from_mapping(mapping, **broker)
    except ConfigurationError as error:
        return f"{error} {error!r} {error.args} {''.join(traceback.format_exception(error))}"
    return f"{settings} {settings!r}"


def assert_hidden(shown: str) -> None:
    assert HEAD not in shown
    assert TAIL not in shown


@pytest.mark.parametrize("form", URLS)
@without_deadline
@given(password=passwords, encoded=st.booleans())
@example(password=HEAD + TAIL, encoded=False)
def test_no_password_is_shown_whatever_is_wrong_with_the_setting(
    form: str, password: str, encoded: bool
) -> None:
    url = form.format(*[quote(password, safe="") if encoded else password] * 2)
    nodes = [url, url.replace("@h", "@i"), url.replace("@h", "@j")]
    assert_hidden(everything_shown({"singleton_lock_url": url}))
    assert_hidden(everything_shown({"singleton_lock_url": nodes}))
    assert_hidden(everything_shown({"singleton_lock_url": nodes[:2]}))
    assert_hidden(everything_shown({"singleton_lock_url": {"url": url}}))
    assert_hidden(everything_shown({"singleton_lock_url": url.encode()}))
    assert_hidden(everything_shown({"singleton_lock_urll": url}))
    assert_hidden(everything_shown({"singleton_lock_url": REDIS, "singleton_database_url": url}))
    for name in ("lock_ttl", "catch_up", "http", "max_deliveries"):
        assert_hidden(everything_shown({"singleton_lock_url": REDIS, f"singleton_{name}": url}))


@pytest.mark.parametrize("form", URLS)
@without_deadline
@given(password=passwords, encoded=st.booleans())
def test_no_password_of_the_broker_is_shown(form: str, password: str, encoded: bool) -> None:
    url = form.format(*[quote(password, safe="") if encoded else password] * 2)
    options = {"master_name": "x", "sentinel_kwargs": {"password": password}}
    assert_hidden(everything_shown({}, broker_url=url, broker_transport_options=options))
    assert_hidden(everything_shown({}, broker_url=[url, url]))
    assert_hidden(everything_shown({}, broker_url=url))


@without_deadline
@given(password=passwords)
def test_password_of_the_sentinels_is_carried_over_unchanged(password: str) -> None:
    options = {"master_name": "x", "sentinel_kwargs": {"password": password}}
    settings = Settings.from_mapping({}, broker_url="sentinel://h", broker_transport_options=options)
    assert isinstance(settings.lock_url, str)
    assert unquote(settings.lock_url.partition("sentinel_password=")[2]) == password


def test_repr_shows_what_is_no_secret() -> None:
    shown = repr(read({"singleton_lock_url": "redis://:p@h1", "singleton_lock_ttl": 20}))
    assert shown.startswith("Settings(lock_url='redis://:***@h1', database_url=None, ")
    assert "lock_ttl=20 s" in shown
    quorum = repr(read({"singleton_lock_url": ["redis://:p@h1", "redis://:p@h2", "redis://:p@h3"]}))
    assert "['redis://:***@h1', 'redis://:***@h2', 'redis://:***@h3']" in quorum


def secret_settings() -> list[str]:
    return [
        f"singleton_{each.name}"
        for each in fields(Settings)
        if each.metadata["is_secret"] or "URL" in each.metadata["kind"]
    ]


@pytest.mark.parametrize("name", secret_settings())
@pytest.mark.parametrize("namespace", ["", "celery_"])
def test_no_secret_is_in_what_celery_tells_of_its_settings(name: str, namespace: str) -> None:
    hide_secrets()
    app = Celery("shop", broker="memory://", set_as_current=False)
    key = f"{namespace}{name}"
    for spelling in (key, key.upper()):
        for value in (f"redis://:{HEAD}@h/0", [f"redis://:{HEAD}@h{n}/0" for n in range(3)]):
            app.conf[spelling] = value
            assert HEAD not in app.conf.humanize()
            # As `celery inspect conf` and Flower have it.
            assert HEAD not in str(app.conf.table(with_defaults=True))
    assert key in app.conf.table()


def test_celery_report_shows_no_password_of_an_app_that_imports_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"from celery import Celery\napp = Celery(broker='memory://')\n"
        f"app.conf.singleton_lock_url = 'redis://:{HEAD}@h/0'\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "shop", "report"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout
    assert "singleton_lock_url" in told
    assert HEAD not in told


@pytest.mark.parametrize("drift", [-0.01, 0.06, float("nan"), "much", True])
def test_clock_drift_that_no_clock_has_is_refused(drift: object) -> None:
    assert "from 0 to 0.05" in refusal_of("singleton_clock_drift", drift)


def test_lease_ends_earlier_for_its_holder_by_the_drift_of_clocks() -> None:
    ttl = timedelta(seconds=100)
    for drift in (0.0, 0.01, 0.05):
        store = open_store("memory://", drift=drift)
        [answer] = store.acquire([LeaseRequest("k", "a", ttl)])
        assert isinstance(answer, Granted)
        assert answer.lease.remaining.total_seconds() == pytest.approx(100 - 100 * drift, abs=0.5)
    with pytest.raises(ConfigurationError, match="between 0 and"):
        open_store("memory://", drift=0.5)
