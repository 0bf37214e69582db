"""No password survives `redact`, however it is written; what is no secret stays readable."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from celery_singleton_lock.core.redaction import redact, redact_all

# A password is recognised by its ends, so that a part of it that survives is found too.
HEAD, TAIL = "Zq9x", "x9qZ"

# A busy machine is no fault of ours.
without_deadline = hypothesis_settings(deadline=None)

# What is special in a URL is drawn more often than anything else.
_special = st.sampled_from("@:/?#;,=%[]\\ '\"+.-_0123456789") | st.sampled_from(
    ["%40", "%3A", "%2F", "%", "://", ";x://", "@h/", "password=", "\n", "é", "℀", "***"]
)
_inner = st.lists(_special | st.characters(codec="utf-8"), max_size=12).map("".join)
raw_passwords = _inner.map(lambda inner: HEAD + inner + TAIL)
# In a query a raw & ends the value: what follows is another parameter to every parser.
query_passwords = raw_passwords.map(lambda password: password.replace("&", "%26"))

IN_LOGIN = [
    "redis://u:{}@h",
    "redis://:{}@h:6379/0",
    "rediss://u:{}@h:6379/0?ssl_cert_reqs=required",
    "redis://u:{}@[::1]:6379/0",
    "redis+socket://u:{}@/run/redis.sock?virtual_host=1",
    "unix://u:{}@/run/redis.sock?db=1",
    "sentinel://u:{}@h1:26379;h2:26379/mymaster/1",
    "sentinel://u:{0}@h1:26379;u:{0}@h2:26379/mymaster",
    "sentinel://:{0}@h1:26379;sentinel://:{0}@h2:26379;sentinel://:{0}@h3:26379/0",
    "redis+cluster://u:{}@h1:7000,h2:7001",
    "redis+cluster://u:{0}@h1:7000,u:{0}@h2:7001",
    "redis://:{0}@h1/0, redis://:{0}@h2/0, redis://:{0}@h3/0",
    "postgresql+psycopg://u:{}@h:5432/db?application_name=x",
    "mysql+pymysql://u:{}@h/db?charset=utf8mb4",
    "amqp://guest:{}@h//",
    "sqs://AKIA:{}@",
]
IN_QUERY = [
    "unix:///run/redis.sock?password={}",
    "unix://u:x@/run/redis.sock?password={}",
    "redis://h:6379/0?password={}&db=1",
    "redis://h?db=1&p%61ssword={}",
    "rediss://h?ssl_password={}",
    "rediss://h?x=1;ssl_password={}",
    "sentinel://h1:26379;h2:26379/mymaster?sentinel_password={}",
    "redis+cluster://h1,h2?PASSWORD={}",
    "postgresql+psycopg://u@h/db?sslpassword={}",
    "mysql+pymysql://h/db?passwd={}&ssl_key_password={}",
]


def assert_hidden(password: str, shown: str) -> None:
    assert HEAD not in shown
    assert TAIL not in shown
    assert password not in shown


@pytest.mark.parametrize("form", IN_LOGIN)
@without_deadline
@given(password=raw_passwords)
@example(password=HEAD + "?x_key=1@h;x://" + TAIL)
@example(password=HEAD + "@h1;:" + TAIL)
@example(password=HEAD + "@h1/0?password=1" + TAIL)
def test_no_password_of_a_login_survives(form: str, password: str) -> None:
    assert_hidden(password, redact(form.format(password)))


@pytest.mark.parametrize("form", IN_LOGIN)
@without_deadline
@given(password=raw_passwords)
def test_no_encoded_password_of_a_login_survives_and_its_host_does(form: str, password: str) -> None:
    shown = redact(form.format(quote(password, safe="")))
    assert_hidden(password, shown)
    assert "***@" in shown


@pytest.mark.parametrize("form", IN_QUERY)
@without_deadline
@given(password=query_passwords)
@example(password=HEAD + ";x://" + TAIL)
@example(password=HEAD + ";a=" + TAIL)
def test_no_password_of_a_query_survives(form: str, password: str) -> None:
    assert_hidden(password, redact(form.format(password, password)))


@pytest.mark.parametrize("form", IN_LOGIN + IN_QUERY)
@without_deadline
@given(password=raw_passwords.filter(lambda password: not set(password) & set(" \t\n\r\f\v")))
def test_no_encoded_password_in_a_text_survives(form: str, password: str) -> None:
    url = form.format(*[quote(password, safe="")] * 2)
    shown = redact(f"ConnectionError: cannot reach '{url}': timed out (at 10:30)")
    assert_hidden(password, shown)
    assert shown.startswith("ConnectionError: cannot reach '")
    assert shown.endswith("timed out (at 10:30)")


def test_password_with_a_space_in_a_text_is_hidden() -> None:
    shown = redact(f"cannot reach redis://u:{HEAD} and {TAIL}@h/0, giving up")
    assert shown == "cannot reach redis://u:***@h/0, giving up"


@pytest.mark.parametrize("login", ["u:{}@h:6379/0", ":{}@h", "redis:/:{}@h", "redis:://u:{}@h"])
def test_password_is_hidden_when_the_scheme_is_missing_or_mistyped(login: str) -> None:
    password = HEAD + "a@b:c/d" + TAIL
    assert_hidden(password, redact(login.format(password)))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:6379/0", "redis://u:***@h:6379/0"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://u:p%40q@h", "redis://u:***@h"),
        ("redis://u:p@q@h", "redis://u:***@h"),
        ("redis://user-or-token@h", "redis://***@h"),
        ("unix://u:p@/path?db=1&password=p", "unix://u:***@/path?db=1&password=***"),
        (
            "sentinel://:a@h1:1;sentinel://:b@h2:2/0",
            "sentinel://:***@h1:1;sentinel://:***@h2:2/0",
        ),
        ("redis+cluster://u:p@h1:1,h2:2", "redis+cluster://u:***@h1:1,h2:2"),
        ("rediss://h?ssl_password=p&db=1", "rediss://h?ssl_password=***&db=1"),
        # In doubt where the password ends, nothing but the scheme.
        ("redis://u:p/q@h", "redis://***"),
        ("redis://h?client_name=a@b", "redis://***"),
        ("redis://u:1;x://2@h", "redis://***"),
        ("redis://h?password=a&b", "redis://h?password=***&***"),
    ],
)
def test_what_is_no_secret_stays_readable(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    "text",
    [
        "redis://",
        "redis://h:6379/0",
        "redis://[::1]:6379/0",
        "redis://h1:1,redis://h2:2",
        "sentinel://h1:26379;h2:26379/mymaster/1",
        "sqlite:////var/lib/app.db",
        "postgresql+psycopg:///db?host=/run/postgresql",
        "memory://",
        "",
        "nothing to hide: the server at 10:30 said no",
        "(1045, \"Access denied for user 'u'@'h' (using password: YES)\")",
        "ConnectionError: Error 111 connecting to redis://h:6379. Connection refused.",
    ],
)
def test_text_without_a_secret_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_several_urls_are_redacted_each() -> None:
    assert redact_all(["redis://:a@h1", "redis://:b@h2"]) == "redis://:***@h1, redis://:***@h2"
    assert redact_all("redis://:a@h1") == "redis://:***@h1"


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a:" * 100_000, "x://" + "a:" * 100_000, "a.b-" * 50_000]
)
def test_long_text_costs_no_more_than_its_length(text: str) -> None:
    began = time.process_time()
    redact(text)
    redact("Error: " + text)
    assert time.process_time() - began < 2
