"""What a lease over five nodes costs: against the floor of one node, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from redis import Redis

from celery_singleton_lock import open_store
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy

from . import promises
from .chapters import Chapter, NotMeasured, Pace
from .leases import (
    BATCH,
    DISTANCE_S,
    EFFORTS,
    BareLocks,
    Effort,
    acquire_and_release,
    batch_subjects,
    move_to_another_core,
    promised_of_batches,
)
from .measure import Answer, Contest, Question, Subject, promised

NODES = 5


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield f"acquire + release of one lease, over {NODES} nodes", one_lease(effort)
    yield f"{BATCH:,} leases in one call, over {NODES} nodes; times are of one lease", batches(effort)


def one_lease(effort: Effort) -> Iterator[Answer]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
        quorum = stack.enter_context(closing(open_store([server.url for server in servers])))
        single = stack.enter_context(closing(open_store(servers[0].url, prefix="single")))
        bare = BareLocks(stack.enter_context(Redis.from_url(servers[0].url)))
        subjects = {
            "quorum": Subject(lambda: acquire_and_release(quorum, ["job"]), calls=20),
            "single": Subject(lambda: acquire_and_release(single, ["job"]), calls=20),
            "bare": Subject(lambda: bare.lock_and_unlock("bare"), calls=20),
        }
        questions = [
            promised(promises.QUORUM_LEASE, "quorum", "bare"),
            Question("to ours on one", "quorum", "single"),
        ]
        yield from Contest(subjects, questions, effort.rounds // 2).decide()


def batches(effort: Effort) -> Iterator[Answer | NotMeasured]:
    """Each node as far away as the server of the other batches, and on this host."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
        proxies = [stack.enter_context(TcpProxy(server.port)) for server in servers]
        for proxy in proxies:
            proxy.delay(DISTANCE_S)
        urls = [f"redis://127.0.0.1:{proxy.port}/0" for proxy in proxies]
        far = stack.enter_context(closing(open_store(urls)))
        questions = promised_of_batches(promises.QUORUM_AFAR, promises.QUORUM_AFAR_BOTH)
        yield from Contest(batch_subjects(far, 10), questions, effort.batch_rounds).decide()
        near = stack.enter_context(closing(open_store([server.url for server in servers])))
        # No promise: client and nodes take turns here, so nobody ever waits for a round trip.
        questions = [
            Question("same host, one core for all: acquire", "all", "each"),
            Question("same host, one core for all: with release", "both of all", "both of each"),
        ]
        yield from Contest(batch_subjects(near, 100), questions, effort.batch_rounds).decide()
        if all(move_to_another_core(server) for server in servers):
            questions = promised_of_batches(promises.QUORUM_NEAR, promises.QUORUM_NEAR_BOTH)
            yield from Contest(batch_subjects(near, 100), questions, effort.batch_rounds).decide()
        else:
            yield NotMeasured(promises.QUORUM_NEAR.name, "there is one core, or no way to choose it")
