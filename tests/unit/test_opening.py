"""From a URL to a store: what is understood, and what is refused with words that help."""

from __future__ import annotations

import pytest

from celery_singleton_lock import ConfigurationError, open_store

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@localhost:6379/0",
        f"redis://user:{SECRET}@[::1]:6379/0",
        f"rediss://user:{SECRET}@localhost/0?ssl_cert_reqs=CERT_NONE",
        f"unix:///run/redis.sock?db=1&password={SECRET}",
        "redis+socket:///run/redis.sock?virtual_host=1",
        f"sentinel://:{SECRET}@one:26379;two;[::1]:26380/mymaster/2?sentinel_password={SECRET}",
        f"sentinels://:{SECRET}@one/mymaster",
        f"redis+cluster://:{SECRET}@one:7000,two:7001",
        f"rediss+cluster://user:{SECRET}@one",
        f"postgresql+psycopg://user:{SECRET}@localhost/app",
        f"mysql+pymysql://user:{SECRET}@localhost/app",
        f"mariadb+pymysql://user:{SECRET}@localhost/app",
        "sqlite:////tmp/leases.db",
        "memory://",
        [f"redis://:{SECRET}@one", f"rediss://:{SECRET}@two", f"unix:///x?password={SECRET}"],
    ],
)
def test_store_opens_without_io_and_hides_its_password(url: str | list[str]) -> None:
    store = open_store(url)
    assert SECRET not in store.name
    assert SECRET not in repr(store)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "must be one of"),
        ("localhost:6379", "must be one of"),
        ("amqp://localhost", "must be one of"),
        ("redis://localhost:port", "cannot be used"),
        ("redis://localhost?no_such=1", "look at its parameters"),
        ("sentinel://one/mymaster?no_such=1", "look at its parameters"),
        ("sentinel://one:26379", "/mymaster"),
        ("sentinel:///mymaster", "names no host"),
        ("redis+cluster://one:7000/3", "only database 0"),
        ("sqlite://", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("postgresql+nosuchdriver://localhost/app", "SQLAlchemy"),
        ("postgresql+psycopg2://localhost/app", "not installed"),
        (["redis://one", "redis://two"], "three or more"),
        (["redis://one", "redis://two", "sqlite:////tmp/x.db"], "independent servers"),
        (["redis://one", "redis://two", "redis://three:port"], "cannot be used"),
        (["redis://one", "redis://two", "redis://three?no_such=1"], "look at its parameters"),
    ],
)
def test_url_that_cannot_work_is_refused_with_what_to_do(url: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        f"bad://user:{SECRET}@host",
        f"redis://u:{SECRET}@host:x/0",
        f"redis://u:s\u2100{SECRET}@host/0",
        f"redis://:pa/{SECRET}@host",
        f"sentinel://u:s\u2100{SECRET}@host:x/0",
        f"redis+cluster://:{SECRET}@host:x",
    ],
)
def test_refusal_does_not_show_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_store(url)
    assert SECRET not in str(refused.value)


def test_list_of_one_is_one() -> None:
    assert open_store(["memory://"]).name == "memory://"
