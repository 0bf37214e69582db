"""The pages explain every column of every table, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_singleton_lock.ledger import metadata
from celery_singleton_lock.ledger.schema import head

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "singleton_outbox": "outbox.md",
    "singleton_outbox_lanes": "outbox.md",
    "singleton_stream_shards": "change-streams.md",
}
EVERYWHERE = {"id", "prefix"}
"""Explained once for all."""


def words_about(table: str) -> set[str]:
    """What stands in backticks from the name of the table to the next heading."""
    text = (DOCS / PAGES.get(table, "ledger.md")).read_text()
    parts = re.split(rf"`{table}`", text)[1:]
    return {word for part in parts for word in re.findall(r"`(\w+)`", part.split("\n#")[0])}


@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_every_column_is_explained(table: str) -> None:
    columns = {column.name for column in metadata.tables[table].columns}
    assert columns - EVERYWHERE - words_about(table) == set()


def test_the_page_shows_the_revision_of_today() -> None:
    assert f"now at revision {head()}\n" in (DOCS / "ledger.md").read_text()
