"""Beat and workers on five nodes that are killed, emptied, stopped and cut off: no run is lost, no two
executions of a job are at work at once, and fences grow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from celery_singleton_lock.testing.servers import RedisServer, TcpProxy

from .workers import Together, until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASKS = """
    app.conf.singleton_lock_url = {urls!r}
    # An hour, as it is by default: who takes over in time is not the broker.
    app.conf.broker_transport_options = {{"visibility_timeout": 3600}}
    app.conf.singleton_remember_for = 7200
    app.conf.beat_schedule = {{"often": {{"task": "proj.tick", "schedule": 1.0}}}}

    @app.task(base=SingletonTask, overlap="allow")
    def tick():
        note("tick")

    @app.task(base=SingletonTask, unique_on=(), overlap="queue")
    def job(number):
        note("start")
        time.sleep(0.1)
        note("end")

    @app.task(base=SingletonTask, unique_on=())
    def slow():
        note("slow start")
        wait_for("go")
        note("slow end")
"""
TTL_S = 2.0

StartOn = Callable[[Sequence[str]], Together]


@pytest.fixture
def start_on(tmp_path: Path) -> Iterator[StartOn]:
    """Two workers and a beat. Their broker, which is harmed by nobody, is on a server of its own."""
    started: list[Together] = []
    with RedisServer() as notes:

        def start(urls: Sequence[str]) -> Together:
            replicas = Together(tmp_path, notes.url, notes, TASKS.format(urls=list(urls)))
            started.append(replicas)
            replicas.start()
            replicas.start()
            replicas.start_beat()
            until(lambda: replicas.noted("tick"))  # from here on each counts
            return replicas

        yield start
        for each in started:
            each.end()


def logs(replicas: Together) -> str:
    return "".join(replicas.log_of(at).read_text() for at in range(len(replicas.processes)))


def assert_each_ran_once_and_alone(replicas: Together, runs: Sequence[str]) -> None:
    until(lambda: len(replicas.noted("end")) >= len(runs), within=60)
    starts, ends = replicas.noted("start"), replicas.noted("end")
    assert sorted(note.run for note in starts) == sorted(note.run for note in ends) == sorted(runs)
    turns = sorted([*starts, *ends], key=lambda note: note.at)
    assert [note.what for note in turns] == ["start", "end"] * len(runs), "one after the other"
    fences = [note.fence for note in turns if note.what == "start"]
    assert fences == sorted(set(fences))


def assert_no_tick_was_lost_or_doubled(replicas: Together) -> None:
    ticks = replicas.noted("tick")
    assert len({note.run for note in ticks}) == len(ticks)
    lasted = ticks[-1].at - ticks[0].at
    # One a second. What was held up by trouble comes late, and it comes.
    assert len(ticks) >= lasted - 2


def test_runs_go_on_while_nodes_are_killed_and_come_back_empty(
    nodes: list[RedisServer], start_on: StartOn
) -> None:
    replicas = start_on([node.url for node in nodes])
    held_all_the_time = replicas.call("slow")
    until(lambda: replicas.noted("slow start"))
    runs = [replicas.call("job", 0)]
    for number, node in enumerate(nodes[:3]):
        repairs = logs(replicas).count("quorum_node_repaired")
        node.kill()
        runs += [replicas.call("job", each) for each in range(4)]
        until(lambda: len(replicas.noted("end")) > 4 * number + 1)  # noqa: B023 - goes on without it
        node.restart(keep_data=False)
        runs += [replicas.call("job", each) for each in range(4)]
        until(lambda: logs(replicas).count("quorum_node_repaired") > repairs)  # noqa: B023
    assert_each_ran_once_and_alone(replicas, runs)
    # Three of five forgot, one after the other, and none of what a majority knew is forgotten.
    assert len(replicas.noted("slow start")) == 1
    replicas.set("go")
    until(lambda: replicas.noted("slow end", held_all_the_time))
    assert_no_tick_was_lost_or_doubled(replicas)
    assert [process.poll() for process in replicas.processes] == [None] * 3


def test_runs_wait_while_nodes_are_stopped_and_cut_off_until_no_majority_is_left(
    nodes: list[RedisServer], start_on: StartOn
) -> None:
    with TcpProxy(nodes[0].port) as proxy:
        urls = [f"redis://127.0.0.1:{proxy.port}/0", *(node.url for node in nodes[1:])]
        replicas = start_on(urls)
        held_all_the_time = replicas.call("slow")
        until(lambda: replicas.noted("slow start"))
        nodes[1].pause()
        proxy.blackhole()
        runs = [replicas.call("job", each) for each in range(6)]
        until(lambda: len(replicas.noted("end")) == 6)  # two of five are bearable
        nodes[2].pause()
        runs += [replicas.call("job", each) for each in range(6)]
        # For longer than a lease lasts nobody is granted anything, and nobody gives up.
        time.sleep(1.5 * TTL_S)
        assert len(replicas.noted("end")) == 6
        proxy.heal()
        nodes[1].resume()
        nodes[2].resume()
        assert_each_ran_once_and_alone(replicas, runs)
        # Its lease ran out meanwhile. Nobody was granted it, so its holder has it again.
        replicas.set("go")
        until(lambda: replicas.noted("slow end", held_all_the_time))
        assert len(replicas.noted("slow start")) == 1
        before = len(replicas.noted("tick"))
        until(lambda: len(replicas.noted("tick")) > before + 2)
        assert_no_tick_was_lost_or_doubled(replicas)
        assert [process.poll() for process in replicas.processes] == [None] * 3


def test_run_of_a_killed_worker_is_taken_over_while_two_nodes_are_gone(
    nodes: list[RedisServer], start_on: StartOn
) -> None:
    replicas = start_on([node.url for node in nodes])
    run = replicas.call("slow")
    until(lambda: replicas.noted("slow start"))
    nodes[0].kill()
    nodes[1].pause()
    [first] = replicas.noted("slow start")
    holder = next(process for process in replicas.processes[:2] if os.getpgid(first.pid) == process.pid)
    os.killpg(holder.pid, signal.SIGKILL)
    until(lambda: len(replicas.noted("slow start", run)) == 2)
    replicas.set("go")
    until(lambda: replicas.noted("slow end", run))
    [_, second] = replicas.noted("slow start")
    assert second.fence > first.fence
    [end] = replicas.noted("slow end")
    assert end.pid == second.pid
