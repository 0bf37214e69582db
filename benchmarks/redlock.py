"""What a lease over five nodes costs: against the floor of one node, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from redis import Redis

from celery_singleton_lock import open_store
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy

from .leases import (
    BATCH,
    DISTANCE_S,
    BareLocks,
    Chapter,
    Effort,
    NotMeasured,
    acquire_and_release,
    batch_questions,
    batch_subjects,
    move_to_another_core,
)
from .measure import Answer, Contest, Question, Subject

NODES = 5


def chapters(effort: Effort) -> Iterator[Chapter]:
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
            Question("to bare SET NX and EVALSHA on one", "quorum", "bare", at_most=5),
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
        questions = batch_questions(f"{DISTANCE_S * 1_000:g} ms away", at_most=0.1)
        yield from Contest(batch_subjects(far, 10), questions, effort.batch_rounds).decide()
        near = stack.enter_context(closing(open_store([server.url for server in servers])))
        # No promise: client and nodes take turns here, so nobody ever waits for a round trip.
        questions = batch_questions("same host, one core for all")
        yield from Contest(batch_subjects(near, 100), questions, effort.batch_rounds).decide()
        where = "same host, a core for the nodes"
        if all(move_to_another_core(server) for server in servers):
            questions = batch_questions(where, at_most=0.1)
            yield from Contest(batch_subjects(near, 100), questions, effort.batch_rounds).decide()
        else:
            yield NotMeasured(where, "there is one core, or no way to choose it")
