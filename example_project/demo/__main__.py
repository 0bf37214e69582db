"""Starts the server and the shop, tells the story, and says whether all was as promised."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from celery_singleton_lock import SingletonError
from celery_singleton_lock.testing.servers import RedisServer, ServerFailed, ServerMissing

if TYPE_CHECKING:
    from .tale import Tale

LOCK_TTL_S, SLOT_TTL_S = 2, 1.5


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    logging.getLogger("celery_singleton_lock").addHandler(logging.NullHandler())
    # It is killed, not its host: what it wrote is there, and need not be waited for on a busy disk.
    server = RedisServer(persistent=True, options={"appendfsync": "no"})
    try:
        with tempfile.TemporaryDirectory(prefix="shop-") as place, server:
            open_shop(server, Path(place))
            return perform(server, Path(place))
    except KeyboardInterrupt:
        print("\ninterrupted; all that was started is ended")
        return 130
    except (ServerFailed, ServerMissing, SingletonError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1


def open_shop(server: RedisServer, place: Path) -> None:
    """Tell the shop, before it is imported, where its servers are; and make its tables."""
    os.environ |= {
        "SHOP_BROKER_URL": server.url,
        "SHOP_LOCK_URL": server.url,
        "SHOP_DATABASE_URL": f"sqlite:///{place}/shop.sqlite",
        "SHOP_LOCK_TTL": str(LOCK_TTL_S),
        "SHOP_SLOT_TTL": str(SLOT_TTL_S),
    }
    from example_project.__main__ import make_tables

    make_tables()


def perform(server: RedisServer, place: Path) -> int:
    from .crew import Crew
    from .play import Play
    from .stage import DemoFailed, Stage, cell

    print(
        "A shop with 2 beats (b1, b2) and 3 workers (w1, w2, w3), on an embedded Valkey server.\n"
        f"Each second is a slot. {cell('07', 'b1', 'w2')} is that of second 07: "
        "published by b1, executed by w2.\n"
        f"ttls are short here: {LOCK_TTL_S} s for a run, {SLOT_TTL_S} s for a slot. "
        "By default they are 30 s and 3 s."
    )
    with Crew(place) as crew:
        play = Play(crew, Stage(crew), server)
        try:
            code = judge(play.perform())
        except DemoFailed as failure:
            print(f"\nthe demo failed: {failure}", file=sys.stderr)
            return 1
        if sys.stdin.isatty() and sys.stdout.isatty():
            keep_open(play.flower)
        return code


def judge(tale: Tale) -> int:
    from .stage import RED, coloured
    from .tale import faults, summary

    print(f"{summary(tale)}\n")
    wrong = list(faults(tale))
    print("\n".join(coloured(f"WRONG: {fault}", RED) for fault in wrong) or "All as promised.")
    return 1 if wrong else 0


def keep_open(flower: str) -> None:
    """Until Ctrl-C: then all is ended, and that is no failure."""
    print(f"\nThe shop goes on. Look at it in Flower, and end all by Ctrl-C: {flower}", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    sys.exit(main())
