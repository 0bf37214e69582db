"""The options of a task, and what makes two calls one job."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from kombu.utils.json import dumps, loads

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.worker.options import TaskOptions
from celery_singleton_lock.worker.unique import UniqueKey, signature_of


def report(region: str, day: Any = None, *, force: bool = False) -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


def unique(function: Callable[..., Any] = report, **options: Any) -> Callable[..., str]:
    key = UniqueKey("t", inspect.signature(function), TaskOptions.read("t", options))
    return lambda *args, **kwargs: key.of(args, kwargs)


def test_equal_calls_are_one_job_however_they_are_written() -> None:
    of = unique()
    assert of("eu") == of(region="eu") == of("eu", None) == of("eu", force=False)
    assert of("eu").startswith("t:")


@pytest.mark.parametrize("other", [("us",), ("eu", 1), ("eu", "None"), (["eu"],)])
def test_different_arguments_are_different_jobs(other: tuple[Any, ...]) -> None:
    of = unique()
    assert of("eu") != of(*other)


def test_unique_on_leaves_the_others_out() -> None:
    of = unique(unique_on=["region"])
    assert of("eu", 1) == of("eu", 2) != of("us", 1)


def test_unique_on_nothing_is_the_name_alone() -> None:
    of = unique(unique_on=())
    assert of("eu") == of("us", object()) == "t"


@pytest.mark.parametrize("option", [{"unique_on": ["regoin"]}, {"lock_key": "report:{regoin}"}])
def test_name_that_is_no_parameter_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'regoin', which is no parameter"):
        unique(**option)


@pytest.mark.parametrize("lock_key", ["report:{region:05d}", lambda region: {"eu": 1}[region]])
def test_lock_key_that_fails_for_the_arguments_says_whose_it_is(lock_key: Any) -> None:
    of = unique(lock_key=lock_key)
    with pytest.raises(ConfigurationError, match="lock_key of task 't' cannot be made"):
        of("us")


def test_keywords_that_a_task_collects_may_be_named() -> None:
    of = unique(anything, unique_on=["region"])
    assert of(region="eu", day=1) == of(region="eu", day=2)


def test_template_makes_the_key() -> None:
    of = unique(lock_key="report:{region}:{day}")
    assert of("eu", 5) == "report:eu:5"


@pytest.mark.parametrize("template", ["report:{region.secret}", "report:{region[0]}", "r:{", "r:{}"])
def test_template_with_more_than_names_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError):
        unique(lock_key=template)


def test_function_makes_the_key() -> None:
    of = unique(lock_key=lambda region, **_: f"for {region}")
    assert of("eu", day=1) == "for eu"
    with pytest.raises(ConfigurationError, match="must give a text"):
        unique(lock_key=lambda *_: 5)("eu")


def test_long_key_is_kept_as_a_digest() -> None:
    of = unique(lock_key="{region}")
    assert len(of("e" * 1000)) == 32


def test_argument_that_cannot_be_compared_gets_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"two Socket are equal.*unique_on"):
        unique()("eu", type("Socket", (), {})())


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        date(2026, 1, 2),
        uuid.UUID(int=7),
        Decimal("1.10"),
        (1, (2, 3)),
        {"b": 1, "a": {"z": None}},
        {1: 2, None: 3},
        "ü\ud800",
        1.5,
    ],
    ids=repr,
)
def test_client_and_worker_compute_the_same(value: Any) -> None:
    of = unique()
    assert of("eu", value) == of(*loads(dumps(["eu", value])))


def test_order_of_a_mapping_does_not_count() -> None:
    of = unique()
    assert of("eu", {"a": 1, "b": 2}) == of("eu", {"b": 2, "a": 1})


def test_method_is_known_without_self() -> None:
    class Body:
        def run(self, region: str) -> None: ...

    assert list(signature_of(Body.run, is_method=True).parameters) == ["region"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"overlap": "sometimes"}, "'skip', 'queue', 'allow'"),
        ({"on_duplicate": "drop"}, "'join', 'raise'"),
        ({"on_lease_lost": "panic"}, "'flag', 'abort'"),
        ({"when_store_down": "hope"}, "'wait', 'run', 'fail'"),
        ({"lock_ttl": -1}, "seconds above 0"),
        ({"lock_ttl": "30"}, "seconds as a number"),
        ({"unique_on": "region"}, "list of names"),
        ({"lock_key": 5}, "template"),
        ({"max_deliveries": 0}, "1 or more"),
        ({"dead_letter": "yes"}, "True or False"),
        ({"lock_wait": 5}, 'use "queue"'),
        ({"unique_on": ["region"], "lock_key": "x"}, "give one of them"),
        ({"lock_at_least": 9, "lock_at_most": 5}, "more than lock_at_most"),
        ({"overlap": "allow", "lock_at_least": 9}, "there is no lock"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_option_that_cannot_work_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        TaskOptions.read("shop.report", options)
    assert "shop.report" in str(refused.value)


def test_options_fall_back_to_the_settings() -> None:
    settings = Settings.from_mapping({"singleton_lock_url": "memory://", "singleton_lock_ttl": 60})
    options = TaskOptions.read("t", {})
    assert options.ttl(settings) == timedelta(seconds=60)
    assert options.store_down(settings) == "wait"
    assert options.most_deliveries(settings) == 5
    mine = TaskOptions.read("t", {"lock_ttl": 10, "when_store_down": "run", "max_deliveries": 1})
    assert mine.ttl(settings) == timedelta(seconds=10)
    assert mine.store_down(settings) == "run"
    assert mine.most_deliveries(settings) == 1


def test_ttl_too_short_for_two_renewals_is_refused_once_the_settings_are_known() -> None:
    settings = Settings.from_mapping({"singleton_lock_url": "memory://"})
    with pytest.raises(ConfigurationError, match="two renewals"):
        TaskOptions.read("t", {"lock_ttl": 1}).check_with(settings, "t")
