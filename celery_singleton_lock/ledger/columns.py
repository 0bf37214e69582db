"""Kinds of columns, such that each database keeps the same: times in UTC, and texts of any length."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import mapped_column

LONGEST_NAME: Final = 255


class UtcDateTime(sa.TypeDecorator[datetime]):
    """An aware datetime, in microseconds. SQLite and MySQL, which know no zones, keep UTC."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            # By default it keeps whole seconds.
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# MySQL's TEXT ends at 64 kB.
LONG_TEXT: Final = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
# SQLite counts up by itself only in a column of exactly this type.
ROW_ID: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

RowId = Annotated[int, mapped_column(ROW_ID, primary_key=True, autoincrement=True)]
Name = Annotated[str, mapped_column(sa.String(LONGEST_NAME))]
Word = Annotated[str, mapped_column(sa.String(32))]
LongText = Annotated[str, mapped_column(LONG_TEXT)]
Digest = Annotated[str, mapped_column(sa.CHAR(64))]
Time = Annotated[datetime, mapped_column(UtcDateTime())]
Number = Annotated[int, mapped_column(sa.BigInteger())]
Flag = Annotated[bool, mapped_column(sa.Boolean())]
Seconds = Annotated[float, mapped_column(sa.Double())]
