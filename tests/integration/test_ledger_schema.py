"""The tables of the ledger: made, upgraded and checked, beside those of the application."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery
from click.testing import CliRunner, Result

from celery_singleton_lock import LedgerOutdated, LedgerUnavailable
from celery_singleton_lock.cli import singleton
from celery_singleton_lock.ledger import Ledger, metadata, open_ledger
from celery_singleton_lock.ledger.schema import VERSION_TABLE, head
from celery_singleton_lock.ledger.tables import AuditRow, LedgerRow, RunRow

from .ledgers import DATABASES, drop_all, empty_ledger, url_of


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    ledger = empty_ledger(url_of(request.param, request))
    yield ledger
    ledger.close()


def command(ledger_url: str | None, *arguments: str) -> Result:
    app = Celery("shop", broker="memory://", set_as_current=False)
    if ledger_url is not None:
        app.conf.singleton_database_url = ledger_url
    return CliRunner().invoke(singleton, ["db", *arguments], obj=SimpleNamespace(app=app))


def test_upgrade_makes_the_tables_that_the_code_expects(ledger: Ledger) -> None:
    assert ledger.schema.current() is None
    assert ledger.schema.upgrade()[0] == "0001"
    assert ledger.schema.current() == head()
    assert ledger.schema.differences() == []
    ledger.schema.ensure_current()


def test_upgrade_again_finds_nothing_to_do(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    name = _name(ledger)
    assert ledger.schema.upgrade() == []
    assert _name(ledger) == name


def test_a_changed_table_is_seen(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    ledger.write(
        lambda connection: connection.execute(sa.text("ALTER TABLE singleton_audit DROP COLUMN facts"))
    )
    assert any("facts" in each for each in ledger.schema.differences())


def test_tables_of_the_application_are_nobodys_business(ledger: Ledger) -> None:
    orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    alembics = sa.Table(
        "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
    )
    try:
        ledger.write(orders.create)
        ledger.write(alembics.create)
        ledger.write(
            lambda connection: connection.execute(alembics.insert(), {"version_num": "theirs"})
        )
        ledger.schema.upgrade()
        assert ledger.schema.differences() == []
        assert ledger.read(lambda c: c.scalars(sa.select(alembics)).all()) == ["theirs"]
    finally:
        ledger.write(orders.drop)
        ledger.write(alembics.drop)


def test_two_who_upgrade_at_once_upgrade_once(ledger: Ledger) -> None:
    fork = multiprocessing.get_context("fork")
    both, applied = fork.Barrier(2), fork.Queue()

    def upgrade() -> None:
        both.wait()
        applied.put(ledger.schema.upgrade())

    processes = [fork.Process(target=upgrade) for _ in range(2)]
    for process in processes:
        process.start()
    counts = [len(applied.get(timeout=40)) for _ in processes]
    for process in processes:
        process.join(20)
    assert sorted(counts) == [0, len(_all_revisions())]
    assert ledger.schema.differences() == []


def test_tables_that_are_missing_or_old_are_refused_with_what_to_do(ledger: Ledger) -> None:
    with pytest.raises(LedgerOutdated, match=r"has no tables.*celery -A app singleton db upgrade"):
        ledger.schema.ensure_current()
    ledger.schema.upgrade()
    ledger.write(lambda c: c.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '0000'")))
    with pytest.raises(LedgerOutdated, match="is at revision 0000"):
        ledger.schema.ensure_current()


def test_tables_of_a_later_version_are_served(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    ledger.write(lambda c: c.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))
    ledger.schema.ensure_current()
    assert ledger.schema.upgrade() == []


def test_data_survives_the_upgrade_from_every_revision(ledger: Ledger) -> None:
    for revision in _all_revisions():
        ledger.write(drop_all)
        ledger.schema.upgrade(to=revision)
        assert ledger.schema.current() == revision
        counts = {each: _fill(ledger, each) for each in _tables(ledger)}
        assert "singleton_runs" in counts
        ledger.schema.upgrade()
        assert ledger.schema.differences() == []
        assert {each: ledger.read(partial(_count, name=each)) for each in counts} == counts


def test_times_are_kept_to_the_microsecond_in_utc(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    at = datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    row = {"prefix": "p", "at": at, "who": "ann", "action": "test", "facts": "{}"}
    ledger.write(lambda c: c.execute(sa.insert(AuditRow), row))
    kept = ledger.read(lambda c: c.scalar(sa.select(AuditRow.at)))
    assert kept == at
    assert kept is not None
    assert kept.tzinfo is UTC


def test_names_are_told_apart_by_case(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    at = datetime.now(UTC)
    facts = {"prefix": "p", "due_at": at, "status": "due", "stage": 0, "attempt": 0, "fence": 0}
    rows = [facts | {"run_id": "a"}, facts | {"run_id": "A"}, facts | {"run_id": "ä"}]
    ledger.write(lambda c: c.execute(sa.insert(RunRow), rows))
    assert ledger.read(lambda c: _count(c, "singleton_runs")) == 3


def test_a_forked_child_has_connections_of_its_own(ledger: Ledger) -> None:
    ledger.schema.upgrade()
    mine = ledger.read(_connection_id)
    fork = multiprocessing.get_context("fork")
    ours, childs = fork.Pipe()

    def child() -> None:
        childs.send(ledger.read(_connection_id))

    process = fork.Process(target=child)
    process.start()
    assert ours.poll(20)
    if "sqlite" not in ledger.name:
        assert ours.recv() != mine
    process.join(20)
    assert process.exitcode == 0
    assert ledger.read(_connection_id) == mine


def test_a_database_that_is_away_is_named_without_its_password() -> None:
    ledger = open_ledger("postgresql+psycopg://ann:s3cret@127.0.0.1:1/shop")
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.schema.current()
    assert "127.0.0.1" in str(caught.value)
    assert "s3cret" not in str(caught.value)


# The commands


def test_upgrade_check_and_current_tell_people_and_machines(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    missing = command(url, "check")
    assert missing.exit_code == 1
    assert "singleton db upgrade" in missing.output
    assert "revision none" in command(url, "current").output
    done = command(url, "upgrade", "--json")
    assert json.loads(done.output)["revision"] == head()
    assert "nothing to do" in command(url, "upgrade").output
    assert command(url, "check").exit_code == 0
    assert json.loads(command(url, "current", "--json").output)["needed"] == head()


def test_commands_without_a_database_say_what_to_set() -> None:
    result = command(None, "upgrade")
    assert result.exit_code == 2
    assert "set singleton_database_url" in result.output


def test_commands_with_the_database_away_say_so() -> None:
    result = command("postgresql+psycopg://ann:s3cret@127.0.0.1:1/shop", "current")
    assert result.exit_code == 3
    assert "unavailable" in result.output
    assert "s3cret" not in result.output


def _name(ledger: Ledger) -> str:
    return ledger.read(lambda connection: connection.scalars(sa.select(LedgerRow.name)).one())


def _all_revisions() -> list[str]:
    return [f"{number:04}" for number in range(1, int(head()) + 1)]


def _tables(ledger: Ledger) -> list[str]:
    found = ledger.read(lambda connection: sa.inspect(connection).get_table_names())
    return sorted(name for name in found if name in metadata.tables and name != LedgerRow.__tablename__)


def _fill(ledger: Ledger, name: str) -> int:
    """Three rows in a table as it is now, whatever its columns are."""

    def fill(connection: sa.Connection) -> int:
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        for number in range(3):
            row = {
                column.name: _value(column, number)
                for column in table.columns
                if column is not table.autoincrement_column
            }
            connection.execute(table.insert(), row)
        return 3

    return ledger.write(fill)


def _value(column: sa.Column[Any], number: int) -> Any:
    if issubclass(column.type.python_type, datetime):
        return datetime(2026, 1, 1, number)  # noqa: DTZ001 - as the driver gives them
    return column.type.python_type(number)


def _count(connection: sa.Connection, name: str) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name))) or 0


def _connection_id(connection: sa.Connection) -> Any:
    match connection.dialect.name:
        case "postgresql":
            return connection.scalar(sa.select(sa.func.pg_backend_pid()))
        case "sqlite":
            return 0
    return connection.scalar(sa.select(sa.func.connection_id()))
