"""What is released has all that is needed, no more, and works without the rest of the repository."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
PACKAGE = "celery_singleton_lock"
SHIPPED = {".py", ".lua", ".sql", ".html", ".css", ".js", ".svg", ".mako", ".typed"}
"""The kinds of files that the package may consist of."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [wheel] = built.glob("*.whl")
    return wheel


def in_the_tree() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", PACKAGE],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a checkout: there is no list of what belongs to the package")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == in_the_tree()
    assert {Path(name).suffix for name in names} <= SHIPPED
    assert f"{PACKAGE}/py.typed" in names
    assert f"{PACKAGE}/leases/redis/acquire.lua" in names


def test_sdist_has_what_a_distribution_builds_and_tests_from(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py"}
    assert wanted <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "docs/_build"))]


SMOKE = """
import celery_singleton_lock, pathlib, sys
place = pathlib.Path(celery_singleton_lock.__file__)
assert place.is_relative_to(sys.argv[1]), place
for name in celery_singleton_lock.__all__:
    getattr(celery_singleton_lock, name)
from celery import Celery
from celery_singleton_lock import SingletonTask, singleton_lock
app = Celery("smoke", broker="memory://", set_as_current=False)
app.conf.singleton_lock_url = "memory://"
@app.task(base=SingletonTask, name="t", shared=False)
def task():
    return 42
assert task.apply().get() == 42
with singleton_lock("key", app=app) as lease:
    lease.ensure_held()
import celery_singleton_lock.leases.redis.scripts
print("works")
"""


def test_wheel_works_without_the_rest_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    # Unpacked and not installed: its dependencies are those of this environment. `make package` has an
    # empty one.
    place = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(place)
    program = f"import sys; sys.path.insert(0, {str(place)!r})\n{SMOKE}"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, str(place)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == ("works\n", 0), ran.stderr


def test_metadata_names_the_commands_and_schedulers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(points).decode()
    assert "singleton = celery_singleton_lock.cli:singleton" in text
    assert "singleton = celery_singleton_lock:SingletonScheduler" in text
