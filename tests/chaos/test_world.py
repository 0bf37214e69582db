"""Short trials, from fixed seeds. Long ones are `make soak`; what is judged is in checker.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_singleton_lock.testing.servers import ServerMissing
from tests.support import skip_or_fail

from .faults import StoreKind
from .report import write_report
from .trial import run_trial

pytestmark = [
    # One after the other: each has a dozen processes, and is a judge of time.
    pytest.mark.xdist_group("chaos"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize(("store", "seed", "seconds"), [("redis", 1, 12.0)])
def test_no_promise_is_broken(tmp_path: Path, store: StoreKind, seed: int, seconds: float) -> None:
    try:
        trial = run_trial(tmp_path, store, seed, seconds)
    except ServerMissing as missing:
        skip_or_fail(str(missing))
    write_report(trial, tmp_path / "report.html")
    assert not trial.violations, f"see {tmp_path}/report.html\n" + "\n".join(map(str, trial.violations))
    counts = trial.counts()
    assert counts["faults"] >= 5
    assert counts["runs executed"] >= 20
