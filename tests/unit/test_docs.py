"""The documentation is true: its Python runs, and every public name and setting is in it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_singleton_lock
from celery_singleton_lock.settings import describe
from celery_singleton_lock.testing.servers import RedisServer
from tests.support import start_or_skip

ROOT = Path(__file__).parents[2]
ADDRESS_IN_PAGES = "redis://localhost:6379/0"


def python_of(page: Path) -> str:
    """All Python of a page as one program, each line on the line where the page has it."""
    lines, in_python = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            in_python = line.startswith("```python")
            line = ""
        lines.append(line if in_python else "")
    return "\n".join(lines)


PAGES = [
    page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if python_of(page).strip()
]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = start_or_skip(RedisServer())
    yield server
    server.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_page_runs(page: Path, server: RedisServer, tmp_path: Path) -> None:
    program = python_of(page).replace(ADDRESS_IN_PAGES, server.url)
    # Named after the page and in its lines, so that a traceback points there; and not quite like it, so
    # that no package is hidden.
    script = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    script.write_text(program)
    is_test_module = "class Test" in program
    command = [sys.executable, *(["-m", "pytest", "-q"] if is_test_module else []), str(script)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", celery_singleton_lock.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"\b{name}\b", (ROOT / "docs/reference.md").read_text())


def test_every_setting_is_in_the_table_of_settings() -> None:
    table = runpy.run_path(str(ROOT / "docs/conf.py"))["myst_substitutions"]["settings_table"]
    assert [each.name for each in describe() if f"| `{each.name}`" not in table] == []
    assert "{{ settings_table }}" in (ROOT / "docs/settings.md").read_text()


def test_pictures_are_those_that_the_script_draws() -> None:
    images = ROOT / "docs/images"
    for name, draw in runpy.run_path(str(images / "make.py"))["PICTURES"].items():
        assert (images / name).read_text() == str(draw()), "run docs/images/make.py"
