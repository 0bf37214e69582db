"""Puts the pages into Flower, which has no plugins: into its urls, its templates and its states."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from celery import states
from flower import app, urls
from tornado.web import StaticFileHandler, url

from .dead_letters import DeadLettersData, DeadLettersPage, DeleteLetters, LetterData, ReplayLetters
from .heard import CountedEvents
from .locks import LocksData, LocksPage, Unlock
from .metrics import MetricsPage
from .runs import ContentionData, RunsData, RunsPage
from .schedule import EntryData, EntryPage, Pause, Resume, ScheduleData, SchedulePage, Trigger
from .templates import WithOurPages

HERE: Final = Path(__file__).parent
PREFIX: Final = "/singleton"


class Assets(StaticFileHandler):
    """Scripts import each other by plain names, without a version: the browser is to ask each time
    whether they have changed."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Content-Type-Options", "nosniff")


# As `url` objects: of anything else Flower forgets the arguments when it has a url_prefix.
PAGES: Final = [
    url(rf"{PREFIX}/static/(.*)", Assets, {"path": str(HERE / "static")}, name="singleton-static"),
    url(rf"{PREFIX}/schedule", SchedulePage, name="singleton-schedule"),
    url(rf"{PREFIX}/schedule/data", ScheduleData),
    url(rf"{PREFIX}/schedule/pause", Pause),
    url(rf"{PREFIX}/schedule/resume", Resume),
    url(rf"{PREFIX}/schedule/trigger", Trigger),
    url(rf"{PREFIX}/entry", EntryPage, name="singleton-entry"),
    url(rf"{PREFIX}/entry/data", EntryData),
    url(rf"{PREFIX}/locks", LocksPage, name="singleton-locks"),
    url(rf"{PREFIX}/locks/data", LocksData),
    url(rf"{PREFIX}/locks/unlock", Unlock),
    url(rf"{PREFIX}/runs", RunsPage, name="singleton-runs"),
    url(rf"{PREFIX}/runs/data", RunsData),
    url(rf"{PREFIX}/contention/data", ContentionData),
    url(rf"{PREFIX}/dead-letters", DeadLettersPage, name="singleton-dead-letters"),
    url(rf"{PREFIX}/dead-letters/data", DeadLettersData),
    url(rf"{PREFIX}/dead-letters/letter", LetterData),
    url(rf"{PREFIX}/dead-letters/replay", ReplayLetters),
    url(rf"{PREFIX}/dead-letters/delete", DeleteLetters),
]
METRICS: Final = url(r"/metrics", MetricsPage)


def add_pages() -> None:
    if PAGES[0] in urls.handlers:
        return
    # The last one catches all.
    urls.handlers[-1:-1] = PAGES
    # Before Flower's own: the first one that fits is asked.
    urls.handlers.insert(0, METRICS)
    app.Events = CountedEvents
    urls.settings["template_loader"] = WithOurPages(urls.settings["template_path"])
    _rank_our_states()


def _rank_our_states() -> None:
    """By Celery's rank no event turns a FAILURE into a state of one's own, and hardly any turns such a
    state into another. Here a dead letter is what came of the failure, whichever event is first; and a
    run whose lease was lost is started again by its successor."""
    ranks = states.PRECEDENCE_LOOKUP
    ranks["DEAD-LETTERED"] = (ranks[states.SUCCESS] + ranks[states.FAILURE]) / 2
    ranks["LEASE-LOST"] = ranks[states.STARTED]
