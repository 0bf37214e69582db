"""A real Prometheus, and promtool, which comes with it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from celery_singleton_lock.testing.servers.errors import ServerMissing
from celery_singleton_lock.testing.servers.launch import Command
from celery_singleton_lock.testing.servers.process import Server

REMEDY = "`apt install prometheus`"


def find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ServerMissing(program, REMEDY)
    return found


class PrometheusServer(Server):
    """Scrapes these addresses every second; each is a job of its own name."""

    kind = "prometheus"

    def __init__(self, jobs: Mapping[str, list[str]]) -> None:
        super().__init__()
        self._jobs = jobs

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def query(self, promql: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The value of each series, by its labels."""
        url = f"{self.url}/api/v1/query?{urlencode({'query': promql})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        return {
            tuple(sorted(each["metric"].items())): float(each["value"][1])
            for each in said["data"]["result"]
        }

    def value(self, promql: str) -> float | None:
        """Of one series; None: there is none."""
        found = list(self.query(promql).values())
        assert len(found) < 2, found
        return found[0] if found else None

    def _create_data(self) -> None:
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": targets}]}
                for job, targets in self._jobs.items()
            ],
        }
        # JSON is YAML.
        (self.directory / "prometheus.yml").write_text(json.dumps(config))

    def _command(self) -> Command:
        return Command(
            [
                find("prometheus"),
                f"--config.file={self.directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.data}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ]
        )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
