"""The files in which measurements are kept, for pages and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "docs" / "benchmarks"

Results = Mapping[str, Any]
"""`environment`, and `chapters`, `plots` or `scenes`."""


def write(path: Path, environment: Mapping[str, Any], **sections: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment, **sections}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n")


def read(name: str, folder: Path = FOLDER) -> Results:
    results: Results = json.loads((folder / f"{name}.json").read_text())
    return results
