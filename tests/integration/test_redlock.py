"""A quorum of real servers that are killed, emptied, stopped and cut off."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock import (
    Done,
    Granted,
    Held,
    Lease,
    LeaseLost,
    LeaseRequest,
    Release,
    StoreUnavailable,
    open_store,
)
from celery_singleton_lock.beat.membership import Company
from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.models import Page, Park
from celery_singleton_lock.leases.redis.scripts import Command, Word
from celery_singleton_lock.leases.redlock import RedlockLeaseStore, scripts
from celery_singleton_lock.leases.redlock.facts import remarks_on
from celery_singleton_lock.leases.redlock.repair import Infirmary
from celery_singleton_lock.leases.redlock.rounds import Step
from celery_singleton_lock.leases.redlock.votes import HELD, TAKEN
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy
from tests.support import start_or_skip
from tests.unit import quorum_world as model

LONG = timedelta(seconds=30)
TIMEOUT = timedelta(seconds=1)
PATIENT = timedelta(seconds=4)


@contextmanager
def servers(count: int = 5, **options: Any) -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(start_or_skip(RedisServer(**options))) for _ in range(count)]


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    with servers() as started:
        yield started


def open_quorum(urls: Sequence[str], timeout: timedelta = TIMEOUT) -> RedlockLeaseStore:
    store = open_store(urls, timeout=timeout)
    assert isinstance(store, RedlockLeaseStore)
    return store


@pytest.fixture
def store(nodes: list[RedisServer]) -> Iterator[RedlockLeaseStore]:
    with closing(open_quorum([node.url for node in nodes])) as opened:
        yield opened


def ask(
    store: RedlockLeaseStore, owner: str, key: str = "k", ttl: timedelta = LONG, **more: Any
) -> Any:
    [answer] = store.acquire([LeaseRequest(key, owner, ttl, **more)])
    return answer


def grant(store: RedlockLeaseStore, owner: str, key: str = "k", ttl: timedelta = LONG) -> Lease:
    answer = ask(store, owner, key, ttl)
    assert isinstance(answer, Granted), answer
    return answer.lease


def until(fact: Callable[[], Any], within: float = 20.0) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.02)


def all_take_part(store: RedlockLeaseStore) -> bool:
    """Once the store was used, for who notices a node that forgot also repairs it."""
    with suppress(StoreUnavailable):
        store.now()
    return all(node.takes_part for node in store.node_facts())


def kept_in(node: RedisServer, name: str) -> dict[str, str]:
    client: Any = node.connect()
    return dict(client.hgetall(name))


def is_refused(store: RedlockLeaseStore) -> bool:
    with pytest.raises(StoreUnavailable) as refused:
        ask(store, "b")
    return "accept-memory-loss" in str(refused.value)


# Nodes that die


def test_minority_may_be_gone(nodes: list[RedisServer], store: RedlockLeaseStore) -> None:
    lease = grant(store, "a")
    nodes[0].kill()
    nodes[1].kill()
    assert store.renew([lease]) == [True]
    assert isinstance(ask(store, "b"), Held)
    assert store.release([Release(lease, position=1)]) == [True]
    assert ask(store, "b", position=1) == Done(1)
    assert grant(store, "b").fence > lease.fence


def test_majority_that_is_gone_is_named_and_nothing_is_granted(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    lease = grant(store, "a")
    for node in nodes[:3]:
        node.kill()
    with pytest.raises(StoreUnavailable, match="no majority of its 5 nodes"):
        ask(store, "b")
    with pytest.raises(StoreUnavailable):
        store.release([Release(lease)])
    assert not lease.is_released  # nobody confirmed it: the holder renews, and tries again


def test_emptied_node_is_repaired_with_leases_positions_members_and_pages(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    lease = grant(store, "a", "run:1")
    done = grant(store, "a", "done")
    store.release([Release(done, position=7, outcome="ok")])
    store.meet("beat", "replica", LONG)
    [page] = store.write("beat", [Page("entry", 0, "text")])
    [gone] = store.write("beat", [Page("old", 0, None)])
    nodes[0].kill()
    nodes[0].restart(keep_data=False)
    assert store.renew([lease]) == [True]
    until(lambda: all_take_part(store))
    assert kept_in(nodes[0], "singleton.list.{0}:run:1")["fence"] == str(lease.fence)
    assert kept_in(nodes[0], "singleton:done")["position"] == "7"
    # Two who remember by themselves are gone now: what is left must know it all.
    nodes[1].kill()
    nodes[2].kill()
    assert isinstance(ask(store, "b", "run:1"), Held)
    assert ask(store, "b", "done", position=7) == Done(7, "ok")
    assert store.meet("beat", "other", LONG).members == ("other", "replica")
    assert set(store.read("beat").pages) == {page, gone}


@pytest.mark.parametrize("keep_data", [True, False], ids=["with its data", "empty"])
def test_node_that_was_restarted_is_kept_out_until_it_is_repaired(
    keep_data: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with servers(3, persistent=True) as nodes, closing(open_quorum([n.url for n in nodes])) as store:
        lease = grant(store, "a")
        fences = [lease.fence]
        for node in nodes:
            node.kill()
            node.restart(keep_data=keep_data)
            until(lambda: all_take_part(store))
        assert caplog.text.count("quorum_node_repaired") == 3
        # Every node has lost its memory once, and nothing is lost.
        assert isinstance(ask(store, "b"), Held)
        assert store.release([Release(lease)]) == [True]
        fences.append(grant(store, "b").fence)
        assert fences == sorted(set(fences))


def test_heartbeat_of_an_idle_beat_has_a_node_repaired(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    company = Company(store, "beat", "replica", boottime)
    company.keep()
    nodes[0].kill()
    nodes[0].erase()
    nodes[0].start()

    def takes_part() -> bool:
        company.hurry()
        company.keep()
        return all(node.takes_part for node in store.node_facts())

    until(takes_part)


def test_repair_that_failed_is_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Until it is repaired, one more node that is restarted is a majority that lost its memory.
    refresh, failed = Infirmary._refresh, list[str]()

    def too_slow_once(self: Infirmary, node: Any, channel: Any, under: str) -> str | None:
        if not failed:
            failed.append(node.name)
            raise TimeoutError("timed out")
        return refresh(self, node, channel, under)

    monkeypatch.setattr(Infirmary, "_refresh", too_slow_once)
    with servers(3) as nodes, closing(open_quorum([n.url for n in nodes])) as store:
        lease = grant(store, "a")
        nodes[0].kill()
        nodes[0].restart(keep_data=False)
        assert store.renew([lease]) == [True]
        until(lambda: all_take_part(store))
    assert failed
    assert caplog.text.count("quorum_node_repaired") == 1


def test_majority_that_lost_its_memory_is_refused_until_somebody_accepts_it(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    lease = grant(store, "a")
    told: list[int] = []
    store.on_memory_loss(lambda: told.append(store.incarnation))
    for node in nodes[:3]:
        node.kill()
        node.restart(keep_data=False)
    with closing(open_quorum([node.url for node in nodes])) as newcomer:
        until(lambda: is_refused(store) and is_refused(newcomer))
    taken = store.accept_memory_loss(who="ops", why="all workers are stopped")
    assert len(taken) == 5
    # Two of five remembered it.
    assert isinstance(ask(store, "b"), Held)
    assert store.renew([lease]) == [True]
    assert len(told) == 1
    store.release([Release(lease)])
    assert grant(store, "b").fence > lease.fence


def test_node_that_was_away_when_the_others_began_anew_is_repaired(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    grant(store, "a")
    nodes[4].pause()
    for node in nodes[:4]:
        node.connect().flushall()
    with closing(open_quorum([node.url for node in nodes])) as operator:
        operator.accept_memory_loss(who="ops", why="to see")
        lease = grant(operator, "b")
        nodes[4].resume()
        until(lambda: all_take_part(operator))
        until(lambda: kept_in(nodes[4], "singleton:k").get("fence") == str(lease.fence))
        assert isinstance(ask(store, "a"), Held)


def test_first_use_needs_every_node(nodes: list[RedisServer], store: RedlockLeaseStore) -> None:
    nodes[4].kill()
    with pytest.raises(StoreUnavailable):
        ask(store, "a")
    nodes[4].restart()
    grant(store, "a")


def test_rights_in_the_docs_are_enough(nodes: list[RedisServer]) -> None:
    docs = Path(__file__).parents[2] / "docs"
    rules = (
        (docs / "stores.md").read_text().split("ACL SETUSER locks ", 1)[1].split("```", 1)[0].split()
    )
    rules += (docs / "redlock.md").read_text().split("these: `", 1)[1].split("`", 1)[0].split()
    for node in nodes:
        client: Any = node.connect()
        client.execute_command("ACL", "SETUSER", "locks", "reset", *rules)
    urls = [node.url.replace("redis://", "redis://locks:password@") for node in nodes]
    with closing(open_quorum(urls)) as store:
        lease = grant(store, "a", "run:1", timedelta(milliseconds=300))
        assert store.renew([lease]) == [True]
        store.release([Release(grant(store, "a"), position=1, park=Park("heir", LONG))])
        time.sleep(0.35)
        assert store.dismiss(store.expired()) == [True]
        assert len(list(store.scan())) == 2
        store.force_release("k", who="tester", why="to see")
        store.write("book", [Page("a", 0, "1"), Page("b", 0, None)])
        assert store.read("book").pages
        assert store.meet("book", "a", LONG).revision
        nodes[0].connect().flushall()
        assert isinstance(ask(store, "b", "other"), Granted)
        until(lambda: all_take_part(store))


# Nodes with TLS and passwords


def test_nodes_with_tls_and_passwords_are_like_all_others() -> None:
    password = "tr0ub4dor & 3"
    with servers(flavour="redis", tls=True, password=password) as nodes:
        urls = [node.url for node in nodes]
        assert all(url.startswith("rediss://:") for url in urls)
        with closing(open_quorum(urls, PATIENT)) as store:
            lease = grant(store, "a")
            # So many that an answer comes in several records of TLS.
            requests = [LeaseRequest(f"batch:{number}", "a" * 200, LONG) for number in range(1000)]
            answers = [each for each in store.acquire(requests) if isinstance(each, Granted)]
            assert len(answers) == 1000
            records = store.peek([request.key for request in requests])
            assert {record.owner for record in records if record} == {"a" * 200}
            assert store.release([Release(each.lease) for each in answers]) == [True] * 1000
            nodes[0].kill()
            assert store.renew([lease]) == [True]
            nodes[0].restart(keep_data=False)
            until(lambda: all_take_part(store))
            assert kept_in(nodes[0], "singleton:k")["fence"] == str(lease.fence)
        wrong = [url.replace("tr0ub4dor", "wrong") for url in urls]
        with closing(open_quorum(wrong, PATIENT)) as store, pytest.raises(StoreUnavailable) as refused:
            ask(store, "a")
        assert "AuthenticationError" in str(refused.value)
        assert "wrong" not in str(refused.value)
        others = [url.partition("ssl_ca_certs")[2] for url in urls[1:] + urls[:1]]
        distrusted = [
            url.partition("ssl_ca_certs")[0] + "ssl_ca_certs" + other
            for url, other in zip(urls, others, strict=True)
        ]
        with (
            closing(open_quorum(distrusted, PATIENT)) as store,
            pytest.raises(StoreUnavailable) as refused,
        ):
            ask(store, "a")
        assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value)


# Nodes that are slow, or cut off


def test_stopped_node_slows_nobody(nodes: list[RedisServer]) -> None:
    with closing(open_quorum([node.url for node in nodes], PATIENT)) as store:
        store.now()
        nodes[2].pause()
        began = time.monotonic()
        for number in range(50):
            store.release([Release(grant(store, "a", f"k{number}"))])
        # One node's timeout is 1 s. Waiting for it in each of a hundred calls would be 100 s.
        assert time.monotonic() - began < 20
        nodes[2].resume()
        until(lambda: all_take_part(store))
        assert isinstance(ask(store, "b", "other"), Granted)


def test_stopped_node_costs_a_call_next_to_nothing(nodes: list[RedisServer]) -> None:
    patient = timedelta(seconds=40)  # ten of them for a node
    with closing(open_quorum([node.url for node in nodes], patient)) as store:
        store.now()
        nodes[2].pause()
        began = time.monotonic()
        grant(store, "a")
        assert time.monotonic() - began < 5
        nodes[2].resume()


def test_node_that_was_away_when_it_was_granted_learns_of_it_when_it_is_renewed(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    store.now()
    nodes[0].pause()
    lease = grant(store, "a", "run:1")
    nodes[0].resume()
    until(lambda: all_take_part(store))
    client: Any = nodes[0].connect()
    client.delete("singleton.list.{0}:run:1")  # what it was sent while it was stopped

    def knows_it() -> bool:
        assert store.renew([lease]) == [True]
        return kept_in(nodes[0], "singleton.list.{0}:run:1").get("fence") == str(lease.fence)

    until(knows_it)


def test_late_release_is_not_written_by_a_node_that_missed_the_next_grant(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    lease = grant(store, "a", ttl=timedelta(milliseconds=500))
    nodes[4].pause()
    with closing(open_quorum([node.url for node in nodes])) as other:
        until(lambda: isinstance(ask(other, "b"), Granted))
    nodes[4].resume()
    until(lambda: all_take_part(store))
    client: Any = nodes[4].connect()
    client.hset("singleton:k", mapping={"owner": "a", "fence": lease.fence, "until": 1, "pending": ""})
    assert store.release([Release(lease, position=1)]) == [False]
    assert "position" not in kept_in(nodes[4], "singleton:k")
    assert isinstance(ask(store, "c", position=1), Held)


@pytest.fixture
def proxies(nodes: list[RedisServer]) -> Iterator[list[TcpProxy]]:
    started = [TcpProxy(node.port).start() for node in nodes]
    yield started
    for proxy in started:
        proxy.stop()


@pytest.fixture
def cut_off(proxies: list[TcpProxy]) -> Iterator[RedlockLeaseStore]:
    with closing(open_quorum([f"redis://127.0.0.1:{proxy.port}" for proxy in proxies])) as opened:
        yield opened


@pytest.mark.parametrize("fault", ["blackhole", "refuse"])
def test_client_cut_off_from_a_minority_goes_on(
    cut_off: RedlockLeaseStore, store: RedlockLeaseStore, proxies: list[TcpProxy], fault: str
) -> None:
    lease = grant(cut_off, "a")
    for proxy in proxies[:2]:
        getattr(proxy, fault)()
        proxy.cut()
    assert cut_off.renew([lease]) == [True]
    assert isinstance(ask(store, "b"), Held)
    assert cut_off.release([Release(lease)]) == [True]
    assert grant(store, "b").fence > lease.fence


@pytest.mark.parametrize("how_many", [3, 5], ids=["a majority", "every node"])
def test_client_cut_off_from_too_many_loses_its_lease_and_others_are_let_in(
    cut_off: RedlockLeaseStore,
    store: RedlockLeaseStore,
    proxies: list[TcpProxy],
    how_many: int,
) -> None:
    lease = grant(cut_off, "a", ttl=timedelta(seconds=2))
    for proxy in proxies[:how_many]:
        proxy.blackhole()
    with pytest.raises(StoreUnavailable):
        cut_off.renew([lease])
    assert isinstance(ask(store, "b"), Held)  # the others see all nodes, and the lease lasts
    until(lambda: isinstance(ask(store, "b"), Granted))
    with pytest.raises(LeaseLost):
        lease.ensure_held()
    for proxy in proxies:
        proxy.heal()
    until(lambda: all_take_part(cut_off))
    assert cut_off.release([Release(lease, position=1)]) == [False]
    assert isinstance(ask(cut_off, "c", position=1), Held)


def test_partition_that_heals_in_time_costs_nothing(
    cut_off: RedlockLeaseStore, proxies: list[TcpProxy]
) -> None:
    lease = grant(cut_off, "a")
    for proxy in proxies:
        proxy.blackhole()
    with pytest.raises(StoreUnavailable):
        cut_off.renew([lease])
    for proxy in proxies:
        proxy.heal()
    until(lambda: all_take_part(cut_off))
    assert cut_off.renew([lease]) == [True]


# Facts for people


def test_facts_tell_which_nodes_answer_and_how_they_are_set_up(
    nodes: list[RedisServer], store: RedlockLeaseStore
) -> None:
    store.now()
    facts = store.node_facts()
    assert remarks_on(facts) == []
    assert all(each.answers and each.takes_part and each.role == "master" for each in facts)
    assert len({each.run_id for each in facts}) == 5
    offsets = [each.clock_offset for each in facts if each.clock_offset is not None]
    assert len(offsets) == 5
    assert max(map(abs, offsets)) < timedelta(seconds=1)
    assert [each.has_append_only_file for each in facts] == [False] * 5
    nodes[3].kill()
    [*_, away, _] = store.node_facts()
    assert not away.answers
    assert any("does not take part" in remark for remark in remarks_on(store.node_facts()))


def test_even_number_of_nodes_and_one_server_twice_are_pointed_out(nodes: list[RedisServer]) -> None:
    urls = [node.url for node in nodes[:3]]
    with closing(open_quorum([*urls, urls[0].replace("/0", "/1")])) as store:
        store.now()
        remarks = "\n".join(remarks_on(store.node_facts()))
    assert "4 nodes bear the loss of 1, as 3 do" in remarks
    assert "one server, which has 2 votes" in remarks


def test_replica_and_evicting_server_are_pointed_out(nodes: list[RedisServer]) -> None:
    client: Any = nodes[0].connect()
    client.replicaof("127.0.0.1", nodes[1].port)
    policy: Any = nodes[2].connect()
    policy.config_set("maxmemory", "100mb")
    policy.config_set("maxmemory-policy", "allkeys-lru")
    with closing(open_quorum([node.url for node in nodes])) as store:
        remarks = "\n".join(remarks_on(store.node_facts()))
    assert f"{nodes[0].port}/0: is a replica" in remarks
    assert f"{nodes[2].port}/0: may throw leases away" in remarks


def test_repaired_node_lets_nobody_in_while_one_of_two_may_hold(nodes: list[RedisServer]) -> None:
    """One has the newer fence, perhaps of a few nodes only; the other perhaps had a majority."""
    real = RealNode(nodes[0])
    older, newer = real.now(), real.now() + 5
    real.merge(owner="a", fence=older, remaining=400_000)
    real.merge(owner="b", fence=newer, remaining=200_000)
    for owner, fence in (("a", older), ("b", newer)):
        real.handle(Step.RELEASE, model.Ask(owner, owner, fence, is_held=False), 0, 0)
        real.handle(Step.WITHDRAW, model.Ask(owner, owner, fence), 0, 0)
    asker = model.Ask("c", "c")
    kind, remaining, *_, counter = real.handle(Step.PROPOSE, asker, 0, 0)
    assert (kind, counter) == (HELD, newer)
    assert 200_000 < remaining <= 400_000
    time.sleep(0.42)
    assert real.handle(Step.PROPOSE, asker, 0, 0)[0] == TAKEN


# The model of a node, which the simulator uses, and the scripts


class RealNode:
    """The scripts, called as the model's methods are."""

    INCARNATION = "of the test"

    def __init__(self, server: RedisServer) -> None:
        self._client: Any = server.connect()
        self._client.set("quorum", self.INCARNATION)

    def now(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def handle(self, step: Step, ask: model.Ask, attempt: int, fence: int) -> Any:
        script, row = self._row(step, ask, attempt, fence)
        command = Command(script, [b"k"], [row], ("quorum", self.INCARNATION))
        words = [str(word) for word in row]
        told = self._client.eval(
            command.script.source.decode(), 1, "k", *words, "quorum", self.INCARNATION
        )
        values = json.loads(f"[{told}]")
        return tuple(values) if step is Step.PROPOSE else values[0]

    def merge(self, owner: str, fence: int, remaining: int) -> None:
        record = ["owner", owner, "fence", str(fence), "until", str(self.now() + remaining)]
        record += ["claim", f"{owner} 0", "call", owner]
        row = ("record", json.dumps(record), self.now(), 60_000)
        source = scripts.MERGE.source.decode()
        assert self._client.eval(source, 1, "k", *row, "quorum", self.INCARNATION) == "1"

    def _row(
        self, step: Step, ask: model.Ask, attempt: int, fence: int
    ) -> tuple[Any, tuple[Word, ...]]:
        position = "" if ask.position is None else ask.position
        kept = 86_400_000
        rows: dict[Step, tuple[Any, tuple[Word, ...]]] = {
            Step.PROPOSE: (
                scripts.PROPOSE,
                (
                    *(ask.owner, model.TTL, position, "", "", "", ""),
                    *(ask.call, attempt, fence, model.PENDING, kept),
                ),
            ),
            Step.CONFIRM: (scripts.CONFIRM, (ask.owner, fence, model.TTL, "", ask.call, attempt)),
            Step.WITHDRAW: (scripts.WITHDRAW, (ask.owner, ask.call, attempt, "")),
            Step.RENEW: (scripts.RENEW, (ask.owner, ask.fence, model.TTL, "", kept)),
            Step.RESTORE: (scripts.RESTORE, (ask.owner, ask.fence, model.TTL, "", "", kept)),
            Step.RELEASE: (
                scripts.RELEASE,
                (
                    *(ask.owner, ask.fence, int(ask.is_held), position, ""),
                    *(3_600_000, "", "", 0, "", "singleton:"),
                ),
            ),
        }
        return rows[step]


class ModelOnRealTime(model.Node):
    def __init__(self, world: model.World, real: RealNode) -> None:
        super().__init__(world)
        self._real = real

    def now(self) -> int:
        return self._real.now()


@pytest.mark.parametrize("seed", range(30))
def test_scripts_do_what_the_model_of_the_simulator_does(valkey: RedisServer, seed: int) -> None:
    client: Any = valkey.connect()
    found: list[str] = []
    # The two are asked one after the other, and times may run out in between. Rules that differ do so
    # again.
    for _ in range(4):
        client.flushall()
        disagreement = first_disagreement(RealNode(valkey), random.Random(seed))
        if not disagreement:
            return
        found.append(disagreement)
    pytest.fail("\n".join(found))


def first_disagreement(real: RealNode, chance: random.Random) -> str:
    modelled = ModelOnRealTime(model.World(0), real)
    fences = [real.now()]
    for _ in range(40):
        step = chance.choice([Step.PROPOSE, Step.PROPOSE, *list(Step)[1:6]])
        owner = chance.choice("ab")
        asked = model.Ask(
            owner,
            f"{owner}{chance.randrange(2)}",
            fence=chance.choice(fences),
            is_held=chance.random() < 0.5,
            position=chance.choice([None, None, 1, 2]) if step is not Step.PROPOSE else None,
        )
        attempt, fence = chance.randrange(2), chance.choice([*fences, 0, real.now() + 1000])
        expected = getattr(modelled, step.value)(asked, attempt, fence)
        told = real.handle(step, asked, attempt, fence)
        if step is Step.PROPOSE:
            expected = (expected[0], int(expected[3]), expected[4])
            fences.append(max(told[1], told[4]) + 1 if told[0] == TAKEN else max(told[4], fences[0]))
            told = (told[0], told[3], told[4])
        if told != expected and step is not Step.WITHDRAW:
            return f"{step} {asked}: {told}, and the model says {expected}"
    return ""
