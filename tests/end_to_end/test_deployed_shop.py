"""The shop, started by the very commands of docker-compose.yml, on a Redis with a password: every part
says that it is well, and no part tells the password to anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.testing.servers.launch import Command, launch
from celery_singleton_lock.testing.servers.ports import free_port
from celery_singleton_lock.testing.servers.waiting import holds_within
from tests.support import start_or_skip

pytest.importorskip("flower")
pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("deployed shop")]

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SECRET = "Zq9x-never-to-be-seen"
HEALTHY = SERVICES["beat"]["healthcheck"]["test"][1:]
PARTS = ("beat", "worker", "flower")


class Deployed:
    def __init__(self, place: Path, server: RedisServer) -> None:
        self.place = place
        self.ports = {name: free_port() for name in PARTS}
        self.environment = {
            "SHOP_BROKER_URL": server.url,
            "SHOP_LOCK_URL": server.url,
            "SHOP_DATABASE_URL": f"sqlite:///{place}/shop.sqlite",
            "PYTHONPATH": str(ROOT),
        }

    def command(self, name: str) -> list[str]:
        """As the container has it; Flower's at a port that is free here, and for this host alone."""
        words = [sys.executable, "-m", "celery", "-A", "example_project.app"]
        for word in SERVICES[name]["command"]:
            if word.startswith("--port="):
                word = f"--port={self.ports[name]}"
            words.append(word.replace("0.0.0.0", "127.0.0.1"))
        return words

    def environment_of(self, name: str) -> dict[str, str]:
        # Flower has pages of its own at its port.
        at = {} if name == "flower" else {"SHOP_HTTP": f"127.0.0.1:{self.ports[name]}"}
        return self.environment | at

    def start(self, name: str) -> subprocess.Popen[bytes]:
        start = Command(self.command(name), self.environment_of(name))
        return launch(start, log=self.log_of(name), directory=ROOT)

    def run(self, *words: str, part: str = "beat") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | self.environment_of(part),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def page(self, name: str, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=20) as page:
            return str(page.read().decode())

    def log_of(self, name: str) -> Path:
        return self.place / f"{name}.log"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    server = start_or_skip(RedisServer(password=SECRET))
    deployed = Deployed(tmp_path_factory.mktemp("shop"), server)
    tables = deployed.run("example_project", *SERVICES["database"]["command"])
    assert tables.returncode == 0, tables.stderr
    started = [deployed.start(name) for name in PARTS]
    try:
        yield deployed
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)
        server.stop()


@pytest.mark.parametrize("part", ["beat", "worker"])
def test_health_check_of_the_container_says_that_it_is_well(shop: Deployed, part: str) -> None:
    assert HEALTHY[:3] == ["celery", "-A", "example_project.app"]

    def is_well() -> bool:
        return shop.run(*HEALTHY, part=part).returncode == 0

    assert holds_within(60, is_well), shop.log_of(part).read_text()
    assert shop.page(part, "/livez")
    assert shop.page(part, "/readyz")


def test_flower_answers_where_its_health_is_asked(shop: Deployed) -> None:
    assert "/healthcheck" in SERVICES["flower"]["healthcheck"]["test"][-1]
    assert holds_within(60, lambda: _answers(shop, "/healthcheck")), shop.log_of("flower").read_text()


def _answers(shop: Deployed, path: str) -> bool:
    try:
        return bool(shop.page("flower", path))
    except OSError:
        return False


COMMANDS = ("doctor", "locks --json", "schedule list", "outbox status", "db current", "watch --once")
PAGES = (
    "/singleton/schedule/data",
    "/singleton/locks/data",
    "/singleton/runs/data",
    "/tasks",
    "/broker",
)


def test_password_of_the_servers_is_told_to_nobody(shop: Deployed) -> None:
    assert holds_within(60, lambda: '"succeeded"' in shop.run(*_ours("runs --json")).stdout)
    with ThreadPoolExecutor(3) as threads:
        said = threads.map(lambda command: _said(shop.run(*_ours(command))), COMMANDS)
        told = dict(zip(COMMANDS, said, strict=True))
    for part in ("beat", "worker"):
        told |= {f"{part} {path}": shop.page(part, path) for path in ("/metrics", "/readyz")}
    told |= {path: shop.page("flower", path) for path in PAGES}
    told |= {part: shop.log_of(part).read_text() for part in PARTS}
    assert [where for where, text in told.items() if SECRET in text] == []
    assert all(told.values()), "something said nothing at all"


def test_password_is_not_told_when_the_server_refuses_it(shop: Deployed) -> None:
    refused = shop.environment["SHOP_LOCK_URL"].replace("Zq9x", "Zq9x0")
    wrong = shop.environment | {"SHOP_LOCK_URL": refused}
    said = subprocess.run(
        [sys.executable, "-m", *_ours("locks")],
        cwd=ROOT, env=os.environ | wrong, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 3, said.stderr
    assert "Zq9x" not in _said(said)


def test_doctor_finds_nothing_worse_than_a_warning(shop: Deployed) -> None:
    said = shop.run(*_ours("doctor --json"))
    findings: Any = json.loads(said.stdout)
    assert said.returncode == 0, findings


def _ours(command: str) -> list[str]:
    return ["celery", "-A", "example_project.app", "singleton", *command.split()]


def _said(ran: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in ran.stderr
    return ran.stdout + ran.stderr
