"""Runs: what was executed when, by whom, and how it ended; and who had to stand back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .handlers import Data, Page, answering
from .history import STATUSES, Query, stamp
from .paging import Part, last_page

LONGEST_WINDOW: Final = timedelta(days=7)
MOST_IN_TIMELINE: Final = 300
BUCKETS: Final = 60


class RunsPage(Page):
    template = "singleton_runs.html"
    script = "runs.js"
    tab = "runs"


class WindowedData(Data):
    def window(self) -> timedelta:
        """How far back somebody looks, as the page asked for it, in seconds."""
        return min(timedelta(seconds=self.number("window", 3600, least=60)), LONGEST_WINDOW)


class RunsData(WindowedData):
    @answering
    async def get(self) -> None:
        history, now = self.desk.history, datetime.now(UTC)
        status = self.text("show")
        query: dict[str, Any] = {
            "search": self.text("search").strip(),
            "entry": self.text("entry"),
            "status": status if status in STATUSES else "",
            "since": now - self.window(),
        }
        timeline = await history.find(Query(**query, limit=MOST_IN_TIMELINE))
        size = self.size()
        page = min(self.number("page", 1, least=1), last_page(timeline.count, size))
        rows = timeline.runs[(page - 1) * size : page * size]
        if page * size > MOST_IN_TIMELINE:
            found = await history.find(Query(**query, offset=(page - 1) * size, limit=size))
            rows = found.runs
        part = Part([run.as_json() for run in rows], page, size, timeline.count)
        self.send(
            {
                "now": stamp(now),
                "since": stamp(query["since"]),
                "history": history.about(),
                "timeline": [run.as_json() for run in timeline.runs],
                **part.as_json(),
                "rows": part.rows,
            }
        )


class ContentionData(WindowedData):
    @answering
    async def get(self) -> None:
        history, now = self.desk.history, datetime.now(UTC)
        buckets = await history.contention(now - self.window(), now, BUCKETS)
        self.send(
            {
                "now": stamp(now),
                "history": history.about(),
                "buckets": [
                    {"at": stamp(each.at), "started": each.started, "skipped": dict(each.skipped)}
                    for each in buckets
                ],
            }
        )
