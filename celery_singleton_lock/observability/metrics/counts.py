"""What is counted in a process, and in the children that it forks.

A child of a pool writes its numbers into a file of its own, in a directory of its parent, as they
change: what it counted before it was killed is there. The parent adds up the living, and takes over
what the dead have left, so that there are never more files than children. prometheus_client could do
most of this, but in one directory for all that uses it in a process, named by the environment, and with
the files of the dead kept for ever.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Final

from prometheus_client.mmap_dict import MmapedDict

from .catalogue import BY_NAME, Metric

logger = logging.getLogger(__name__)

Labels = tuple[str, ...]
Key = tuple[str, Labels, str]
"""Name of the metric, values of its labels, and the part: "" but for histograms, which have "sum", and
the upper bound of a bucket (not of those below it) as text."""
Rows = dict[Key, float]

SUM: Final = "sum"
SIZE: Final = 1 << 20
"""Of a file: some thousands of numbers. It grows where there are more."""
ABOVE: Final = "+Inf"


class Counts:
    """Any thread may count, and any process forked from this one. Reading is for the parent."""

    def __init__(self) -> None:
        self._begin()
        self._directory: Path | None = None
        self._maker = 0
        self._reading = Lock()
        itself = weakref.ref(self)

        def begin_in_child() -> None:
            if (counts := itself()) is not None:
                counts._begin()

        os.register_at_fork(after_in_child=begin_in_child)

    def _begin(self) -> None:
        self._rows: Rows = {}
        # Another thread may have had it when the process forked.
        self._counting = Lock()
        self._file: _File | None = None
        self._is_alone = False

    def share(self) -> None:
        """Call it before forking: what children count is to be read here."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="celery-singleton-metrics-"))
            self._maker = os.getpid()

    def close(self) -> None:
        """Remove what was shared. In a child, nothing."""
        if self._directory is not None and self._maker == os.getpid():
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # Counting

    def add(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        with self._counting:
            self._add((metric.name, labels, ""), by)

    def set(self, metric: Metric, *labels: str, to: float) -> None:
        with self._counting:
            key = (metric.name, labels, "")
            self._rows[key] = 0.0
            self._add(key, to)

    def observe(self, metric: Metric, *labels: str, value: float) -> None:
        at = bisect_left(metric.buckets, value)
        bound = str(metric.buckets[at]) if at < len(metric.buckets) else ABOVE
        with self._counting:
            self._add((metric.name, labels, bound), 1.0)
            self._add((metric.name, labels, SUM), value)

    def _add(self, key: Key, by: float) -> None:
        value = self._rows[key] = self._rows.get(key, 0.0) + by
        if self._directory is not None and self._maker != os.getpid():
            if self._file is None and not self._is_alone:
                self._file = self._new_file(self._directory)
            if self._file is not None:
                self._file.write(key, value)

    def _new_file(self, directory: Path) -> _File | None:
        try:
            return _File(directory)
        except OSError as error:
            self._is_alone = True
            logger.warning("metrics_not_shared directory=%r reason=%s", str(directory), error)
            return None

    # Reading

    def read(self) -> Rows:
        """All that was counted here and in the children, the dead ones too."""
        with self._reading:
            of_the_living: list[Rows] = []
            for path in self._files():
                with _opened(path) as (rows, is_dead):
                    if is_dead:
                        self._inherit(rows)
                        path.unlink(missing_ok=True)
                    else:
                        of_the_living.append(rows)
            with self._counting:
                total = dict(self._rows)
        for rows in of_the_living:
            for key, value in rows.items():
                total[key] = total.get(key, 0.0) + value
        return total

    def _files(self) -> list[Path]:
        return [] if self._directory is None else sorted(self._directory.glob("*.db"))

    def _inherit(self, rows: Rows) -> None:
        with self._counting:
            for key, value in rows.items():
                # What the dead had in hand is not in hand any more.
                left = 0.0 if BY_NAME[key[0]].kind == "gauge" else value
                self._rows[key] = self._rows.get(key, 0.0) + left


class _File:
    """Of one child. It is locked as long as the child lives, whatever ends it."""

    def __init__(self, directory: Path) -> None:
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._names: dict[Key, str] = {}
        place = directory / f"{name}.new"
        self._locked: IO[bytes] = place.open("w+b")
        # Taken now: to write into a mapped file on a full disk would kill the process.
        os.posix_fallocate(self._locked.fileno(), 0, SIZE)
        self._numbers = MmapedDict(str(place))
        fcntl.flock(self._locked, fcntl.LOCK_EX)
        # Only now can the parent find it: one that is not locked is that of a dead child.
        place.rename(directory / f"{name}.db")

    def write(self, key: Key, value: float) -> None:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = json.dumps(key)
        self._numbers.write_value(name, value, 0.0)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Rows, bool]]:
    """What is written there, and whether nobody will write any more."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_dead = True
        except BlockingIOError:
            is_dead = False
        yield dict(_rows(path)), is_dead


def _rows(path: Path) -> Iterator[tuple[Key, float]]:
    for text, value, *_ in MmapedDict.read_all_values_from_file(str(path)):
        name, labels, part = json.loads(text)
        yield (name, tuple(labels), part), value
