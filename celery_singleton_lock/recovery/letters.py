"""A dead letter: the message as it was, with one header that says why it lies here. Pure."""

from __future__ import annotations

import json
import traceback as tracebacks
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from celery_singleton_lock.core import headers as names
from celery_singleton_lock.core.redaction import redact

from .original import Original, fingerprint

Reason = Literal[
    "failed",  # its attempts are used up, or it raised what is not retried
    "rejected",  # Reject(requeue=False)
    "worker_died",  # it ended its workers `max_deliveries` times
    "undecodable",  # the body cannot be read
    "unknown_task",  # no task of that name here
    "invalid",  # no id, or arguments that cannot be passed
    "out_of_memory",  # a MemoryError
    "unpublished",  # the broker refused it too often, so that it never left the outbox
    "foreign",  # somebody else put it into the queue; never sent by us
]
FAILED: Final = "failed"
REJECTED: Final = "rejected"
WORKER_DIED: Final = "worker_died"
UNDECODABLE: Final = "undecodable"
UNKNOWN_TASK: Final = "unknown_task"
INVALID: Final = "invalid"
OUT_OF_MEMORY: Final = "out_of_memory"
UNPUBLISHED: Final = "unpublished"
FOREIGN: Final = "foreign"
REASONS: Final = get_args(Reason)

LETTER_IDS: Final = uuid.UUID("0b7b3c5e-5d0e-5c55-8b32-5a1f4f1c7a0d")
# RabbitMQ takes all headers of a message in one frame of 128 kB.
LONGEST_TRACEBACK_BYTES: Final = 16_000
LONGEST_TEXT_BYTES: Final = 2_000
ROOM_FOR_HEADERS_BYTES: Final = 100_000
_PERSISTENT: Final = 2
_OF_THE_LETTER: Final = ("priority", "delivery_mode")
"""Properties that a letter has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to be published as it stands, without kombu's own serialising."""

    body: bytes
    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str | None
    content_encoding: str | None
    exchange: str
    routing_key: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """Why a message was given up, and the message. Make one with `Letter.about`.

    Texts are bounded, and the secrets of URLs in them are hidden; the message itself is untouched.
    """

    id: str
    """The same for each letter about one run and generation, so that a repeat is seen."""
    reason: Reason
    run_id: str | None
    """None: the message has no id that could be used."""
    generation: int
    task: str | None
    exception: str
    traceback: str
    attempts: int
    started_at: datetime | None
    """Of the last attempt; None if there was none, or nobody knows."""
    dead_at: datetime
    entry: str | None
    slot: str | None
    queue: str | None
    worker: str | None
    original: Original = field(repr=False)

    @classmethod
    def about(
        cls,
        message: Any,
        reason: Reason,
        *,
        exception: BaseException | str | None = None,
        traceback: str | None = None,
        attempts: int = 0,
        started_at: datetime | None = None,
        queue: str | None = None,
        worker: str | None = None,
        now: datetime | None = None,
    ) -> Letter:
        """About a kombu message. A `traceback` that is not given is taken from the exception."""
        original = Original.of(message)
        generation = generation_of(original.headers)
        if traceback is None:
            traceback = _traceback_of(exception) if isinstance(exception, BaseException) else ""
        subject = original.run_id or fingerprint(original, message)
        return cls(
            id=str(uuid.uuid5(LETTER_IDS, f"{subject}\n{generation}")),
            reason=reason,
            run_id=original.run_id,
            generation=generation,
            task=original.task,
            exception=shortened(redact(_described(exception)), LONGEST_TEXT_BYTES),
            traceback=shortened(redact(traceback), LONGEST_TRACEBACK_BYTES),
            attempts=attempts,
            started_at=started_at,
            dead_at=now or datetime.now(UTC),
            entry=_text(original.headers.get(names.ENTRY)),
            slot=_text(original.headers.get(names.SLOT)),
            queue=queue,
            worker=worker,
            original=original,
        )

    @classmethod
    def from_message(cls, message: Any) -> Letter:
        """Read what `to_message` wrote. What somebody else put into the queue is a letter, too."""
        facts = message.headers.get(names.LETTER) if isinstance(message.headers, Mapping) else None
        if not isinstance(facts, Mapping) or facts.get("reason") not in REASONS or not facts.get("id"):
            return cls.about(message, FOREIGN, now=datetime.fromtimestamp(0, UTC))
        original = Original.of(message)
        headers = {name: value for name, value in original.headers.items() if name != names.LETTER}
        if facts.get("compression"):
            headers["compression"] = facts["compression"]
        own = facts.get("properties")
        properties = {
            name: value for name, value in original.properties.items() if name not in _OF_THE_LETTER
        } | (dict(own) if isinstance(own, Mapping) else {})
        return cls(
            id=str(facts["id"]),
            reason=facts["reason"],
            run_id=_text(facts.get("run_id")),
            generation=_count(facts.get("generation")),
            task=_text(facts.get("task")),
            exception=str(facts.get("exception") or ""),
            traceback=str(facts.get("traceback") or ""),
            attempts=_count(facts.get("attempts")),
            started_at=_time(facts.get("started_at")),
            dead_at=_time(facts.get("dead_at")) or datetime.fromtimestamp(0, UTC),
            entry=_text(facts.get("entry")),
            slot=_text(facts.get("slot")),
            queue=_text(facts.get("queue")),
            worker=_text(facts.get("worker")),
            original=replace(
                original,
                headers=headers,
                properties=properties,
                exchange=str(facts.get("exchange") or ""),
                routing_key=str(facts.get("routing_key") or ""),
            ),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """All but the message, as JSON has it."""
        return {
            "id": self.id,
            "reason": self.reason,
            "run_id": self.run_id,
            "generation": self.generation,
            "task": self.task,
            "exception": self.exception,
            "traceback": self.traceback,
            "attempts": self.attempts,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "dead_at": self.dead_at.isoformat(),
            "entry": self.entry,
            "slot": self.slot,
            "queue": self.queue,
            "worker": self.worker,
            "exchange": self.original.exchange,
            "routing_key": self.original.routing_key,
        }

    def to_message(self, queue: str) -> Outgoing:
        """The letter, for this queue: the message with the header that says why."""
        original = self.original
        headers, properties = dict(original.headers), dict(original.properties)
        facts = self.facts
        # Letters keep the order in which they were written, and survive a restart of the broker; what
        # the message had instead comes back with a replay. A compressed body that could not be
        # unpacked would make the letter one more message that cannot be read.
        facts["properties"] = {
            name: properties.pop(name) for name in _OF_THE_LETTER if name in properties
        }
        facts["compression"] = headers.pop("compression", None)
        if len(json.dumps(headers, default=repr)) > ROOM_FOR_HEADERS_BYTES:
            facts["traceback"] = ""
        return Outgoing(
            body=original.body,
            headers={**headers, names.LETTER: facts},
            properties={**properties, "delivery_mode": _PERSISTENT},
            content_type=original.content_type,
            content_encoding=original.content_encoding,
            exchange="",
            routing_key=queue,
            priority=0,
        )

    def to_replay(self) -> Outgoing:
        """The message as it was, for a fresh start as the next generation of the same run."""
        original = self.original
        headers = {name: value for name, value in original.headers.items() if name != names.LETTER}
        headers[names.GENERATION] = self.generation + 1
        # Only where Celery wrote them: its older protocol has them in the body.
        headers.update({name: fresh for name, fresh in _FRESH.items() if name in headers})
        properties = {name: value for name, value in original.properties.items() if name != "priority"}
        return Outgoing(
            body=original.body,
            headers=headers,
            properties={"delivery_mode": _PERSISTENT, **properties},
            content_type=original.content_type,
            content_encoding=original.content_encoding,
            exchange=original.exchange,
            routing_key=original.routing_key,
            priority=original.priority,
        )


_FRESH: Final[dict[str, Any]] = {"retries": 0, "expires": None, "eta": None}


def generation_of(headers: Mapping[str, Any] | None) -> int:
    """How often the run of a message with these headers was replayed."""
    return _count((headers or {}).get(names.GENERATION))


def shortened(text: str, longest_bytes: int) -> str:
    """The beginning and, since errors name their cause last, more of the end."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= longest_bytes:
        return encoded.decode()
    head, tail = encoded[: longest_bytes // 4], encoded[-(longest_bytes // 4 * 3) :]
    return f"{head.decode(errors='ignore')}\n... shortened ...\n{tail.decode(errors='ignore')}"


def _described(exception: BaseException | str | None) -> str:
    if not isinstance(exception, BaseException):
        return exception or ""
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:  # noqa: BLE001 - an exception of the user's whose text cannot be made
        return type(exception).__name__


def _traceback_of(exception: BaseException) -> str:
    try:
        return "".join(tracebacks.format_exception(exception))
    except Exception:  # noqa: BLE001 - as above
        return ""


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
