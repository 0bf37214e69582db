"""`celery singleton quorum`: what it prints, changes and returns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest

from celery_singleton_lock import Granted, Held, LeaseRequest, StoreUnavailable
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on, somebody_is_there
from tests.support import until

SECRET = "tr0ub4dor"
TTL = timedelta(minutes=5)


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(password=SECRET)) for _ in range(5)]


@pytest.fixture
def line(nodes: list[RedisServer]) -> Iterator[CommandLine]:
    app = shop_on(nodes[0].url, singleton_lock_url=[node.url for node in nodes])
    line = CommandLine(app, "quorum")
    yield line
    line.parts.store.close()


@pytest.fixture
def begun(line: CommandLine) -> CommandLine:
    [answer] = line.parts.store.acquire([LeaseRequest("k", "a", TTL)])
    assert isinstance(answer, Granted)
    return line


def forget(nodes: list[RedisServer], line: CommandLine) -> None:
    """A majority comes back empty, and somebody has noticed."""
    for node in nodes[:3]:
        node.kill()
        node.restart(keep_data=False)

    def is_refused() -> bool:
        with suppress(StoreUnavailable):
            line.parts.store.now()
            return False
        return bool(line.json("status", code=1)["taking_part"] == 2)

    until(is_refused)


# Status


def test_status_tells_of_each_node_and_that_all_is_well(
    begun: CommandLine, nodes: list[RedisServer]
) -> None:
    result = begun.run("status")
    titles, *rows = result.stdout.splitlines()
    assert result.exit_code == 0
    assert titles.split()[:5] == ["NODE", "STATE", "LAG", "CLOCK", "ROLE"]
    assert [row.split()[1] for row in rows] == ["in"] * 5
    assert all(str(node.port) in row for node, row in zip(nodes, rows, strict=True))
    assert result.stderr == "5 of 5 take part; 3 are needed.\n"
    assert SECRET not in result.output


def test_json_of_a_node_has_these_keys(begun: CommandLine) -> None:
    told = begun.json("status")
    assert (told["taking_part"], told["majority"], told["remarks"]) == (5, 3, [])
    assert [list(node) for node in told["nodes"]] == [[
        "name", "state", "trouble", "lag_seconds", "run_id", "generation", "role",
        "has_append_only_file", "has_snapshots", "may_evict", "clock_offset_seconds",
    ]] * 5  # fmt: skip
    first = told["nodes"][0]
    assert (first["role"], first["has_append_only_file"], first["may_evict"]) == (
        "master",
        False,
        False,
    )
    assert abs(first["clock_offset_seconds"]) < 1
    assert 0 < first["lag_seconds"] < 1


def test_status_tells_who_is_away_and_what_to_look_at(
    begun: CommandLine, nodes: list[RedisServer]
) -> None:
    nodes[1].kill()
    result = begun.run("status")
    assert result.exit_code == 0
    assert [row.split()[1] for row in result.stdout.splitlines()[1:]] == [
        "in",
        "away",
        "in",
        "in",
        "in",
    ]
    assert f"! redis://:***@127.0.0.1:{nodes[1].port}/0: does not take part" in result.stderr


def test_status_ends_with_1_when_nothing_can_be_granted(
    begun: CommandLine, nodes: list[RedisServer]
) -> None:
    for node in nodes[:3]:
        node.kill()
    result = begun.run("status")
    assert result.exit_code == 1
    assert "only 2 of 5 nodes take part, and 3 are needed" in result.stderr


def test_status_of_new_nodes_begins_nothing(line: CommandLine, nodes: list[RedisServer]) -> None:
    told = line.json("status", code=1)
    assert {node["state"] for node in told["nodes"]} == {"new"}
    [remark] = told["remarks"]
    assert "they begin with the first use" in remark
    assert [node.connect().dbsize() for node in nodes] == [0] * 5


def test_single_server_has_no_quorum(valkey: RedisServer) -> None:
    result = CommandLine(shop_on(valkey.url)).run("quorum", "status")
    assert result.exit_code == 2
    assert "a quorum is a list of three or more Redis URLs" in result.stderr


# Accepting


def test_memory_loss_is_accepted_by_a_person_and_audited(
    begun: CommandLine,
    nodes: list[RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget(nodes, begun)
    status = begun.run("status")
    assert "singleton quorum accept-memory-loss" in status.stderr
    somebody_is_there(monkeypatch)
    refused = begun.run("accept-memory-loss", "--reason", "power cut", answer="n\n")
    assert refused.exit_code == 1
    assert "What they forgot may be granted a second time" in refused.stderr
    assert begun.json("status", code=1)["taking_part"] == 2
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.audit"):
        accepted = begun.run("accept-memory-loss", "--reason", "power cut", answer="y\n")
    assert accepted.exit_code == 0, accepted.output
    assert "5 of 5 nodes begin anew" in accepted.stdout
    [line] = [each for each in caplog.messages if each.startswith("memory_loss_accepted")]
    assert "why='power cut'" in line
    assert SECRET not in line
    [answer] = begun.parts.store.acquire([LeaseRequest("k", "b", TTL)])
    assert isinstance(answer, Held)  # two of five remembered it


def test_nothing_is_accepted_while_a_majority_remembers(
    begun: CommandLine, nodes: list[RedisServer]
) -> None:
    nodes[0].kill()
    result = begun.run("accept-memory-loss", "--reason", "x", "--yes")
    assert result.exit_code == 1
    assert "nothing to accept: 4 of 5 nodes take part" in result.stderr


def test_nodes_that_are_away_may_remember(
    begun: CommandLine, nodes: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(nodes, begun)
    nodes[4].kill()
    somebody_is_there(monkeypatch)
    result = begun.run("accept-memory-loss", "--reason", "x", answer="n\n")
    assert "1 do not answer, and may remember: bring them back first" in result.stderr
    nodes[3].kill()
    nodes[2].kill()
    hopeless = begun.run("accept-memory-loss", "--reason", "x", "--yes")
    assert (hopeless.exit_code, "no majority" in hopeless.stderr) == (3, True)


def test_accepting_needs_a_yes_where_nobody_can_be_asked(
    begun: CommandLine, nodes: list[RedisServer]
) -> None:
    forget(nodes, begun)
    result = begun.run("accept-memory-loss", "--reason", "x", answer="y\n")
    assert (result.exit_code, "--yes" in result.stderr) == (2, True)
    told = begun.json("accept-memory-loss", "--reason", "x", "--yes")
    assert len(told["taking_part"]) == 5
