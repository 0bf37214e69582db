"""Checks of the lease store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.leases.opening import scheme_of
from celery_singleton_lock.leases.redis.facts import ServerState
from celery_singleton_lock.leases.redlock.facts import remarks_on
from celery_singleton_lock.leases.redlock.store import RedlockLeaseStore

from .findings import NotApplicable, Trouble, check, problem, some, warning
from .patient import Patient

CLOCKS_APART: Final = timedelta(seconds=2)
REPLICA_LAG: Final = timedelta(seconds=2)
FULL: Final = 0.9


@check("store-answers")
def store_answers(patient: Patient) -> Iterator[Trouble]:
    """The lease store answers."""
    try:
        _ = patient.store_clock
    except StoreUnavailable as error:
        yield problem(
            f"{error}. Beat publishes nothing, and tasks wait",
            "start the server, or correct singleton_lock_url; replicas go on by themselves when it is "
            "back",
        )


@check("store-latency")
def store_is_quick(patient: Patient) -> Iterator[Trouble]:
    """The lease store answers far within its timeout."""
    took, timeout = patient.store_clock.took, patient.settings.store_timeout
    if took > timeout / 4:
        yield warning(
            f"the lease store took {took.total_seconds() * 1000:.0f} ms to tell the time, at best, and "
            f"is given up after {timeout.total_seconds() * 1000:.0f} ms",
            "bring it nearer, or raise singleton_slot_ttl (the timeout is a third of it, at most 1 s)",
        )


@check("store-clock")
def clocks_agree(patient: Patient) -> Iterator[Trouble]:
    """This host's clock agrees with the store's."""
    offset = patient.store_clock.offset
    if abs(offset) > CLOCKS_APART:
        ahead = "ahead of" if offset > timedelta(0) else "behind"
        yield warning(
            f"the clock of the lease store is {abs(offset.total_seconds()):.1f} s {ahead} this host's. "
            "Slots and leases go by the store's; but countdowns, ETAs and expiry of tasks go by the "
            "clock of each host",
            "run NTP (chrony, systemd-timesyncd) on all hosts",
        )


@check("store-one-host")
def store_is_seen_by_all_hosts(patient: Patient) -> Iterator[Trouble]:
    """The lease store is seen by all hosts."""
    url = patient.settings.lock_url
    scheme = scheme_of(url) if isinstance(url, str) else ""
    if scheme == "memory":
        yield problem(
            "the lease store is the memory of one process: no other process sees its locks",
            "set singleton_lock_url to Redis or to a database; memory:// is for tests",
        )
    elif scheme.startswith("sqlite") or scheme in ("unix", "redis+socket"):
        hosts = hosts_of(patient)
        if len(hosts) > 1:
            yield problem(
                f"the lease store is a file of one host, and replicas run on several: {some(hosts)}",
                "use a server that all reach: Redis, PostgreSQL, MariaDB",
            )
    else:
        raise NotApplicable("it is a server")


@check("store-eviction")
def leases_are_not_evicted(patient: Patient) -> Iterator[Trouble]:
    """The store throws no lease away."""
    for server in patient.store_servers:
        yield from evicting(server, "leases", "two workers then hold one lock")


@check("store-persistence")
def store_survives_a_restart(patient: Patient) -> Iterator[Trouble]:
    """The store remembers after a restart."""
    for server in patient.store_servers:
        yield from forgetting(
            server, "what was done, what was added to the schedule, and who holds what"
        )


@check("store-memory")
def store_has_memory_left(patient: Patient) -> Iterator[Trouble]:
    """The store has memory left."""
    for server in patient.store_servers:
        yield from filling(server)


@check("store-replication")
def replicas_of_the_store_follow(patient: Patient) -> Iterator[Trouble]:
    """The replicas of the store follow it closely."""
    servers = patient.store_servers
    url = patient.settings.lock_url
    for server in servers:
        if server.role != "master":
            yield problem(
                f"{server.name} is a replica: it takes no writes, and beat and workers wait",
                "name the master, or the Sentinels that know it",
            )
        if isinstance(url, str) and scheme_of(url).startswith("sentinel") and not server.replicas:
            yield warning(
                f"the master behind {server.name} has no replica: Sentinel has nobody to fail over to",
                "start one or two replicas",
            )
        for replica in server.replicas:
            if not replica.is_online or replica.lag > REPLICA_LAG:
                state = (
                    f"{replica.lag.total_seconds():.0f} s behind" if replica.is_online else "not online"
                )
                yield warning(
                    f"replica {replica.name} of {server.name} is {state}: after a failover to it, what "
                    "was granted since is forgotten, and put back only by holders that live",
                    "see what holds it up: its disk, its network, its memory",
                )


@check("store-quorum")
def quorum_is_whole(patient: Patient) -> Iterator[Trouble]:
    """All nodes of the quorum take part, and are independent."""
    store = patient.store
    if not isinstance(store, RedlockLeaseStore):
        raise NotApplicable("the lease store is no quorum (Redlock)")
    facts = store.node_facts()
    majority = len(facts) // 2 + 1
    is_short = sum(each.takes_part for each in facts) < majority
    for remark in remarks_on(facts):
        tell = problem if is_short else warning
        yield tell(remark, "see `celery -A app singleton quorum`, and docs/redlock.md")


def evicting(server: ServerState, what: str, harm: str) -> Iterator[Trouble]:
    """For the store, and for a broker that is Redis."""
    if server.may_evict:
        lost = f" It has thrown {server.evicted_keys} keys away already." if server.evicted_keys else ""
        yield problem(
            f"{server.name} throws keys away when its memory is full (maxmemory-policy "
            f"{server.policy}), and {what} with them: {harm}.{lost}",
            "CONFIG SET maxmemory-policy noeviction, also in redis.conf; keep caches on another server",
        )


def forgetting(server: ServerState, what: str) -> Iterator[Trouble]:
    """For the store, and for a broker that is Redis."""
    if server.has_append_only_file:
        return
    if server.has_snapshots is False:
        yield warning(
            f"{server.name} writes nothing to disk: a restart forgets {what}",
            "CONFIG SET appendonly yes, also in redis.conf",
        )
    elif server.has_snapshots:
        yield warning(
            f"{server.name} writes snapshots only: a restart forgets what came after the last one, of "
            f"{what}",
            "CONFIG SET appendonly yes, also in redis.conf",
        )


def filling(server: ServerState) -> Iterator[Trouble]:
    if server.max_memory and server.used_memory > FULL * server.max_memory:
        share = server.used_memory / server.max_memory
        yield warning(
            f"{server.name} uses {share:.0%} of its maxmemory: when it is full it refuses writes, and "
            "beat and workers wait",
            "raise maxmemory, or see what fills it: old results, long queues",
        )


def hosts_of(patient: Patient) -> list[str]:
    """Hosts on which beats and workers run, as far as they are seen."""
    hosts = {member.partition(":")[0] for member in patient.members}
    try:
        hosts |= {name.rpartition("@")[2] for name in patient.workers}
    except Exception:  # noqa: BLE001 - told by the checks of the broker
        return sorted(hosts)
    return sorted(hosts)
