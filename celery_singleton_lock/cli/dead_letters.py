"""``celery -A app singleton dead-letters``: parse, call, print."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from celery_singleton_lock.core.redaction import redact

from .failing import NOT_ALL, ensure_somebody_to_ask, fail, telling_errors, telling_errors_of_changes
from .ids import WHOLE, whole
from .options import HOW_MANY, Decorated, as_json
from .printing import cut, print_json, print_table, printable

if TYPE_CHECKING:
    from celery_singleton_lock.recovery.dead_letters import DeadLetters, Outcome
    from celery_singleton_lock.recovery.letters import Letter

SHOWN_BY_DEFAULT: Final = 50
LONGEST_BODY: Final = 4000
OLDEST_FIRST: Final = "At most so many, oldest first."
of_task = click.option("--task", metavar="NAME", help="Only those of this task.")


def choosing(command: Decorated) -> Decorated:
    """The options by which letters are chosen, for what changes the queue."""
    options = (
        click.option("--all", "everything", is_flag=True, help="All that are there now."),
        click.argument("these", metavar="[ID]...", nargs=-1),
        click.option("--id", "ids", metavar="ID", multiple=True, help="Another way to give an ID."),
        of_task,
        click.option("--limit", type=HOW_MANY, metavar="N", help=OLDEST_FIRST),
        click.option("--dry-run", is_flag=True, help="Only say which."),
        as_json,
    )
    for option in reversed(options):  # the last to be applied is the first in the help
        command = option(command)
    return command


@click.group("dead-letters")
def dead_letters() -> None:
    """Messages that no worker could finish, kept with the reason why."""


@dead_letters.command("list")
@of_task
@click.option(
    "--limit", type=HOW_MANY, default=SHOWN_BY_DEFAULT, show_default=True, metavar="N",
    help=OLDEST_FIRST,
)  # fmt: skip
@as_json
@click.pass_context
@telling_errors
def list_letters(context: click.Context, task: str | None, limit: int, as_json: bool) -> None:
    """Show the letters, oldest first. Nothing is changed by it."""
    letters = _of(context)
    # One more than is shown, to know whether there are more.
    found = letters.list(limit=limit + 1, task=task)
    shown = found[:limit]
    if as_json:
        more = len(found) > limit
        print_json({"queue": letters.queue, "more": more, "letters": [each.facts for each in shown]})
        return
    titles = ("LETTER", "DEAD AT", "REASON", "TASK", "RUN", "ATTEMPTS", "EXCEPTION")
    print_table(titles, [_row(each) for each in shown])
    if not shown:
        click.echo(f"No letters in {letters.queue}.", err=True)
    elif len(found) > limit:
        click.echo(f"There are more than these {limit}: see --limit.", err=True)


@dead_letters.command("show")
@click.argument("letter_id", metavar="ID")
@as_json
@click.pass_context
@telling_errors
def show_letter(context: click.Context, letter_id: str, as_json: bool) -> None:
    """Show all that is known of one letter, and its message."""
    letters = _of(context)
    [letter_id] = _whole(letters, [letter_id])
    letter = letters.show(letter_id)
    if letter is None:
        fail(f"no letter has the id {letter_id}")
    if as_json:
        print_json({**letter.facts, "message": _message(letter)})
        return
    for name, value in letter.facts.items():
        if name != "traceback":
            click.echo(f"{name:12} {printable(value)}")
    for name, value in _message(letter).items():
        click.echo(f"{name:12} {cut(printable(value), LONGEST_BODY)}")
    for line in letter.traceback.splitlines():
        click.echo(printable(line))


@dead_letters.command("replay")
@choosing
@click.option("--rate", type=click.FloatRange(0.001), metavar="N", help="At most so many a second.")
@click.pass_context
@telling_errors_of_changes
def replay_letters(
    context: click.Context,
    these: Sequence[str],
    everything: bool,
    ids: Sequence[str],
    task: str | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send messages again to where they came from, for a fresh start, and remove their letters.

    Safe to repeat: a message that is sent twice runs once.
    """
    ids = [*these, *ids]
    _check_choice(everything, ids, task)
    letters = _of(context)
    ids = _whole(letters, ids)
    outcomes = letters.replay(
        ids=ids or None, task=task, everything=everything, limit=limit, rate=rate, dry_run=dry_run
    )
    _report("replayed", letters, outcomes, ids, dry_run, as_json)


@dead_letters.command("purge")
@choosing
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
@telling_errors_of_changes
def purge_letters(
    context: click.Context,
    these: Sequence[str],
    everything: bool,
    ids: Sequence[str],
    task: str | None,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Remove letters for ever, with their messages."""
    ids = [*these, *ids]
    _check_choice(everything, ids, task)
    letters = _of(context)
    ids = _whole(letters, ids)
    choice: dict[str, Any] = {"ids": ids or None, "task": task, "everything": everything}
    if not yes and not dry_run:
        limit = _ask(letters, choice, limit, as_json)
    outcomes = letters.purge(**choice, limit=limit, dry_run=dry_run) if limit != 0 else []
    _report("purged", letters, outcomes, ids, dry_run, as_json)


def _ask(letters: DeadLetters, choice: dict[str, Any], limit: int | None, as_json: bool) -> int:
    """How many to purge: those that were asked about, and none that has come since."""
    ensure_somebody_to_ask("give --yes, or --dry-run to see which", as_json=as_json)
    count = len(letters.purge(**choice, limit=limit, dry_run=True))
    if count:
        click.confirm(f"Remove {count} letters from {letters.queue} for ever?", abort=True, err=True)
    return count


def _of(context: click.Context) -> DeadLetters:
    from celery_singleton_lock.recovery.dead_letters import dead_letters_of

    return dead_letters_of(context.obj.app)


def _whole(letters: DeadLetters, ids: Sequence[str]) -> list[str]:
    """Looks through the queue only for those of which there is but the beginning."""
    if all(len(each) >= WHOLE for each in ids):
        return list(ids)
    known = [each.id for each in letters.list()]
    return [whole(each, known) for each in ids]


def _check_choice(everything: bool, ids: Sequence[str], task: str | None) -> None:
    if not everything and not ids and task is None:
        raise click.UsageError("say which letters: their ids, --task or --all")
    if everything and (ids or task is not None):
        raise click.UsageError("--all goes with neither ids nor --task")


def _report(
    action: str,
    letters: DeadLetters,
    outcomes: Sequence[Outcome],
    ids: Sequence[str],
    dry_run: bool,
    as_json: bool,
) -> None:
    done = [each.letter for each in outcomes if not each.why_not]
    refused = [each for each in outcomes if each.why_not]
    missing = [each for each in ids if each not in {outcome.letter.id for outcome in outcomes}]
    if as_json:
        print_json(
            {
                "queue": letters.queue,
                "action": action,
                "dry_run": dry_run,
                "done": [each.id for each in done],
                "refused": [{"id": each.letter.id, "why": each.why_not} for each in refused],
                "not_found": missing,
            }
        )
    else:
        if done:
            print_table(("LETTER", "REASON", "TASK", "RUN"), [_short_row(each) for each in done])
        click.echo(f"{'Would be ' if dry_run else ''}{action}: {len(done)}", err=True)
        for each in refused:
            click.echo(f"Not {action}: {each.letter.id}: {printable(each.why_not)}", err=True)
        for letter_id in missing:
            click.echo(f"Not found: {printable(letter_id)}", err=True)
    if refused or missing:
        raise SystemExit(NOT_ALL)


def _row(letter: Letter) -> tuple[object, ...]:
    return (
        letter.id,
        letter.dead_at.isoformat(timespec="seconds"),
        letter.reason,
        letter.task,
        letter.run_id,
        letter.attempts,
        cut(printable(letter.exception), 60),
    )


def _short_row(letter: Letter) -> tuple[object, ...]:
    return letter.id, letter.reason, letter.task, letter.run_id


def _message(letter: Letter) -> dict[str, Any]:
    """The message as it was, but for the passwords of URLs. A body that is no text is in base64."""
    original = letter.original
    try:
        body = {"body": redact(original.body.decode())}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(original.body).decode()}
    return {
        "content_type": original.content_type,
        "content_encoding": original.content_encoding,
        "headers": _redacted(dict(original.headers)),
        "properties": _redacted(dict(original.properties)),
        **body,
    }


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case dict():
            return {name: _redacted(each) for name, each in value.items()}
        case list() | tuple():
            return [_redacted(each) for each in value]
    return value
