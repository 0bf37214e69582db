"""What several nodes know of one thing, as one: records, members and books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery_singleton_lock.core.models import Page, Reading, Record
from celery_singleton_lock.leases import rules

from .rounds import Size


class Known(NamedTuple):
    """What one node answers to `peek`: its time, the fields (as batch.lua lists them), and whether the
    fence is not the owner's."""

    now: int
    fields: Sequence[Any]
    is_pending: int


def record_of(size: Size, key: str, known: Sequence[Known]) -> Record | None:
    """The newest grant, with the highest position that any node knows. None: no node knows it.

    What was granted is known to a majority. A larger fence of fewer nodes was somebody's who asked in
    vain, at nodes that had missed the grant.

    Of the nodes that know this grant, one where it was given back is right, for only its holder does
    that; otherwise the one where it lasts longest.
    """
    rows = [(_row(each), each) for each in known]
    if not any(any(each.fields) for each in known):
        return None
    # So many of those that were heard are in every majority.
    witnesses = max(1, len(rows) - (size.nodes - size.majority))
    newest = sorted((row.fence for row, _ in rows), reverse=True)[witnesses - 1]
    row, told = max(
        (both for both in rows if both[0].fence == newest),
        key=lambda both: (not both[1].is_pending, both[0].until == 0, both[0].until - both[1].now),
    )
    record = rules.record(key, row, told.now)
    positions = [
        (-1 if each.position is None else each.position, at) for at, (each, _) in enumerate(rows)
    ]
    furthest = rows[max(positions)[1]][0]
    return replace(record, position=furthest.position, outcome=furthest.outcome)


def _row(known: Known) -> rules.Row:
    owner, fence, until, since, position, outcome, heir, parked_until, takeovers, note = known.fields
    return rules.Row(
        owner=owner or "",
        fence=int(fence or 0),
        until=int(until or 0),
        since=int(since or 0),
        position=int(position) if position else None,
        outcome=outcome or None,
        heir=heir or None,
        parked_until=int(parked_until or 0),
        takeovers=int(takeovers or 0),
        note=note or "",
    )


def reading_of(size: Size, told: Sequence[tuple[int, Sequence[Any]]]) -> Reading:
    """Of (revision, [name, version, text, ...]) by a majority: each page by its highest version.

    The revision is one that a majority has reached. None of these accepts a change that is not beyond
    it, so whoever reads on from there misses nothing; it may be told of a page again.
    """
    newest: dict[str, tuple[int, Page]] = {}
    for _, flat in told:
        for place, (name, version, text) in enumerate(zip(*[iter(flat)] * 3, strict=True)):
            page = Page(name, version, None if text is False else text)
            if name not in newest or newest[name][1].version < version:
                newest[name] = (place, page)
    revisions = sorted((revision for revision, _ in told), reverse=True)
    pages = [page for _, page in sorted(newest.values(), key=lambda each: each[0])]
    return Reading(revisions[size.majority - 1], tuple(pages))
