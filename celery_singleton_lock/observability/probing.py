"""Is the worker or the beat of this host alive, or ready? Asked from another process: an exec probe."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.leases import open_store
from celery_singleton_lock.settings import Settings

BEAT: Final = "beat"
WORKER: Final = "worker"
_ANY: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # nosec B104 # noqa: S104 - to be asked, not to be bound


@dataclass(frozen=True, slots=True)
class Finding:
    is_well: bool
    reasons: tuple[str, ...]
    asked: str
    """Who was asked."""


def probe_http(address: str, page: str, timeout_s: float) -> Finding:
    """`page`: "livez" or "readyz"."""
    host, _, port = address.rpartition(":")
    url = f"http://{_ANY.get(host, host)}:{port}/{page}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # nosec B310 # http, as above
            status, said = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, said = error.code, error.read()
    except OSError as error:
        return Finding(False, (f"nobody answers: {getattr(error, 'reason', error)}",), url)
    except http.client.HTTPException:
        return Finding(False, ("somebody else answers there, and not in HTTP",), url)
    try:
        reasons = tuple(map(str, json.loads(said)["reasons"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Finding(False, (f"somebody else answers there, with {status}",), url)
    return Finding(status == 200, reasons, url)


def probe_beat(app: Any, settings: Settings) -> Finding:
    """By the heartbeats in the store. Raises `StoreUnavailable`."""
    host = socket.gethostname()
    store = open_store(settings.lock_url, prefix=settings.key_prefix, timeout=settings.store_timeout)
    try:
        members = store.meet(beat_group(app.main or ""), "", timedelta(0)).members
    finally:
        store.close()
    if any(member.startswith(f"{host}:") for member in members):
        return Finding(True, (), "the lease store")
    return Finding(False, (f"no beat of {host} has a heartbeat in the store",), "the lease store")


def probe_worker(app: Any, timeout_s: float) -> Finding:
    """By remote control."""
    host = socket.gethostname()
    try:
        answers = app.control.ping(timeout=timeout_s)
    except Exception as error:  # noqa: BLE001 - of any broker
        reason = f"the broker did not answer: {type(error).__name__}"
        return Finding(False, (reason,), "the broker")
    names = [name for answer in answers for name in answer]
    if any(name.endswith(f"@{host}") for name in names):
        return Finding(True, (), "the broker")
    return Finding(False, (f"no worker of {host} answers a ping",), "the broker")


def probe(
    app: Any,
    settings: Settings,
    *,
    role: str | None,
    is_live: bool,
    address: str | None,
    timeout_s: float,
) -> Finding:
    """Asks the process itself, if it has an address; else whoever knows of it."""
    address = address or settings.http
    if address is not None and not address.endswith(":0"):
        return probe_http(address, "livez" if is_live else "readyz", timeout_s)
    findings = []
    if role in (None, BEAT):
        findings.append(_probe_beat(app, settings, is_live=is_live))
    if role in (None, WORKER) and not any(each.is_well for each in findings):
        findings.append(probe_worker(app, timeout_s))
    well = [each for each in findings if each.is_well]
    if well:
        return well[0]
    reasons = tuple(reason for each in findings for reason in each.reasons)
    return Finding(False, reasons, " and ".join(each.asked for each in findings))


def _probe_beat(app: Any, settings: Settings, *, is_live: bool) -> Finding:
    try:
        return probe_beat(app, settings)
    except StoreUnavailable as error:
        reason = f"the lease store is away: {error.reason}"
        # Whoever waits for the store is alive, and to restart it would help nobody.
        return Finding(is_live, (reason,), "the lease store")
