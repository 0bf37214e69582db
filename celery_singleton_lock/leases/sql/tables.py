"""The one table of the SQL store."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGTEXT

# MySQL's TEXT ends at 64 kB, which a note with a message in it may exceed.
_TEXT: Final = sa.Text().with_variant(LONGTEXT(), "mysql", "mariadb")

leases: Final = sa.Table(
    "singleton_leases",
    sa.MetaData(),
    # A key may be longer than an index allows, so its digest (with the prefix) is the name.
    sa.Column("digest", sa.CHAR(64), primary_key=True),
    sa.Column("prefix", sa.String(255), nullable=False),
    sa.Column("key", _TEXT, nullable=False),
    sa.Column("owner", _TEXT, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("position", sa.BigInteger),
    sa.Column("outcome", _TEXT),
    sa.Column("heir", _TEXT),
    sa.Column("parked_until", sa.BigInteger, nullable=False),
    sa.Column("takeovers", sa.Integer, nullable=False),
    sa.Column("note", _TEXT, nullable=False),
    sa.Column("kept_until", sa.BigInteger, nullable=False),
    sa.Column("call", sa.String(32), nullable=False),
    sa.Column("released", sa.BigInteger, nullable=False),
    sa.Column("listed", sa.BigInteger, nullable=False),
    sa.Index("ix_singleton_leases_kept_until", "kept_until"),
    sa.Index("ix_singleton_leases_listed", "prefix", "listed"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mariadb_engine="InnoDB",
    mariadb_charset="utf8mb4",
    mariadb_collate="utf8mb4_bin",
)
