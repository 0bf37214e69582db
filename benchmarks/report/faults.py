"""What became of each when something died, over several plays of each scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.neighbours.figures import Figure
from benchmarks.results import read

from .ratios import minutes, table, versions

SceneTold = Mapping[str, Any]


def environment() -> str:
    known = read("faults")["environment"]
    return (
        f"*Each was played {known['times']} {'times' if known['times'] > 1 else 'time'},"
        f" {known['when']}, in {minutes(known['seconds'])},"
        f" on {known['cores']} cores with a load of {known['load']:g} before it: the median is told,"
        " and the worst where that is another. Waits ended after 45 seconds."
        f" Python {known['python']}, Valkey {known['valkey']}, {versions(known['packages'])}.*"
    )


def beats() -> str:
    return both("beat_is_killed", "redis_is_away")


def locks() -> str:
    return both("worker_is_killed", "job_outlives_its_lock")


def both(*names: str) -> str:
    return "\n\n".join(f"{scene['doc']}\n\n{scene_table(scene)}" for scene in map(scene_of, names))


def in_short() -> str:
    """Of each kind those that most people use."""
    beats = ("ours", "RedBeat", "stock beat, twice")
    locks = ("ours", "celery-singleton", "celery-once", "celery-heimdall")
    return "\n\n".join(
        [
            joined(("beat_is_killed", "redis_is_away"), beats),
            joined(("worker_is_killed", "job_outlives_its_lock"), locks),
        ]
    )


def joined(names: Sequence[str], subjects: Sequence[str]) -> str:
    rows = [row for name in names for row in figure_rows(scene_of(name), subjects)]
    return table(["", *subjects], rows)


def scene_of(name: str) -> SceneTold:
    return next(scene for scene in read("faults")["scenes"] if scene["name"] == name)


def scene_table(scene: SceneTold) -> str:
    subjects = [row["subject"] for row in scene["rows"]]
    return table(["", *subjects], figure_rows(scene, subjects))


def figure_rows(scene: SceneTold, subjects: Sequence[str]) -> list[list[str]]:
    rows = {row["subject"]: row for row in scene["rows"]}
    return [
        [figure["name"], *(cell(Figure(**figure), rows[subject]) for subject in subjects)]
        for figure in scene["figures"]
    ]


def cell(figure: Figure, row: Mapping[str, Any]) -> str:
    failures = len(row["failures"])
    if not row["values"]:
        return f"failed: {row['failures'][0]}"
    told = figure.told(row["values"][figure.name])
    told = f"**{told}**" if row["subject"] == "ours" else told
    return f"{told} ({failures} plays failed)" if failures else told
