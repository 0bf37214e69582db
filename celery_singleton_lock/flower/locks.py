"""Locks: who holds what, since when, until when; and the button to take it away."""

from __future__ import annotations

from typing import Any

from celery_singleton_lock.recovery.locks import Lock, unlock, why_not_unlock
from celery_singleton_lock.worker.parts import parts_of

from .handlers import Change, Data, Page, answering, given_text
from .history import stamp
from .paging import part_of


class LocksPage(Page):
    template = "singleton_locks.html"
    script = "locks.js"
    tab = "locks"


class LocksData(Data):
    @answering
    async def get(self) -> None:
        seen = await self.desk.locks.get()
        show, search = self.text("show"), self.text("search").strip().lower()
        chosen = [lock for lock in seen.locks if _is_shown(lock, show) and _mentions(lock, search)]
        part = part_of(chosen, self.number("page", 1, least=1), self.size())
        states = [lock.state.value for lock in seen.locks]
        self.send(
            {
                "now": stamp(seen.now),
                **{state: states.count(state) for state in ("held", "parked", "expired")},
                "overdue": sum(lock.overdue_by is not None for lock in seen.locks),
                **part.as_json(),
                "rows": [as_json(lock) for lock in part.rows],
            }
        )


class Unlock(Change):
    async def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        key, why = given_text(asked, "key"), given_text(asked, "why")
        app = self.desk.app
        taken = await self.do(lambda: unlock(parts_of(app).store, key, why=why, who=self.who, app=app))
        self.desk.locks.forget()
        if taken is None:
            return {"message": f"Nobody holds {key} any more."}
        return {"message": f"{key} is free. {taken.holder} is told at its next renewal."}


def as_json(lock: Lock) -> dict[str, Any]:
    return {
        "key": lock.key,
        "kind": lock.kind,
        "state": lock.state.value,
        "holder": lock.holder,
        **{name: _text(lock, name) for name in ("task", "run", "entry")},
        # As text: a script would round such a number.
        "fence": str(lock.fence),
        "since": stamp(lock.since),
        "until": stamp(lock.since + lock.age + lock.remaining),
        "heir": lock.heir,
        "takeovers": lock.takeovers,
        "is_overdue": lock.overdue_by is not None,
        "expected": _expected(lock),
        "why_not": why_not_unlock(lock),
    }


def _expected(lock: Lock) -> float | None:
    """Until when it was expected to be held, if it is overdue."""
    over = lock.overdue_by
    return None if over is None else stamp(lock.since + lock.age - over)


def _is_shown(lock: Lock, show: str) -> bool:
    if show == "overdue":
        return lock.overdue_by is not None
    return show not in ("held", "parked", "expired") or lock.state.value == show


def _mentions(lock: Lock, search: str) -> bool:
    noted = (_text(lock, name) for name in ("task", "run", "entry"))
    return any(search in text.lower() for text in (lock.key, lock.owner, lock.holder, *noted) if text)


def _text(lock: Lock, name: str) -> str | None:
    """Notes are for people: anybody may have written anything there."""
    value = lock.note.get(name)
    return str(value)[:500] if value else None
