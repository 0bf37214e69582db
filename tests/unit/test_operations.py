"""What is shipped for Prometheus and Grafana fits the code, and every alert has its page."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.observability.metrics.catalogue import METRICS
from celery_singleton_lock.testing.servers.errors import ServerMissing
from tests.end_to_end.prometheus import find
from tests.support import skip_or_fail

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS = RULES.with_name("alerts_test.yml")
GRAFANA = ROOT / "deploy" / "grafana"
RUNBOOKS = ROOT / "docs" / "runbooks"

ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
SAMPLES = {each.name for each in METRICS if each.kind != "histogram"} | {
    f"{each.name}_{part}"
    for each in METRICS
    if each.kind == "histogram"
    for part in ("bucket", "sum", "count")
}


def expressions(value: Any) -> Iterator[str]:
    """Every query in a dashboard."""
    match value:
        case dict():
            for name, each in value.items():
                if name in ("expr", "query") and isinstance(each, str):
                    yield each
                else:
                    yield from expressions(each)
        case list():
            for each in value:
                yield from expressions(each)


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bsingleton_\w+", text))


def promtool(*arguments: str) -> None:
    try:
        program = find("promtool")
    except ServerMissing as missing:
        skip_or_fail(str(missing))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# Rules


def test_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    promtool("test", "rules", str(RULE_TESTS))


def test_every_alert_is_tested_both_ways() -> None:
    tests = RULE_TESTS.read_text()
    for alert in ALERTS:
        assert f"{{alertname: {alert}, eval_time" in tests, "it is tested not to fire"
        assert f"- alertname: {alert}\n" in tests, "it is tested to fire"


def test_rules_ask_only_for_metrics_that_exist() -> None:
    assert metrics_in(RULES.read_text()) - SAMPLES == set()
    assert metrics_in(RULE_TESTS.read_text()) - SAMPLES == set()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert: str) -> None:
    [page] = [each for each in RUNBOOKS.glob("*.md") if each.read_text().startswith(f"# {alert}\n")]
    assert {"## Look", "## Do"} <= set(page.read_text().splitlines())
    assert f"docs/runbooks/{page.name}" in RULES.read_text().split(f"- alert: {alert}\n")[1]
    index = (RUNBOOKS / "index.md").read_text()
    assert f"- [{alert}]({page.name})" in index
    assert f"\n{page.stem}\n" in index, "it is in the toctree"


def test_runbooks_ask_only_for_metrics_that_exist() -> None:
    known = SAMPLES | {each.name for each in METRICS}
    settings = {"singleton_http", "singleton_lock_url", "singleton_key_prefix", "singleton_slot_ttl"}
    settings |= {"singleton_catch_up", "singleton_start_within"}
    for page in RUNBOOKS.glob("*.md"):
        assert metrics_in(page.read_text()) - known - settings == set(), page.name


# The dashboard


def test_dashboard_is_what_its_maker_makes() -> None:
    made = runpy.run_path(str(GRAFANA / "make.py"))["text"]()
    assert (GRAFANA / "dashboard.json").read_text() == made, "run deploy/grafana/make.py"


def test_dashboard_asks_only_for_metrics_that_exist_and_for_all_of_them() -> None:
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    asked = set().union(*(metrics_in(each) for each in expressions(dashboard)))
    assert asked - SAMPLES == set()
    shown = {each.name for each in METRICS if asked & {each.name, f"{each.name}_bucket"}}
    assert {each.name for each in METRICS} == shown


def unknown_to_grafana(dashboard: Any) -> list[str]:
    """What its own types do not take in, or change."""
    import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    types = import_module("grafana_foundation_sdk.models.dashboard")
    encoder = import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder()
    return list(
        differences(dashboard, json.loads(encoder.encode(types.Dashboard.from_json(dashboard))))
    )


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    match ours:
        case dict() if isinstance(theirs, dict):
            for name, value in ours.items():
                yield from differences(value, theirs.get(name), f"{at}/{name}")
        case list() if isinstance(theirs, list) and len(ours) == len(theirs):
            for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from differences(mine, other, f"{at}/{number}")
        case _ if ours != theirs:
            yield at


def test_dashboard_has_only_what_grafana_knows() -> None:
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    assert unknown_to_grafana(dashboard) == []
    panel = next(each for each in dashboard["panels"] if each["type"] == "timeseries")
    panel["options"]["legend"]["displayMod"] = "table"
    assert len(unknown_to_grafana(dashboard)) == 1, "it is noticed"


def test_panels_have_ids_of_their_own_a_unit_and_the_chosen_source() -> None:
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    ids = [each["id"] for each in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    [source] = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        asked = [panel, *panel["targets"]]
        assert {each["datasource"]["uid"] for each in asked} == {f"${{{source['name']}}}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "ops", "s", "percentunit")
        refs = [each["refId"] for each in panel["targets"]]
        assert len(refs) == len(set(refs))


def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    """Each as a rule: promtool reads no dashboards."""
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    queries = [
        each for each in expressions(dashboard) if "singleton_" in each and "label_values" not in each
    ]
    assert len(queries) > 20
    for macro, value in (("$__rate_interval", "5m"), ("$__range", "3h")):
        queries = [each.replace(macro, value) for each in queries]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))
