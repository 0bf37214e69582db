"""Writes dashboard.json, beside this file: ``python deploy/grafana/make.py``.

A dashboard is too long to be read as JSON, and too alike from panel to panel to be written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHERE = 'instance=~"$instance"'
TASK = ', task=~"$task"'


def graph(title: str, doc: str, unit: str, *queries: tuple[str, str]) -> dict[str, Any]:
    return _panel("timeseries", title, doc, unit, queries) | {
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def stat(title: str, doc: str, query: str, *steps: tuple[float | None, str]) -> dict[str, Any]:
    panel = _panel("stat", title, doc, "short", [(query, "")])
    panel["fieldConfig"]["defaults"]["thresholds"] = {
        "mode": "absolute",
        "steps": [{"value": value, "color": color} for value, color in steps],
    }
    panel["options"] = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return panel


def _panel(kind: str, title: str, doc: str, unit: str, queries: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "title": title,
        "description": doc,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + number), "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
            for number, (query, legend) in enumerate(queries)
        ],
    }


def rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{WHERE}{more}}}[$__rate_interval]))"


def quantile(of: float, metric: str, by: str = "") -> str:
    labels = "le" + (f", {by}" if by else "")
    return (
        f"histogram_quantile({of}, sum by ({labels}) "
        f"(rate({metric}_bucket{{{WHERE}}}[$__rate_interval])))"
    )


def grown(metric: str) -> str:
    """What came in the shown time, also of series that began in it."""
    new = f"sum({metric}{{{WHERE}}} unless {metric}{{{WHERE}}} offset $__range)"
    return f"({new} or vector(0)) + (sum(increase({metric}{{{WHERE}}}[$__range])) or vector(0))"


GOOD, WARN, BAD = "green", "orange", "red"

ROWS: list[tuple[str, int, list[dict[str, Any]]]] = [
    (
        "At a glance",
        4,
        [
            stat(
                "Live beats", "By their heartbeats in the store.",
                f"max(singleton_beat_members{{{WHERE}}})", (None, BAD), (1, WARN), (2, GOOD),
            ),
            stat(
                "Not ready", "Replicas that wait for something: see their /readyz.",
                f"count(singleton_ready{{{WHERE}}} == 0) or vector(0)", (None, GOOD), (1, BAD),
            ),
            stat(
                "Slots missed", "In the shown time. They will not be published.",
                grown("singleton_slots_missed_total"), (None, GOOD), (1, BAD),
            ),
            stat(
                "Dead letters", "In the queue now.",
                f"max(singleton_dead_letters_waiting{{{WHERE}}})", (None, GOOD), (1, WARN),
            ),
            stat(
                "Overdue", "Runs in the shown time that took longer than expect_within.",
                grown("singleton_runs_overdue_total"), (None, GOOD), (1, WARN),
            ),
            stat(
                "In progress", "Runs that go on now.",
                f"sum(singleton_runs_in_progress{{{WHERE}}})", (None, "blue"),
            ),
        ],
    ),
    (
        "Beat",
        8,
        [
            graph(
                "Slots published", "By entry, a second.", "ops",
                (rate("singleton_slots_published_total", "entry"), "{{entry}}"),
            ),
            graph(
                "Lag", "From the time of a slot to its publishing.", "s",
                (quantile(0.5, "singleton_slot_lag_seconds"), "half"),
                (quantile(0.99, "singleton_slot_lag_seconds"), "99 of 100"),
            ),
            graph(
                "Missed, and published again",
                "By reason; again: no worker had started them, or it had died.",
                "ops",
                (rate("singleton_slots_missed_total", "reason"), "missed: {{reason}}"),
                (rate("singleton_slots_published_again_total", "entry"), "not started: {{entry}}"),
                (rate("singleton_runs_published_again_total", "task"), "again: {{task}}"),
                (rate("singleton_runs_left_to_broker_total", "task"), "left to the broker: {{task}}"),
            ),
        ],
    ),
    (
        "Runs",
        8,
        [
            graph(
                "Ended", "Attempts a second, by how they ended.", "ops",
                (rate("singleton_runs_ended_total", "outcome", TASK), "{{outcome}}"),
            ),
            graph(
                "Duration", "Of 95 in 100 attempts, by task.", "s",
                (quantile(0.95, "singleton_run_seconds", "task"), "{{task}}"),
            ),
            graph(
                "Not executed, or later", "Skipped, kept for later, copies, taken over.", "ops",
                (rate("singleton_runs_skipped_total", "reason", TASK), "skipped: {{reason}}"),
                (rate("singleton_runs_kept_total", "reason", TASK), "kept: {{reason}}"),
                (rate("singleton_copies_ignored_total", "task", TASK), "copies: {{task}}"),
                (rate("singleton_runs_taken_over_total", "task", TASK), "over: {{task}}"),
            ),
            graph(
                "Dead letters", "Waiting, and written a second by reason.", "short",
                (f"max(singleton_dead_letters_waiting{{{WHERE}}})", "waiting"),
                (rate("singleton_dead_letters_total", "reason", TASK), "{{reason}}"),
            ),
            graph(
                "Outbox", "Rows by state, and how long the first waits.", "short",
                (f"max by (state) (singleton_outbox{{{WHERE}}})", "{{state}}"),
                (f"max(singleton_outbox_oldest_seconds{{{WHERE}}})", "oldest, in seconds"),
            ),
            graph(
                "Lost for history", "Facts that did not fit while the database was away.", "ops",
                (rate("singleton_history_lost_total", "instance"), "{{instance}}"),
            ),
        ],
    ),
    (
        "Locks",
        8,
        [
            graph(
                "Contention", "Times that somebody else held the lease, by what it is for.", "ops",
                (rate("singleton_lease_acquisitions_total", "kind", ', result="held"'), "{{kind}}"),
            ),
            graph(
                "Asked for", "By answer.", "ops",
                (rate("singleton_lease_acquisitions_total", "result"), "{{result}}"),
                (rate("singleton_lease_takeovers_total", "kind"), "taken over: {{kind}}"),
            ),
            graph(
                "Held and waited for", "95 in 100.", "s",
                (quantile(0.95, "singleton_lease_hold_seconds", "kind"), "held: {{kind}}"),
                (quantile(0.95, "singleton_lease_wait_seconds", "kind"), "waited: {{kind}}"),
            ),
            graph(
                "Renewals, and losses", "A second.", "ops",
                (rate("singleton_lease_renewals_total", "result"), "{{result}}"),
                (rate("singleton_leases_lost_total", "task"), "lost by {{task}}"),
            ),
        ],
    ),
    (
        "Store and replicas",
        8,
        [
            graph(
                "Store calls", "99 in 100, by call.", "s",
                (quantile(0.99, "singleton_store_call_seconds", "call"), "{{call}}"),
            ),
            graph(
                "Store errors", "Calls without an answer, and times that it may have forgotten.", "ops",
                (rate("singleton_store_errors_total", "call"), "{{call}}"),
                (rate("singleton_store_memory_losses_total", "instance"), "forgot: {{instance}}"),
            ),
            graph(
                "Ready", "1 if it is; trouble of beats with the store or the broker.", "short",
                (f"singleton_ready{{{WHERE}}}", "{{instance}}"),
                (f"singleton_trouble{{{WHERE}}}", "{{instance}} waits for the {{part}}"),
            ),
            graph(
                "Last tick", "How long ago a beat ended one.", "s",
                (f"time() - singleton_beat_last_tick_timestamp_seconds{{{WHERE}}}", "{{instance}}"),
            ),
        ],
    ),
]  # fmt: skip


def variable(name: str, label: str, metric: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    at = 0
    for title, height, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": at, "w": WIDTH, "h": 1}})
        at += 1
        width = WIDTH // len(row)
        for number, panel in enumerate(row):
            panels.append(panel | {"gridPos": {"x": number * width, "y": at, "w": width, "h": height}})
        at += height
    return {
        "title": "celery-singleton-lock",
        "uid": "celery-singleton-lock",
        "tags": ["celery"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "type": "datasource",
                    "name": "datasource",
                    "label": "Data source",
                    "query": "prometheus",
                },
                variable("instance", "Replica", "singleton_replica_info"),
                variable("task", "Task", "singleton_runs_started_total"),
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "dashboard.json").write_text(text())
