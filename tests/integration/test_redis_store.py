"""What only Redis does: scripts that vanish, failovers, servers that refuse, and several topologies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from celery_singleton_lock import (
    Granted,
    Lease,
    LeaseRequest,
    LeaseStore,
    Park,
    RecordState,
    Release,
    StoreUnavailable,
    open_store,
)
from celery_singleton_lock.core.models import Page
from celery_singleton_lock.leases.redis import links
from celery_singleton_lock.leases.redis.scripts import Command
from celery_singleton_lock.testing.conformance.faults import eventually
from celery_singleton_lock.testing.servers import RedisCluster, RedisServer, SentinelSet, TcpProxy
from celery_singleton_lock.testing.servers.ports import free_port
from tests.end_to_end.beats import until
from tests.support import start_or_skip

LONG = timedelta(minutes=5)
FIELDS = {"owner", "fence", "until", "since", "released", "note", "call"}


def granted(store: LeaseStore, key: str, owner: str = "a", heir: str | None = None) -> Lease:
    [answer] = store.acquire([LeaseRequest(key, owner, LONG, heir=heir)])
    assert isinstance(answer, Granted), answer
    return answer.lease


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[LeaseStore]:
    store = open_store(server.url)
    yield store
    store.close()


def test_scripts_that_were_flushed_are_sent_again(server: RedisServer, store: LeaseStore) -> None:
    lease = granted(store, "k")
    server.connect().script_flush()
    assert store.renew([lease]) == [True]
    server.connect().script_flush()
    before = calls_of(server)
    requests = [LeaseRequest(f"k{n}", "a", LONG) for n in range(700)]
    assert all(isinstance(answer, Granted) for answer in store.acquire(requests))
    assert calls_of(server)["eval"] - before.get("eval", 0) == 1


def test_what_follows_a_release_on_its_way_goes_the_same_way(
    server: RedisServer, store: LeaseStore
) -> None:
    """Another connection may be served before it: then its job would still be held."""
    store.release([Release(granted(store, "k"))])
    client: Any = server.connect()
    connections = len(client.client_list())
    is_released = store.start_release([Release(granted(store, "k"))])
    following = granted(store, "k", "b")
    assert len(client.client_list()) == connections
    assert is_released() == [True]
    # One of another thread does not wait for it, and has its own.
    is_released = store.start_release([Release(following)])
    with ThreadPoolExecutor(1) as other:
        assert other.submit(store.peek, ["k"]).result() is not None
    assert len(client.client_list()) == connections + 1
    assert is_released() == [True]


def test_acquire_on_its_way_goes_where_the_release_before_it_went(
    server: RedisServer, store: LeaseStore
) -> None:
    store.release([Release(granted(store, "k"))])
    lease = granted(store, "k")
    client: Any = server.connect()
    connections = len(client.client_list())
    is_released = store.start_release([Release(lease)])
    answers = store.start_acquire([LeaseRequest("k", "b", LONG)])
    # It was sent: nobody has waited for it yet.
    until(lambda: client.hget("singleton:k", "owner") == "b")
    [answer] = answers()
    assert isinstance(answer, Granted)
    assert is_released() == [True]
    assert len(client.client_list()) == connections


def test_release_on_its_way_whose_script_was_flushed_is_sent_again_first(
    server: RedisServer, store: LeaseStore
) -> None:
    store.release([Release(granted(store, "k"))])
    lease = granted(store, "k")
    client: Any = server.connect()
    client.script_flush()
    is_released = store.start_release([Release(lease)])
    granted(store, "k", "b")
    assert is_released() == [True]


def test_first_release_of_a_connection_waits(server: RedisServer, store: LeaseStore) -> None:
    """The server may not know its script, and would be told behind what follows."""
    lease = granted(store, "k")
    is_released = store.start_release([Release(lease)])
    granted(store, "k", "b")
    assert is_released() == [True]


def test_batch_is_a_script_for_every_two_hundred_keys(server: RedisServer, store: LeaseStore) -> None:
    granted(store, "k")
    before = calls_of(server)
    requests = [LeaseRequest(f"k{n}", "a", LONG) for n in range(450)]
    assert all(isinstance(answer, Granted) for answer in store.acquire(requests))
    after = calls_of(server)
    assert after["evalsha"] - before["evalsha"] == 3
    assert after["time"] - before["time"] == 3


def test_ten_thousand_leases_go_in_one_call(store: LeaseStore) -> None:
    requests = [LeaseRequest(f"k{n}", f"owner {n}", LONG, note={"n": n}) for n in range(10_000)]
    leases = [answer.lease for answer in store.acquire(requests) if isinstance(answer, Granted)]
    assert len(leases) == len(requests)
    assert all(store.renew(leases))
    assert all(store.release([Release(lease, position=n) for n, lease in enumerate(leases)]))


def test_scripts_that_are_flushed_within_a_batch_are_sent_again(
    server: RedisServer, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(store, "k")
    send = links.send

    def flush_after_the_first(connection: Any, commands: Sequence[Command]) -> None:
        before = calls_of(server)["evalsha"]
        send(connection, commands[:1])
        while calls_of(server)["evalsha"] == before:
            time.sleep(0.001)
        server.connect().script_flush()
        send(connection, commands[1:])

    monkeypatch.setattr(links, "send", flush_after_the_first)
    before = calls_of(server)
    requests = [LeaseRequest(f"k{n}", "a", LONG) for n in range(700)]
    answers = store.acquire(requests)
    assert [answer.again for answer in answers if isinstance(answer, Granted)] == [False] * 700
    assert calls_of(server)["eval"] - before.get("eval", 0) == 1


@pytest.mark.parametrize("flavour", ["valkey", "redis"])
@pytest.mark.parametrize("foreign", ["text", "hash"])
def test_foreign_key_in_a_batch_is_named_and_the_others_are_served(
    flavour: Literal["valkey", "redis"], foreign: str
) -> None:
    server = RedisServer(flavour)
    try:
        start_or_skip(server)
        store = open_store(server.url)
        client: Any = server.connect()
        if foreign == "text":
            client.set("singleton:k250", "somebody else's")
        else:
            client.hset("singleton:k250", "fence", "somebody else's")
        requests = [LeaseRequest(f"k{n}", "a", LONG) for n in range(500)]
        with pytest.raises(StoreUnavailable, match="singleton:k250"):
            store.acquire(requests)
        del requests[250]
        records = store.peek([request.key for request in requests])
        assert [record.state for record in records if record] == [RecordState.HELD] * 499
        assert all(client.pttl(f"singleton:{request.key}") > 0 for request in requests)
        # The same owner asks again, for what it can have.
        leases = [answer.lease for answer in store.acquire(requests) if isinstance(answer, Granted)]
        assert len(leases) == 499
        assert all(store.release([Release(lease) for lease in leases]))
        store.close()
    finally:
        server.stop()


def test_call_that_was_interrupted_leaves_no_reply_for_the_next(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = granted(store, "k")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as moment:
        moment.setattr(links, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.peek(["k"])
    assert store.renew([lease]) == [True]


def test_batch_that_was_interrupted_leaves_no_reply_for_the_next(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = granted(store, "k")
    requests = [LeaseRequest(f"k{n}", "a", LONG) for n in range(700)]
    read = links._read
    replies: list[Any] = []

    def interrupted_after_two(connection: Any) -> Any:
        if len(replies) == 2:
            raise KeyboardInterrupt
        replies.append(read(connection))
        return replies[-1]

    with monkeypatch.context() as moment:
        moment.setattr(links, "_read", interrupted_after_two)
        with pytest.raises(KeyboardInterrupt):
            store.acquire(requests)
    assert store.renew([lease]) == [True]
    # Not knowing what came of it, the same owner asks again.
    answers = store.acquire(requests)
    leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
    assert [lease.key for lease in leases] == [request.key for request in requests]
    assert all(store.release([Release(lease) for lease in leases]))


def test_batch_that_was_cut_off_in_the_middle_is_granted_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = links.send
    with TcpProxy(server.port) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}/0")
        granted(store, "k")

        def cut_after_two(connection: Any, commands: Sequence[Command]) -> None:
            monkeypatch.setattr(links, "send", send)
            before = calls_of(server)["evalsha"]
            send(connection, commands[:2])
            while calls_of(server)["evalsha"] < before + 2:
                time.sleep(0.001)
            proxy.cut()
            send(connection, commands[2:])

        monkeypatch.setattr(links, "send", cut_after_two)
        before = calls_of(server)["evalsha"]
        answers = store.acquire([LeaseRequest(f"k{n}", "a", LONG) for n in range(700)])
        # The two that were served were sent again, with the two that were not.
        assert calls_of(server)["evalsha"] == before + 2 + 4
        assert [answer.again for answer in answers if isinstance(answer, Granted)] == [False] * 700
        store.close()


def test_script_is_sent_by_its_digest_once_it_is_known(server: RedisServer, store: LeaseStore) -> None:
    granted(store, "k")
    before = calls_of(server)
    for number in range(5):
        granted(store, f"k{number}")
    after = calls_of(server)
    assert after["evalsha"] - before["evalsha"] == 5
    assert after.get("eval", 0) == before.get("eval", 0)


def test_uncontended_lease_costs_one_command_to_get_and_one_to_give_back(
    server: RedisServer, store: LeaseStore
) -> None:
    store.release([Release(granted(store, "warm"))])
    monitor = server.connect()
    before = int(monitor.info("stats")["total_reads_processed"])
    store.release([Release(granted(store, "k"))])
    after = int(monitor.info("stats")["total_reads_processed"])
    assert after - before == 2 + 1  # and the question itself


def test_record_is_readable_with_the_servers_own_tools(server: RedisServer, store: LeaseStore) -> None:
    [answer] = store.acquire([LeaseRequest("run:7", "host:1:abc", LONG, note={"task": "report"})])
    assert isinstance(answer, Granted)
    shown: Any = server.connect().hgetall("singleton.list.{0}:run:7")
    assert shown["owner"] == "host:1:abc"
    assert shown["note"] == '{"task":"report"}'
    assert int(shown["fence"]) == answer.lease.fence


def test_released_lock_leaves_a_small_key_that_expires(server: RedisServer, store: LeaseStore) -> None:
    [answer] = store.acquire([LeaseRequest("k", "a", LONG, note={"message": "x" * 1000})])
    assert isinstance(answer, Granted)
    store.release([Release(answer.lease, keep_for=timedelta(minutes=2))])
    client: Any = server.connect()
    assert 0 < client.pttl("singleton:k") <= 120_000
    left = client.hgetall("singleton:k")
    assert set(left) == FIELDS
    assert left["note"] == left["call"] == ""


def test_positions_life_is_not_shortened_by_later_holders(
    server: RedisServer, store: LeaseStore
) -> None:
    keep_for = timedelta(days=30)
    store.release([Release(granted(store, "k"), position=1, keep_for=keep_for)])
    client: Any = server.connect()
    lease = granted(store, "k")
    assert client.pttl("singleton:k") > 29 * 86_400_000
    store.renew([lease])
    assert client.pttl("singleton:k") > 29 * 86_400_000


@pytest.mark.parametrize("trouble", ["full memory", "read only", "foreign key", "no permission"])
def test_server_that_refuses_is_unavailable_and_not_contended(
    server: RedisServer, store: LeaseStore, trouble: str
) -> None:
    granted(store, "before")
    client: Any = server.connect()
    match trouble:
        case "full memory":
            client.config_set("maxmemory", "1")
        case "read only":
            client.replicaof("127.0.0.1", 1)
        case "foreign key":
            client.set("singleton:k", "somebody else's text")
        case "no permission":
            client.acl_setuser("default", enabled=True, nopass=True, commands=["-evalsha", "-eval"])
    with pytest.raises(StoreUnavailable):
        store.acquire([LeaseRequest("k", "a", LONG)])


def test_password_reaches_neither_the_name_nor_an_error() -> None:
    with RedisServer(password="open sesame/@:") as server:
        url = server.url.replace("open", "wrong")
        store = open_store(url)
        with pytest.raises(StoreUnavailable) as refused:
            store.now()
        for text in (store.name, str(refused.value), repr(refused.value), repr(store)):
            assert "sesame" not in text
        open_store(server.url).now()


def test_server_without_info_permission_serves_all_the_same(server: RedisServer) -> None:
    client: Any = server.connect()
    client.acl_setuser("default", enabled=True, nopass=True, commands=["-info"])
    store = open_store(server.url)
    store.renew([granted(store, "k")])


def test_sentinel_failover_is_followed_and_noticed() -> None:
    sentinels = SentinelSet()
    try:
        start_or_skip(sentinels)
        store = open_store(sentinels.url, timeout=timedelta(seconds=2))
        store.now()
        lease, incarnation = granted(store, "k"), store.incarnation
        sentinels.kill_master()
        assert eventually(lambda: store.renew([lease])) == [True]
        assert store.incarnation > incarnation
        assert not isinstance(store.acquire([LeaseRequest("k", "b", LONG)])[0], Granted)
        store.release([Release(lease)])
        assert granted(store, "k", "b").fence > lease.fence
    finally:
        sentinels.stop()


def test_cluster_failover_is_followed_and_noticed() -> None:
    cluster = RedisCluster()
    try:
        start_or_skip(cluster)
        store = open_store(cluster.url, timeout=timedelta(seconds=2))
        keys = [f"k{n}" for n in range(40)]
        leases = [granted(store, key) for key in keys]
        fences, incarnation = [lease.fence for lease in leases], store.incarnation
        cluster.kill_master_of("singleton:k0")
        assert eventually(lambda: store.renew(leases)) == [True] * len(keys)
        assert store.incarnation > incarnation
        assert [lease.fence for lease in leases] == fences
        assert all(store.release([Release(lease) for lease in leases]))
    finally:
        cluster.stop()


def test_cluster_slot_that_moves_is_followed() -> None:
    cluster = RedisCluster(replicas_per_master=0)
    try:
        start_or_skip(cluster)
        store = open_store(cluster.url)
        lease = granted(store, "k")
        source = cluster.master_of("singleton:k").connect()
        target_server = next(
            n for n in cluster.nodes if n.port != cluster.master_of("singleton:k").port
        )
        target = target_server.connect()
        move_slot(source, target, "singleton:k", target_server.port, store, lease)
        assert store.renew([lease]) == [True]
    finally:
        cluster.stop()


def test_cluster_batch_over_all_slots_is_one_command_a_slot() -> None:
    cluster = RedisCluster(replicas_per_master=0)
    try:
        start_or_skip(cluster)
        store = open_store(cluster.url)
        keys = [f"k{n}" for n in range(300)] + [f"{{tag}}{n}" for n in range(300)]
        requests = [LeaseRequest(key, f"owner of {key}", LONG) for key in keys]
        store.acquire(requests)  # now every master knows the script
        before = sum(calls_of(node)["evalsha"] for node in cluster.nodes)
        answers = store.acquire(requests)
        sent = sum(calls_of(node)["evalsha"] for node in cluster.nodes) - before
        leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
        assert [(lease.key, lease.owner) for lease in leases] == [(k, f"owner of {k}") for k in keys]
        assert sent <= 300 + 2
        records = store.peek(keys)
        assert [record.owner for record in records if record] == [lease.owner for lease in leases]
        assert all(store.release([Release(lease) for lease in leases]))
    finally:
        cluster.stop()


def test_cluster_batch_is_served_while_its_slot_is_at_both_ends() -> None:
    cluster = RedisCluster(replicas_per_master=0)
    try:
        start_or_skip(cluster)
        store = open_store(cluster.url)
        keys = [f"{{tag}}{n}" for n in range(20)]
        source = cluster.master_of("singleton:{tag}0")
        target = next(node for node in cluster.nodes if node.port != source.port)
        leases = [granted(store, key) for key in keys]
        begin_move(source.connect(), target.connect(), "singleton:{tag}0")
        moved = [f"singleton:{key}" for key in keys[::2]]
        migrate = ("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moved)
        source.connect().execute_command(*migrate)
        assert store.renew(leases) == [True] * len(keys)
        new = store.acquire([LeaseRequest(f"{{tag}}new{n}", "a", LONG) for n in range(5)])
        assert [isinstance(answer, Granted) for answer in new] == [True] * 5
        assert all(store.release([Release(lease) for lease in leases]))
    finally:
        cluster.stop()


def begin_move(source: Any, target: Any, key: str) -> tuple[int, str]:
    """Let the key's slot be on its way; returns it, and the id of where it goes."""
    slot = source.execute_command("CLUSTER", "KEYSLOT", key)
    source_id, target_id = (node.execute_command("CLUSTER", "MYID") for node in (source, target))
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    return slot, target_id


def move_slot(source: Any, target: Any, key: str, port: int, store: LeaseStore, lease: Lease) -> None:
    """Move the key's slot by hand, using the lease at every step of the way."""
    slot, target_id = begin_move(source, target, key)
    assert store.renew([lease]) == [True]
    source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
    assert store.renew([lease]) == [True]  # asked of the new owner, before it owns the slot
    for node in (target, source):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def calls_of(server: RedisServer) -> dict[str, int]:
    client: Any = server.connect()
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}


def test_waiter_is_woken_through_the_server(server: RedisServer, store: LeaseStore) -> None:
    lease = granted(store, "k")
    with store.watch("k") as watch:
        store.acquire([LeaseRequest("k", "b", LONG, waiting=True)])
        store.release([Release(lease)])
        began = time.monotonic()
        assert watch.wait(timedelta(seconds=4))
        assert time.monotonic() - began < 3
        assert not watch.wait(timedelta(seconds=0.1))


def test_release_that_only_an_heir_could_use_is_not_told(store: LeaseStore) -> None:
    releases = store.releases()
    assert releases is not None
    with releases as told:
        for park, heard in ((Park("heir", LONG), None), (None, "k")):
            lease = granted(store, "k", heir="heir")
            store.acquire([LeaseRequest("k", "b", LONG, waiting=True)])
            store.release([Release(lease, park=park)])
            assert told.next(timedelta(seconds=0.3)) == heard


def test_nothing_is_told_of_what_nobody_has_waited_for_lately(
    server: RedisServer, store: LeaseStore
) -> None:
    lease = granted(store, "k")
    store.acquire([LeaseRequest("k", "b", LONG, waiting=True)])
    client: Any = server.connect()
    assert 55e6 < float(client.hget("singleton:k", "awaited")) - time.time() * 1e6 <= 60e6
    client.hset("singleton:k", "awaited", "1")
    releases = store.releases()
    assert releases is not None
    with releases as told:
        store.release([Release(lease)])
        assert told.next(timedelta(seconds=0.2)) is None
    assert not client.hexists("singleton:k", "awaited")


@pytest.mark.parametrize(
    ("maxmemory", "policy", "warns"),
    [("100mb", "allkeys-lru", 1), ("100mb", "noeviction", 0), ("0", "allkeys-lru", 0)],
)
def test_server_that_may_evict_leases_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, maxmemory: str, policy: str, warns: int
) -> None:
    with RedisServer(options={"maxmemory": maxmemory, "maxmemory-policy": policy}) as server:
        store = open_store(server.url)
        for _ in range(3):
            store.now()
        store.close()
        store.now()
    assert sum("store_may_evict" in message for message in caplog.messages) == warns


@pytest.mark.parametrize("prefix", ["singleton", "my-app^1]"])
def test_rights_in_the_docs_are_enough(server: RedisServer, prefix: str) -> None:
    page = (Path(__file__).parents[2] / "docs/stores.md").read_text()
    rule = page.split("ACL SETUSER locks ", 1)[1].split("```", 1)[0].split()
    client: Any = server.connect()
    rights = [each.replace("singleton", prefix) for each in rule]
    client.execute_command("ACL", "SETUSER", "locks", "reset", *rights)
    store = open_store(server.url.replace("redis://", "redis://locks:password@"), prefix=prefix)
    request = LeaseRequest("run:1", "a", timedelta(milliseconds=50), position=1)
    [granted] = store.acquire([request])
    assert isinstance(granted, Granted)
    store.renew([granted.lease])
    with store.watch("key") as watch:
        [held] = store.acquire([LeaseRequest("key", "a", LONG, waiting=True)])
        assert isinstance(held, Granted)
        store.release([Release(held.lease, position=1, outcome="ok", park=Park("heir", LONG))])
        assert watch.wait(timedelta(0)) in (True, False)
    releases = store.releases()
    assert releases is not None
    with releases as told:
        assert told.next(timedelta(seconds=0.1)) is None
    time.sleep(0.06)
    assert store.dismiss(store.expired()) == [True]
    assert len(list(store.scan())) == 2
    store.force_release("key", who="tester", why="to see")
    store.write("book", [Page("a", 0, "1")])
    assert store.read("book").pages
    assert store.meet("book", "a", LONG).revision
    store.close()


@pytest.mark.parametrize("scheme", ["redis", "sentinel", "redis+cluster"])
def test_servers_that_are_away_from_the_start_are_unavailable(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}" + ("/mymaster" if scheme == "sentinel" else "")
    with closing(open_store(url)) as store:
        with pytest.raises(StoreUnavailable):
            store.now()
        with pytest.raises(StoreUnavailable):
            list(store.scan())


@pytest.mark.parametrize(
    "group",
    [
        lambda: SentinelSet(1, flavour="redis", tls=True),
        lambda: RedisCluster(flavour="redis", tls=True),
    ],
    ids=["sentinels://", "rediss+cluster://"],
)
def test_servers_that_speak_only_tls_fail_over_like_all_others(
    group: Callable[[], SentinelSet | RedisCluster],
) -> None:
    with start_or_skip(group()) as servers:
        distrusting = servers.url.partition("?")[0] + "?ssl_cert_reqs=required"
        with closing(open_store(distrusting)) as store, pytest.raises(StoreUnavailable):
            store.now()
        with closing(open_store(servers.url, timeout=timedelta(seconds=4))) as store:
            leases = [granted(store, f"k{number}") for number in range(20)]
            if isinstance(servers, SentinelSet):
                servers.kill_master()
            else:
                servers.kill_master_of("singleton:k0")
            assert eventually(lambda: store.renew(leases)) == [True] * 20
