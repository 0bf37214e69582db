"""Claims and transactions: of a run's effects one execution's stay, and a stale holder's never do."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_singleton_lock import ConfigurationError, Lease, LeaseLost, LeaseRequest
from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.claims import Claim, Claims, Finished, Stale, Taken
from celery_singleton_lock.testing.servers import PostgresServer
from celery_singleton_lock.worker.current_run import Run
from celery_singleton_lock.worker.effects import Effects
from celery_singleton_lock.worker.run import Ask, Leases

from .ledgers import DATABASES, ready_ledger, url_of


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "bills"
    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(sa.String(64))
    by: Mapped[str] = mapped_column(sa.String(64))


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    ledger = ready_ledger(url_of(request.param, request))
    with ledger.database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    yield ledger
    with ledger.database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
    ledger.close()


@pytest.fixture
def engine(ledger: Ledger) -> Iterator[sa.Engine]:
    """The user's own, as SQLAlchemy makes it."""
    engine = sa.create_engine(ledger.database.url)
    yield engine
    engine.dispose()


def execution(
    ledger: Ledger, run: str, fence: int, *, owner: str = "", job: str | None = None, ttl: float = 60
) -> Run:
    """As the body of a task sees it, with leases that it takes to be its own."""
    owner = owner or f"{run}:{fence}"
    ask = Ask(
        run=run,
        owner=owner,
        position=1,
        ttl=timedelta(seconds=60),
        run_key=f"run:{run}",
        task_key=job,
    )
    deadline = boottime() + ttl

    def lease(key: str) -> Lease:
        return Lease(LeaseRequest(key, owner, ask.ttl), fence, deadline)

    leases = Leases(lease(ask.run_key), None if job is None else lease(job))
    return Run(id=run, task="shop.bill", leases=leases, effects=Effects(ledger, ask))


def bill(engine: sa.Engine, run: Run, by: str = "") -> None:
    with Session(engine) as session, run.transaction(session):
        session.add(Bill(run=run.id, by=by))


def bills(engine: sa.Engine) -> list[tuple[str, str]]:
    with Session(engine) as session:
        return [(each.run, each.by) for each in session.scalars(sa.select(Bill).order_by(Bill.id))]


def claim_of(run: str, fence: int, owner: str = "", position: int = 1) -> Claim:
    return Claim(key=f"run:{run}", owner=owner or f"{run}:{fence}", fence=fence, position=position)


# Claims


def test_a_claim_is_the_one_with_the_largest_fence(ledger: Ledger) -> None:
    claims = Claims(ledger)
    assert claims.take(claim_of("r", 10)) == Taken()
    assert claims.take(claim_of("r", 10)) == Taken(), "a lost reply"
    assert claims.take(claim_of("r", 20)) == Taken()
    assert claims.take(claim_of("r", 10)) == Stale("r:20", 20)
    assert claims.take(claim_of("r", 30, position=0)) == Stale("r:20", 20), "an earlier attempt"
    assert claims.take(claim_of("other", 1)) == Taken()


def test_a_finished_claim_is_nobodys_any_more(ledger: Ledger) -> None:
    claims = Claims(ledger)
    assert ledger.write(lambda c: claims.finish(c, claim_of("r", 10), '{"rows": 3}'))
    for fence in (10, 20):
        assert claims.take(claim_of("r", fence)) == Finished({"rows": 3})
        assert not ledger.write(lambda c, f=fence: claims.finish(c, claim_of("r", f, "b"), "null"))  # type: ignore[misc]


def test_of_many_who_claim_at_once_the_largest_fence_has_it(ledger: Ledger) -> None:
    claims, answers = Claims(ledger), {}
    barrier = threading.Barrier(6)

    def claim(fence: int) -> None:
        barrier.wait()
        answers[fence] = claims.take(claim_of("r", fence))

    threads = [threading.Thread(target=claim, args=(fence,)) for fence in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[6] == Taken()
    assert claims.take(claim_of("r", 5)) == Stale("r:6", 6)


# Transactions


def test_rows_and_the_end_of_the_run_are_committed_together(ledger: Ledger, engine: sa.Engine) -> None:
    run = execution(ledger, "r", 10)
    with Session(engine) as session, run.transaction(session, result={"bills": 1}):
        session.add(Bill(run="r", by="a"))
        assert bills(engine) == []
    assert bills(engine) == [("r", "a")]
    assert run.is_committed
    assert Claims(ledger).take(claim_of("r", 20)) == Finished({"bills": 1})


def test_an_error_in_the_block_leaves_nothing(ledger: Ledger, engine: sa.Engine) -> None:
    run = execution(ledger, "r", 10)

    def fail() -> None:
        with Session(engine) as session, run.transaction(session):
            session.add(Bill(run="r", by="a"))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert bills(engine) == []
    assert not run.is_committed
    bill(engine, run, "again")
    assert bills(engine) == [("r", "again")]


def test_a_stale_holders_commit_is_refused_100_of_100(ledger: Ledger, engine: sa.Engine) -> None:
    chance, refused = random.Random(6), []
    for number in range(100):
        # Its own clock says that it holds the lease: it was paused after it looked.
        stale, successor = execution(ledger, f"r{number}", 10), execution(ledger, f"r{number}", 20)
        try:
            with Session(engine) as session, stale.transaction(session):
                session.add(Bill(run=stale.id, by="stale"))
                if chance.random() < 0.5:
                    Claims(ledger).take(claim_of(successor.id, 20))
                else:
                    bill(engine, successor, "successor")
        except LeaseLost as lost:
            refused.append((lost.key, lost.fence))
    assert refused == [(f"run:r{number}", 10) for number in range(100)]
    assert {by for _, by in bills(engine)} == {"successor"}


def test_of_two_that_commit_at_once_one_stays(ledger: Ledger, engine: sa.Engine) -> None:
    for number in range(20):
        outcomes: list[str] = []
        both = threading.Barrier(2)

        def commit(fence: int, number: int = number) -> None:
            run = execution(ledger, f"r{number}", fence)
            both.wait()  # noqa: B023 - joined below
            try:
                bill(engine, run, str(fence))
                outcomes.append("committed")  # noqa: B023
            except (LeaseLost, sa.exc.OperationalError):
                # A deadlock, or a locked file, also leaves nothing.
                outcomes.append("refused")  # noqa: B023

        threads = [threading.Thread(target=commit, args=(fence,)) for fence in (10, 20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("committed") == 1
        assert [run for run, _ in bills(engine)].count(f"r{number}") == 1


def test_a_run_whose_job_a_later_run_has_done_cannot_commit(ledger: Ledger, engine: sa.Engine) -> None:
    paused = execution(ledger, "slot-1", 10, job="task:bill")
    bill(engine, execution(ledger, "slot-2", 20, job="task:bill"), "later")
    with pytest.raises(LeaseLost, match="task:bill"):
        bill(engine, paused, "paused")
    bill(engine, execution(ledger, "slot-3", 30, job="task:bill"), "next")
    assert [by for _, by in bills(engine)] == ["later", "next"]


def test_a_lease_that_ran_out_is_not_committed_with(ledger: Ledger, engine: sa.Engine) -> None:
    run = execution(ledger, "r", 10, ttl=-1)
    with pytest.raises(LeaseLost):
        bill(engine, run)
    assert bills(engine) == []


def test_a_run_commits_once(ledger: Ledger, engine: sa.Engine) -> None:
    run = execution(ledger, "r", 10)
    bill(engine, run)
    with pytest.raises(ConfigurationError, match="has committed"):
        bill(engine, run)
    assert len(bills(engine)) == 1


def test_a_session_on_another_database_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    run = execution(ledger, "r", 10)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not on the database of the ledger"):
            bill(elsewhere, run)
    other = ready_ledger(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(ConfigurationError, match="not on the database of the ledger"):
        bill(other.database.engine, run)
    other.close()
    elsewhere.dispose()


def test_a_run_without_a_lock_is_a_plain_transaction(ledger: Ledger, engine: sa.Engine) -> None:
    bill(engine, Run(id="r", task="t", loose_fence=1), "eager")
    assert bills(engine) == [("r", "eager")]


def test_without_a_ledger_there_is_no_transaction(engine: sa.Engine) -> None:
    lease = Lease(LeaseRequest("run:r", "o", timedelta(seconds=9)), 1, boottime() + 9)
    with pytest.raises(ConfigurationError, match="singleton_database_url"):
        bill(engine, Run(id="r", task="t", leases=Leases(lease)))


def test_a_result_that_is_no_json_is_refused_before_anything_is_done(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="JSON"):
        execution(ledger, "r", 10).transaction(None, result=object())


def test_an_async_session_commits_likewise(postgres: PostgresServer) -> None:
    ledger = ready_ledger(postgres.url)
    with ledger.database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)

    async def commit(fence: int) -> None:
        engine = create_async_engine(postgres.url)
        run = execution(ledger, "r", fence)
        try:
            async with AsyncSession(engine) as session, run.transaction(session):
                session.add(Bill(run="r", by=str(fence)))
        finally:
            await engine.dispose()

    asyncio.run(commit(20))
    with pytest.raises(LeaseLost):
        asyncio.run(commit(10))
    assert bills(ledger.database.engine) == [("r", "20")]
    with ledger.database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
    ledger.close()
