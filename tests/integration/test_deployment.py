"""The files people deploy by are sound: they are read by the tools that will read them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import skip_or_fail

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).parents[2]
PROFILES = ("", "redlock", "rabbitmq", "postgres")
KUSTOMIZATIONS = ("base", "hpa", "keda")
KUBERNETES = "1.32"


def output_of(command: Sequence[str]) -> str:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# Compose


def compose() -> list[str]:
    if shutil.which("docker"):
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
        if plugin.returncode == 0:
            return ["docker", "compose"]
    if not shutil.which("docker-compose"):
        skip_or_fail("docker compose is missing: get its plugin, or `apt install docker-compose`")
    return ["docker-compose"]


@cache
def services(profile: str = "") -> dict[str, Any]:
    command = compose()
    if profile:
        command += ["--env-file", f"deploy/compose/{profile}.env", "--profile", profile]
    read = yaml.safe_load(output_of([*command, "config"]))["services"]
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_reads_the_file_with_every_profile(profile: str) -> None:
    assert {"beat", "worker", "flower", "redis", "prometheus", "grafana"} <= services(profile).keys()


def test_every_container_says_how_it_is_and_comes_back_and_is_not_root() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER [1-9]\d*$", dockerfile, re.MULTILINE)
    for name, service in services().items():
        assert service["restart"] in ("unless-stopped", "on-failure"), name
        assert "healthcheck" in service or name == "database", name
        assert "build" in service or service["user"] not in ("root", "0"), name


def test_every_image_has_a_version() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    images = [service["image"] for service in services().values() if "build" not in service]
    images += re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert [image for image in images if not re.search(r":v?\d+\.\d+", image)] == []


def test_nothing_is_published_beyond_this_machine() -> None:
    for name, service in services().items():
        for port in service.get("ports", []):
            host = port["host_ip"] if isinstance(port, dict) else port.rpartition(":")[0]
            assert host.startswith("127.0.0.1"), (name, port)


def test_profiles_take_the_app_to_other_servers() -> None:
    def told(profile: str, name: str) -> str:
        return str(services(profile)["worker"]["environment"][name])

    assert told("", "SHOP_BROKER_URL") == "redis://redis:6379/0"
    assert told("redlock", "SHOP_LOCK_URL").count("redis://") == 3
    assert told("rabbitmq", "SHOP_BROKER_URL").startswith("amqp://")
    assert told("postgres", "SHOP_DATABASE_URL").startswith("postgresql+psycopg://")
    assert services("postgres").keys() >= {"postgres"}


def test_files_that_containers_are_given_are_in_the_repository() -> None:
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.partition(":")[0]
            if source.startswith((".", "/")):
                assert (ROOT / source).exists(), (name, source)


# Kubernetes


@cache
def manifests(kustomization: str) -> list[dict[str, Any]]:
    if not shutil.which("kubectl"):
        # In CI, too: apt has none that is new enough.
        pytest.skip("kubectl is missing")
    text = output_of(["kubectl", "kustomize", f"deploy/kubernetes/{kustomization}"])
    return [document for document in yaml.safe_load_all(text) if document]


def named(documents: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_manifests_are_valid_for_kubernetes(kustomization: str) -> None:
    for document in manifests(kustomization):
        if document["apiVersion"].startswith("keda.sh/"):
            continue  # no schema of Kubernetes' own: see below
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("kustomization", ["hpa", "keda"])
def test_what_scales_the_workers_is_not_overruled_by_the_deployment(kustomization: str) -> None:
    documents = manifests(kustomization)
    kind = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[kustomization]
    target = named(documents, kind, "worker")["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in named(documents, "Deployment", target)["spec"]


def test_queue_that_is_scaled_by_is_the_one_of_the_broker() -> None:
    documents = manifests("keda")
    [trigger] = named(documents, "ScaledObject", "worker")["spec"]["triggers"]
    [secret] = [each for each in documents if each["kind"] == "Secret"]
    broker = secret["data"]["SHOP_BROKER_URL"]
    assert trigger["type"] == "redis"
    assert trigger["metadata"]["listName"] == "celery"
    at = f"redis://{trigger['metadata']['address']}/{trigger['metadata']['databaseIndex']}"
    assert at == base64.b64decode(broker).decode()


def test_beat_is_a_plain_deployment_of_several_that_never_all_go() -> None:
    documents = manifests("base")
    spec = named(documents, "Deployment", "beat")["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert named(documents, "PodDisruptionBudget", "beat")["spec"]["minAvailable"] == 1
    [container] = spec["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_commands_are_those_of_compose() -> None:
    documents, containers = manifests("base"), services()
    for name in ("beat", "worker", "flower"):
        [container] = named(documents, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        assert container["args"] == containers[name]["command"], name


# Prometheus and Grafana


def test_prometheus_reads_its_configuration() -> None:
    if not shutil.which("promtool"):
        skip_or_fail("promtool is missing: `apt install prometheus`")
    output_of(["promtool", "check", "config", "deploy/prometheus/prometheus.yml"])


def test_grafana_finds_the_source_that_the_dashboard_names() -> None:
    folder = ROOT / "deploy/grafana"
    [source] = yaml.safe_load((folder / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    text = json.dumps(json.loads((folder / "dashboard.json").read_text()))
    uids = set(re.findall(r'"datasource": \{[^}]*"uid": "([^"]+)"', text))
    assert uids - {source["uid"], "-- Grafana --"} <= {"${datasource}", "${DS_PROMETHEUS}"}
