"""`celery singleton locks` and `unlock`: what they print, change and return."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.models import Granted, Lease, LeaseRequest, Park, Release
from celery_singleton_lock.recovery.locks import unlock
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on, somebody_is_there
from tests.support import until

TTL = timedelta(seconds=30)
ODD = "task:<script>\x1b[31m🚀"


@pytest.fixture
def line(valkey: RedisServer) -> Iterator[CommandLine]:
    client: Any = valkey.connect()
    client.flushall()
    line = CommandLine(shop_on(valkey.url))
    yield line
    line.parts.store.close()
    client.flushall()
    client.close()


def hold(line: CommandLine, key: str, ttl: timedelta = TTL, **note: Any) -> Lease:
    [answer] = line.parts.store.acquire([LeaseRequest(key, f"owner of {key}"[:200], ttl, note=note)])
    assert isinstance(answer, Granted)
    return answer.lease


def test_list_tells_who_holds_what(line: CommandLine) -> None:
    lease = hold(line, "task:shop.report", task="shop.report", worker="w1@host", run="r-1")
    text = line.ok("locks")
    titles, row = text.splitlines()
    assert titles.split() == ["KEY", "STATE", "HOLDER", "AGE", "LEFT", "OVERDUE", "FENCE", "NOTE"]
    assert row.split()[:3] == ["task:shop.report", "held", "w1@host"]
    assert str(lease.fence) in row
    assert "run=r-1" in row


def test_json_of_a_lock_has_these_keys(line: CommandLine) -> None:
    lease = hold(line, "task:shop.report", worker="w1@host", message={"body": "secret"})
    told = line.json("locks")
    assert told["total"] == 1
    [lock] = told["locks"]
    assert list(lock) == [
        "key", "kind", "state", "holder", "owner", "fence", "since", "age_seconds", "remaining_seconds",
        "overdue_seconds", "takeovers", "heir", "note",
    ]  # fmt: skip
    assert (lock["kind"], lock["state"], lock["fence"]) == ("task", "held", lease.fence)
    assert lock["note"] == {"worker": "w1@host"}, "the message of a run is not shown"
    assert 0 < lock["remaining_seconds"] <= 30


def test_filters_by_prefix_state_and_overdue(line: CommandLine) -> None:
    hold(line, "task:held", expect_within=3600)
    late = hold(line, "run:late", expect_within=0.001)
    parked = hold(line, "task:parked")
    line.parts.store.release([Release(parked, park=Park("heir", TTL))])
    hold(line, "task:expired", timedelta(milliseconds=500))
    free = hold(line, "run:done")
    line.parts.store.release([Release(free, position=3, outcome="succeeded", keep_for=TTL)])

    def keys(*arguments: str) -> set[str]:
        return {lock["key"] for lock in line.json("locks", *arguments)["locks"]}

    until(lambda: keys("--state", "expired") == {"task:expired"})
    assert keys() == {"task:held", "run:late", "task:parked", "task:expired"}
    assert keys("task:") == {"task:held", "task:parked", "task:expired"}
    assert keys("--state", "parked", "--state", "free") == {"task:parked", "run:done"}
    assert keys("--overdue") == {late.key}
    assert keys("nothing:") == set()
    assert "No locks under nothing:" in line.run("locks", "nothing:").stderr


def test_list_is_limited_and_says_so(line: CommandLine) -> None:
    requests = [LeaseRequest(f"task:{number}", "me", TTL) for number in range(2000)]
    line.parts.store.acquire(requests)
    result = line.run("locks", "--limit", "3")
    assert len(result.stdout.splitlines()) == 4
    assert "3 of 2000" in result.stderr
    assert line.json("locks", "--limit", "2")["total"] == 2000


def test_names_cannot_steer_the_terminal(line: CommandLine) -> None:
    hold(line, ODD, worker="\x1b]0;gotcha\x07")
    for arguments in (["locks"], ["unlock", ODD, "--reason", "x", "--yes"]):
        result = line.run(*arguments)
        assert result.exit_code == 0
        assert "\x1b" not in result.output
        assert "🚀" in result.output


def test_unlock_takes_the_lease_and_the_fence_moves(
    line: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    lease = hold(line, "task:stuck", worker="w1@host")
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.audit"):
        text = line.ok("unlock", "task:stuck", "--reason", "its host burned", "--yes")
    assert "Unlocked task:stuck" in text
    assert str(lease.fence) in text
    assert line.parts.store.renew([lease]) == [False], "the holder is told"
    assert hold(line, "task:stuck").fence > lease.fence
    [audit] = [each.getMessage() for each in caplog.records if each.name.endswith("audit")]
    assert "unlocked who=" in audit
    assert "why='its host burned'" in audit


def test_unlock_for_machines(line: CommandLine) -> None:
    lease = hold(line, "task:stuck")
    told = line.json("unlock", "task:stuck", "--reason", "x", "--yes")
    assert told["unlocked"]["fence"] == lease.fence


@pytest.mark.parametrize(("answer", "is_taken"), [("n\n", False), ("y\n", True)])
def test_unlock_asks(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: str, is_taken: bool
) -> None:
    lease = hold(line, "task:stuck", worker="w1@host")
    somebody_is_there(monkeypatch)
    result = line.run("unlock", "task:stuck", "--reason", "x", answer=answer)
    assert "Take task:stuck from w1@host?" in result.stderr
    assert result.exit_code == (0 if is_taken else 1)
    assert line.parts.store.renew([lease]) == [not is_taken]


def test_unlock_needs_a_yes_where_nobody_can_be_asked(line: CommandLine) -> None:
    lease = hold(line, "task:stuck")
    result = line.run("unlock", "task:stuck", "--reason", "x", answer="y\n")
    assert (result.exit_code, "--yes" in result.stderr) == (2, True)
    assert line.parts.store.renew([lease]) == [True]


def test_unlock_needs_a_reason(line: CommandLine) -> None:
    result = line.run("unlock", "task:stuck", "--yes")
    assert (result.exit_code, "--reason" in result.stderr) == (2, True)


def test_unlock_of_what_nobody_holds_says_what_was_meant_perhaps(line: CommandLine) -> None:
    hold(line, "task:shop.report:eu")
    result = line.run("unlock", "shop.report", "--reason", "x", "--yes")
    assert result.exit_code == 1
    assert "did you mean 'task:shop.report:eu'" in result.stderr
    assert line.run("unlock", "zzzzzz", "--reason", "x", "--yes").stderr.count("did you mean") == 0


def test_run_whose_time_ran_out_is_left_to_beat(line: CommandLine) -> None:
    hold(line, "run:dead", timedelta(milliseconds=500))
    until(lambda: line.json("locks", "--state", "expired")["total"])
    result = line.run("unlock", "run:dead", "--reason", "x", "--yes")
    assert result.exit_code == 1
    assert "beat publishes the run again" in result.stderr
    with pytest.raises(ConfigurationError, match="forget the run"):
        unlock(line.parts.store, "run:dead", why="x")
    assert [each.key for each in line.parts.store.expired()] == ["run:dead"]


@pytest.mark.parametrize("arguments", [["locks"], ["unlock", "x", "--reason", "y", "--yes"]])
def test_store_that_is_away_gives_one_line_and_exit_code_3(arguments: list[str]) -> None:
    line = CommandLine(shop_on("redis://:tr0ub4dor@127.0.0.1:1/0"))
    result = line.run(*arguments)
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1
    assert "tr0ub4dor" not in result.output
