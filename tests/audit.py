"""`make lint` asks whether a weakness is known of what this package needs.

What is found is a failure where `CI=true` is set, and elsewhere a warning: a weakness that became known
last night is no fault of today's change. Where PyPI's data is out of reach, it says so.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from tempfile import NamedTemporaryFile
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE: Final = "celery-singleton-lock"
# What users may install; what only tests and lint need never runs in their production.
EXTRAS: Final = ("django", "flower", "ledger", "metrics", "mysql", "postgres", "tracing")
# What pip-audit asks for, of one that we surely need: some mirrors have the packages, and not this.
REACHABLE: Final = f"https://pypi.org/pypi/celery/{version('celery')}/json"


def main() -> int:
    if not is_reachable():
        _say("NOT ASKED: PyPI's data on known weaknesses is out of reach here")
        return 0
    needed = dict(sorted(installed(PACKAGE, EXTRAS)))
    answers = ask(needed)
    weak = [answer for answer in answers if answer.get("vulns")]
    for answer in weak:
        for weakness in answer["vulns"]:
            mended = ", ".join(weakness["fix_versions"]) or "no version yet"
            _say(f"{answer['name']} {answer['version']}: {weakness['id']}, mended in {mended}")
    if unknown := [answer["name"] for answer in answers if "skip_reason" in answer]:
        _say(f"nothing is known of {', '.join(unknown)}")
    _say(f"{len(weak)} of {len(needed)} packages have a known weakness")
    return int(bool(weak) and os.environ.get("CI") == "true")


def installed(name: str, extras: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Name and version of all that the package needs with these extras, however indirectly."""
    asked: set[tuple[str, str]] = set()
    queue = [(name, extra) for extra in ("", *extras)]
    while queue:
        wanted = queue.pop()
        if wanted in asked:
            continue
        asked.add(wanted)
        try:
            found = distribution(wanted[0])
        except PackageNotFoundError:
            continue
        if canonicalize_name(wanted[0]) != name:
            yield canonicalize_name(wanted[0]), found.version
        for requirement in map(Requirement, found.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted[1]}):
                queue += [(requirement.name, extra) for extra in ("", *requirement.extras)]


def is_reachable() -> bool:
    try:
        with urllib.request.urlopen(REACHABLE, timeout=5) as answer:
            return "vulnerabilities" in json.load(answer)
    except (OSError, ValueError):
        return False


def ask(needed: dict[str, str]) -> list[dict[str, Any]]:
    with NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write("".join(f"{name}=={version}\n" for name, version in needed.items()))
        pinned.flush()
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
        command += ["--no-deps", "--disable-pip", "--requirement", pinned.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        raise SystemExit(f"pip-audit failed:\n{done.stderr}") from None
    return answers


def _say(line: str) -> None:
    print(f"audit: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
