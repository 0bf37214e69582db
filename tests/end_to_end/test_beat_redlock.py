"""Replicas of `celery beat` on five nodes, while nodes are killed, emptied, stopped and cut off."""

from __future__ import annotations

import time

from celery_singleton_lock.testing.servers import RedisServer, TcpProxy

from .beats import CONFIG, Published, StartBeats, count, until

ON_FIVE = CONFIG.replace('os.environ["LOCK"]', 'os.environ["LOCK"].split()')


def assert_nothing_was_missed(broker: RedisServer) -> None:
    published = Published(broker)
    for entry in "abc":
        published.assert_no_gap(entry)
    assert published.copies() <= 3


def test_nodes_are_killed_and_come_back_empty_one_after_the_other(
    broker: RedisServer, nodes: list[RedisServer], start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, " ".join(node.url for node in nodes), config=ON_FIVE)
    until(lambda: count(broker) >= 9)
    for node in nodes[:3]:
        repairs = "".join(beats.logs).count("quorum_node_repaired")
        node.kill()
        time.sleep(1)
        node.restart(keep_data=False)
        until(lambda: "".join(beats.logs).count("quorum_node_repaired") > repairs)  # noqa: B023
    before = count(broker)
    until(lambda: count(broker) > before + 9)
    assert_nothing_was_missed(broker)
    assert beats.exit_codes() == [None, None, None]


def test_nodes_are_stopped_and_cut_off_until_no_majority_is_left(
    broker: RedisServer, nodes: list[RedisServer], start_beats: StartBeats
) -> None:
    with TcpProxy(nodes[0].port) as proxy:
        urls = [f"redis://127.0.0.1:{proxy.port}/0", *(node.url for node in nodes[1:])]
        beats = start_beats(broker.url, " ".join(urls), config=ON_FIVE)
        until(lambda: count(broker) >= 9)
        nodes[1].pause()
        proxy.blackhole()
        before = count(broker)
        until(lambda: count(broker) > before + 9)  # two of five are bearable
        nodes[2].pause()
        until(lambda: all("beat_trouble_began" in log for log in beats.logs))
        proxy.heal()
        nodes[1].resume()
        nodes[2].resume()
        until(lambda: all("beat_trouble_ended" in log for log in beats.logs))
        before = count(broker)
        until(lambda: count(broker) > before + 9)
        assert_nothing_was_missed(broker)
        assert beats.exit_codes() == [None, None, None]
