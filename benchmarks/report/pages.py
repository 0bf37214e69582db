"""Pages with places that are filled from what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from . import faults, growth, ratios

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "compared.md", ROOT / "README.md")
PLACE: Final = re.compile(r"(<!-- measured: (?P<name>[\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Text = Callable[[], str]
TEXTS: Final[Mapping[str, Text]] = {
    "promises environment": ratios.environment_of("promises"),
    "promises": ratios.promises,
    "misses": ratios.misses,
    "beside environment": ratios.environment_of("beside"),
    "beside": ratios.beside,
    "growth environment": ratios.environment_of("growth"),
    "growth": growth.plots,
    "faults environment": faults.environment,
    "faults of beats": faults.beats,
    "faults of locks": faults.locks,
    "faults in short": faults.in_short,
}


def filled(page: str) -> str:
    """The page, with all its places filled. A place that nobody knows is an error."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TEXTS[place['name']]()}\n\n{place[3]}", page)
