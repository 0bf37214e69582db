"""What a log line of ours says: an event and its fields.

Every call in the package is written ``event name=%s other=%r``, perhaps with a colon and a hint for
people after it (a test sees to that). The template and its arguments come apart in the log record, so
that fields are read from the values themselves, whatever they contain, and not from a text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

PACKAGE: Final = "celery_singleton_lock"

_PLACE: Final = r"%[-#0 +]*\d*(?:\.\d+)?[a-z]"
_EVENT: Final = re.compile(r"(?P<event>%s\w*|[a-z]\w*)")
_FIELD: Final = re.compile(rf" (?P<name>[a-z]\w*)=(?P<place>{_PLACE})")
_HINT: Final = re.compile(r": (?P<hint>[^%]+)")


class Template(NamedTuple):
    event: str
    """With one place in it, where the event is an argument too."""
    fields: tuple[tuple[str, str], ...]
    """Name and place, such as ``%.2f``."""
    hint: str


class Line(NamedTuple):
    event: str
    fields: Mapping[str, Any]
    hint: str


def read_line(record: logging.LogRecord) -> Line | None:
    """None: it is not a line of ours."""
    if not record.name.startswith(PACKAGE):
        return None
    template = read_template(str(record.msg))
    if template is None:
        return None
    values = record.args if isinstance(record.args, tuple) else ()
    event = template.event
    if "%" in event:
        event, values = event % values[:1], values[1:]
    if len(values) != len(template.fields):
        return None
    return Line(
        event,
        {
            name: _value(place, value)
            for (name, place), value in zip(template.fields, values, strict=True)
        },
        template.hint,
    )


@lru_cache(maxsize=1024)
def read_template(text: str) -> Template | None:
    """None: it is not written as ours are."""
    begins = _EVENT.match(text)
    if begins is None:
        return None
    at, fields = begins.end(), []
    while field := _FIELD.match(text, at):
        fields.append((field["name"], field["place"]))
        at = field.end()
    hint = _HINT.fullmatch(text, at)
    if hint is None and at != len(text):
        return None
    return Template(begins["event"], tuple(fields), hint["hint"] if hint else "")


def _value(place: str, value: Any) -> Any:
    """As JSON has it; what JSON has no word for, as the text line shows it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return place % (value,)
