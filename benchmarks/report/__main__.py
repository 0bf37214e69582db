"""Fill the pages and draw the plots, from what was measured last."""

from __future__ import annotations

import sys

from benchmarks.results import read

from .drawing import draw
from .pages import PAGES, ROOT, filled


def main() -> int:
    for path in PAGES:
        path.write_text(filled(path.read_text()))
        print(f"filled {path.relative_to(ROOT)}")
    for plot in read("growth")["plots"]:
        print(f"drew {draw(plot).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
