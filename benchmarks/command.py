"""What the commands of the benchmarks have in common: how much, where to, and what came out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .chapters import Chapter, Pace, Told, tell
from .environment import environment, in_a_line, stay_on_one_core
from .results import write
from .table import HEADING

Chapters = Callable[[Pace], Iterator[Chapter]]


def run(
    program: str, doc: str | None, chapters: Chapters, arguments: Sequence[str] | None = None
) -> tuple[Pace, list[Told]]:
    """Measure all chapters at the pace that is asked for; write them where that is asked for."""
    options = parse(program, doc, arguments)
    pace: Pace = options.pace
    began = time.monotonic()
    stay_on_one_core()
    known = environment(pace)
    print(in_a_line(known))
    print("medians, with the quartiles in brackets; a ratio is of samples of the same round\n")
    print(HEADING)
    told = list(tell(chapters(pace)))
    seconds = round(time.monotonic() - began)
    if options.json:
        chapters_told = [chapter.as_json() for chapter in told]
        write(options.json, known | {"seconds": seconds}, chapters=chapters_told)
    print(f"\n{seconds} s")
    return pace, told


def parse(program: str, doc: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=doc)
    paces = parser.add_mutually_exclusive_group()
    paces.add_argument(
        "--quick", dest="pace", action="store_const", const="quick", help="too short to say anything"
    )
    paces.add_argument(
        "--full", dest="pace", action="store_const", const="full", help="more of everything"
    )
    parser.set_defaults(pace="usual")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    return parser.parse_args(arguments)
