"""An outbox whose relays are killed at every step of theirs, and a worker that counts what arrives.

Also a program: it relays, and its children die as they are told to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from celery import Celery
from sqlalchemy.orm import Session

from celery_singleton_lock import SingletonTask, outbox
from celery_singleton_lock.outbox import OutboxRow, Relay
from celery_singleton_lock.recovery.outbox import claiming
from celery_singleton_lock.testing.servers import RedisServer

STEPS = ("claimed", "sending", "published", "recorded", "committed")
KEYS = 7
EFFECTS = "effects:"


def make_app() -> Any:
    """Of this process, from its environment."""
    app = Celery("deaths", broker=os.environ["BROKER"])
    app.conf.update(
        singleton_outbox_url=os.environ["DATABASE"],
        singleton_lock_url=os.environ["NOTES"],
        singleton_key_prefix=os.environ["PREFIX"],
        # A second for relays, or lanes of dead ones are long in coming back. A worker is not hurt here.
        singleton_lock_ttl=float(os.environ.get("LOCK_TTL", "1")),
        singleton_slot_ttl=0.5,
        task_default_queue=os.environ["PREFIX"],
        worker_hijack_root_logger=False,
    )
    return app


def effect(number: int, key: str) -> None:
    import redis

    client: Any = redis.Redis.from_url(os.environ["NOTES"])
    client.rpush(EFFECTS + os.environ["PREFIX"], json.dumps([number, key]))


# In the processes that are hurt


def relay_and_die(batch: int, deaths: int) -> None:
    """Each child in turn dies at a step, at its first or a later batch. At last one lives."""
    vars(claiming)["BATCH"] = batch
    app = make_app()
    for number in range(deaths):
        if os.fork() == 0:
            relay_until(app, STEPS[number % len(STEPS)], 1 + number // len(STEPS) % 2)
        _, status = os.wait()
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    relay = Relay(app)
    # Some lanes are still the dead's, where only time frees them.
    while outbox_of_process(app).status().pending:
        relay.drain()
        time.sleep(0.05)
    relay.close()


def relay_until(app: Any, step: str, times: int) -> None:
    seen: Counter[str] = Counter()

    def die(reached: str) -> None:
        seen[reached] += 1
        if reached == step and seen[step] == times:
            os.kill(os.getpid(), signal.SIGKILL)

    relay = Relay(app, on_step=die)
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        relay.drain()
        time.sleep(0.02)
    os._exit(1)


def outbox_of_process(app: Any) -> Any:
    from celery_singleton_lock.recovery.outbox.reading import Outbox
    from celery_singleton_lock.settings import Settings

    return Outbox(Settings.from_app(app))


# In the process that looks on


class Deaths:
    def __init__(self, place: Path, database_url: str, broker_url: str, notes: RedisServer) -> None:
        self.place = place
        self.prefix = f"deaths-{uuid.uuid4().hex}"
        self.notes = notes
        self.environment = {
            "DATABASE": database_url,
            "BROKER": broker_url,
            "NOTES": notes.url,
            "PREFIX": self.prefix,
        }
        os.environ.update(self.environment)
        self.app = make_app()
        self.effect: Any = self.app.task(base=SingletonTask, name="deaths.effect", shared=False)(effect)
        self.engine = sa.create_engine(database_url)

    def send(self, rows: int, in_each: int = 50) -> None:
        for begin in range(0, rows, in_each):
            with Session(self.engine) as session, session.begin():
                for number in range(begin, min(rows, begin + in_each)):
                    key = f"k{number % KEYS}" if number % 2 else None
                    outbox.send(session, self.effect, (number, key or ""), key=key)

    def relay(self, batch: int, deaths: int, within: float = 100) -> None:
        command = [sys.executable, "-m", __name__, "relay", str(batch), str(deaths)]
        subprocess.run(command, env=os.environ | self.environment, check=True, timeout=within)

    @contextmanager
    def worker(self) -> Iterator[None]:
        """One thread, so that the order of effects is that of the queue."""
        command = [sys.executable, "-m", "celery", "-A", f"{__name__}:worker_app", "worker"]
        command += ["-P", "threads", "-c", "1", "-l", "WARNING", "--without-gossip", "--without-mingle"]
        with (self.place / "worker.log").open("wb") as log:
            environment = os.environ | self.environment | {"LOCK_TTL": "30"}
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def effects(self) -> list[tuple[int, str]]:
        client: Any = self.notes.connect()
        return [tuple(json.loads(each)) for each in client.lrange(EFFECTS + self.prefix, 0, -1)]

    def wait_for(self, rows: int, within: float = 60) -> None:
        give_up_at = time.monotonic() + within
        while len({number for number, _ in self.effects()}) < rows:
            assert time.monotonic() < give_up_at, (self.place / "worker.log").read_text()
            time.sleep(0.1)

    def pending(self) -> int:
        with Session(self.engine) as session:
            query = sa.select(sa.func.count()).where(
                OutboxRow.prefix == self.prefix, OutboxRow.state != "published"
            )
            return session.scalar(query) or 0

    def judge(self, rows: int) -> None:
        """Each had its effect, once, and those of a key in the order in which they were committed."""
        effects = self.effects()
        assert Counter(number for number, _ in effects) == Counter(range(rows))
        for key in {key for _, key in effects if key}:
            numbers = [number for number, at in effects if at == key]
            assert numbers == sorted(numbers), key
        assert self.pending() == 0

    def close(self) -> None:
        self.engine.dispose()
        self.app.close()


if "PREFIX" in os.environ:
    worker_app = make_app()
    worker_app.task(base=SingletonTask, name="deaths.effect")(effect)


if __name__ == "__main__":
    relay_and_die(int(sys.argv[2]), int(sys.argv[3]))
