"""Dead letters: why a run failed for good; and the buttons to send it again, or to remove it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tornado import web

from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.recovery.dead_letters import DeadLetters, Outcome, dead_letters_of
from celery_singleton_lock.recovery.letters import Letter

from .handlers import Change, Data, Page, answering, is_text
from .history import stamp
from .paging import part_of

LONGEST_BODY: Final = 8000
MOST_AT_ONCE: Final = 100


class DeadLettersPage(Page):
    template = "singleton_dead_letters.html"
    script = "dead_letters.js"
    tab = "dead-letters"


class DeadLettersData(Data):
    @answering
    async def get(self) -> None:
        seen = await self.desk.letters.get()
        search, reason = self.text("search").strip().lower(), self.text("show")
        chosen = [
            letter
            for letter in reversed(seen.letters)
            if reason in ("", letter.reason) and _mentions(letter, search)
        ]
        part = part_of(chosen, self.number("page", 1, least=1), self.size())
        self.send(
            {
                "queue": seen.queue,
                "letters": len(seen.letters),
                "are_all": seen.are_all,
                "oldest": stamp(seen.letters[0].dead_at) if seen.letters else None,
                "tasks": len({letter.task for letter in seen.letters}),
                **part.as_json(),
                "rows": [as_json(letter) for letter in part.rows],
            }
        )


class LetterData(Data):
    """One letter, with all that is in it."""

    @answering
    async def get(self) -> None:
        letter_id = self.text("id")
        letter = await self.desk.asking.ask(lambda: dead_letters_of(self.desk.app).show(letter_id))
        if letter is None:
            raise web.HTTPError(404, "There is no such letter any more")
        self.send({**as_json(letter), "traceback": letter.traceback, "body": _body(letter)})


class LettersChange(Change):
    async def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        ids = asked.get("ids")
        if not isinstance(ids, list) or not 0 < len(ids) <= MOST_AT_ONCE or not all(map(is_text, ids)):
            raise web.HTTPError(400, f"ids needs to be a list of 1 to {MOST_AT_ONCE} ids of letters")
        outcomes = await self.do(lambda: self.make(dead_letters_of(self.desk.app), ids))
        self.desk.letters.forget()
        refused = [each for each in outcomes if each.why_not]
        # Of a letter that was repeated there are several.
        done = {each.letter.id for each in outcomes} - {each.letter.id for each in refused}
        gone = set(ids) - {each.letter.id for each in outcomes}
        said = [f"{self.verb}: {len(done)}."] if done else []
        said += [f"Not {self.verb.lower()}: {each.letter.task}: {each.why_not}." for each in refused]
        said += [f"No longer there: {len(gone)}."] if gone else []
        return {"message": " ".join(said), "done": sorted(done), "is_whole": not refused and not gone}

    verb: str

    def make(self, letters: DeadLetters, ids: Sequence[str]) -> Sequence[Outcome]:
        raise NotImplementedError


class ReplayLetters(LettersChange):
    verb = "Replayed"

    def make(self, letters: DeadLetters, ids: Sequence[str]) -> Sequence[Outcome]:
        return letters.replay(ids=ids, who=self.who)


class DeleteLetters(LettersChange):
    verb = "Deleted"

    def make(self, letters: DeadLetters, ids: Sequence[str]) -> Sequence[Outcome]:
        return letters.purge(ids=ids, who=self.who)


def as_json(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "task": letter.task,
        "run": letter.run_id,
        "generation": letter.generation,
        "exception": letter.exception,
        "attempts": letter.attempts,
        "entry": letter.entry,
        "slot": letter.slot,
        "queue": letter.queue,
        "worker": letter.worker,
        "started": stamp(letter.started_at),
        "dead": stamp(letter.dead_at),
    }


def _mentions(letter: Letter, search: str) -> bool:
    texts = (letter.id, letter.task, letter.run_id, letter.exception, letter.entry, letter.worker)
    return any(search in text.lower() for text in texts if text)


def _body(letter: Letter) -> str:
    try:
        text = letter.original.body.decode()
    except UnicodeDecodeError:
        return f"{len(letter.original.body)} bytes that are no text"
    return redact(text)[:LONGEST_BODY]
