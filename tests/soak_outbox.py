"""Ten thousand rows through an outbox whose relays are killed at every step, on each database."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from celery_singleton_lock.testing.servers import MariaDBServer, PostgresServer, RedisServer
from tests.end_to_end.outbox_deaths import STEPS, Deaths
from tests.integration.ledgers import empty_ledger


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_outbox", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--deaths", type=int, default=10 * len(STEPS))
    options = parser.parse_args()
    with RedisServer() as broker, tempfile.TemporaryDirectory() as place:
        soak(f"sqlite:///{place}/outbox.db", broker, Path(place), options)
        for server in (PostgresServer(), MariaDBServer()):
            with server:
                soak(server.url, broker, Path(place), options)
    return 0


def soak(url: str, broker: RedisServer, place: Path, options: Any) -> None:
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    began = time.monotonic()
    deaths = Deaths(place, url, broker.url, broker)
    deaths.send(options.rows)
    with deaths.worker():
        deaths.relay(batch=100, deaths=options.deaths, within=600)
        deaths.wait_for(options.rows, within=600)
    deaths.judge(options.rows)
    deaths.close()
    for name in deaths.environment:
        os.environ.pop(name)
    took = time.monotonic() - began
    print(
        f"{deaths.engine.name}: {options.rows} rows, {options.deaths} relays killed, each row once: "
        f"{took:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
