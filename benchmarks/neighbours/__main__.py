"""Play every scene with every subject, several times, print a table, and write it down."""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.chapters import reason_of
from benchmarks.environment import environment, in_a_line
from benchmarks.results import write

from .scenes import SCENES, Counted, Scene
from .subjects import Subject


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    began = time.monotonic()
    known = environment("full")
    print(in_a_line(known))
    chosen = [scene for scene in SCENES if not options.scenes or scene.name in options.scenes]
    played = [play(scene, options.times, options.at_once) for scene in chosen]
    if options.json:
        seconds = round(time.monotonic() - began)
        write(options.json, known | {"seconds": seconds, "times": options.times}, scenes=played)
    print(f"\n{time.monotonic() - began:.0f} s")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    names = [scene.name for scene in SCENES]
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"only these: {', '.join(names)}")
    parser.add_argument("--times", type=int, default=3, help="each of them; 3 by default")
    # They wait, most of the time. What is told of them is in seconds, not in milliseconds.
    parser.add_argument("--at-once", type=int, default=4, help="subjects on the stage; 4 by default")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    return parser.parse_args(arguments)


def play(scene: Scene, times: int, at_once: int) -> dict[str, Any]:
    print(f"\n{inspect.getdoc(scene.play)}", flush=True)
    present = [subject for subject in scene.subjects if subject.is_installed]
    plays: dict[str, list[Counted]] = defaultdict(list)
    failures: dict[str, list[str]] = defaultdict(list)
    for subject, outcome in outcomes(scene, present * times, at_once):
        if isinstance(outcome, Exception):
            failures[subject.name].append(reason_of(outcome))
        else:
            plays[subject.name].append(outcome)
    rows = []
    for subject in scene.subjects:
        row: dict[str, Any] = {
            "subject": subject.name,
            "values": {
                figure.name: [counted[figure] for counted in plays[subject.name]]
                for figure in scene.figures
                if plays[subject.name]
            },
            "failures": failures[subject.name] or ([] if subject in present else ["not installed"]),
        }
        rows.append(row)
        print(f"  {subject.name:28} {in_words(scene, row)}", flush=True)
    return {
        "name": scene.name,
        "doc": inspect.getdoc(scene.play),
        "figures": [figure.as_json() for figure in scene.figures],
        "rows": rows,
    }


def outcomes(
    scene: Scene, cast: Sequence[Subject], at_once: int
) -> Iterator[tuple[Subject, Counted | Exception]]:
    with ThreadPoolExecutor(at_once) as stage:
        playing = {stage.submit(scene.play, subject): subject for subject in cast}
        for play in as_completed(playing):
            error = play.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield playing[play], error or play.result()


def in_words(scene: Scene, row: dict[str, Any]) -> str:
    told = [
        f"{figure.name}: {figure.told(row['values'][figure.name])}"
        for figure in scene.figures
        if row["values"]
    ]
    return ", ".join([*told, *(f"FAILED: {reason}" for reason in row["failures"])])


if __name__ == "__main__":
    sys.exit(main())
