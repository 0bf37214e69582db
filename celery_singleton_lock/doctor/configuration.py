"""Checks of what is set: no server is asked."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta
from typing import Final
from urllib.parse import unquote

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.settings.urls import scheme_of

from .findings import NotApplicable, Trouble, check, problem, some, warning
from .patient import Patient

_WITHOUT_TLS: Final = {
    "redis": "rediss://",
    "sentinel": "sentinels://",
    "redis+cluster": "rediss+cluster://",
    "amqp": "amqps://",
    "pyamqp": "amqps://",
}


@check("settings-readable")
def settings_can_be_read(patient: Patient) -> Iterator[Trouble]:
    """The settings can be read."""
    try:
        _ = patient.settings
    except ConfigurationError as error:
        yield problem(str(error), "correct it: beat and workers do not start with it")


@check("settings-eager")
def tasks_are_sent(patient: Patient) -> Iterator[Trouble]:
    """Tasks are sent to workers."""
    if patient.conf.task_always_eager:
        yield problem(
            "task_always_eager is on: calls run in their caller, without a lock and without a queue",
            "set it in tests only",
        )


@check("settings-timezone")
def replicas_agree_on_the_time_zone(patient: Patient) -> Iterator[Trouble]:
    """All replicas read a crontab in the same time zone."""
    if not patient.conf.enable_utc and not patient.conf.timezone:
        yield problem(
            "enable_utc is off and timezone is not set, so each host uses its own time zone: replicas "
            "on two hosts can disagree on when a crontab is due",
            'set timezone, for example timezone = "Europe/Berlin"',
        )


@check("settings-without-effect")
def no_setting_is_without_effect(patient: Patient) -> Iterator[Trouble]:
    """No setting is set that has no effect here."""
    if patient.conf.beat_cron_starting_deadline is not None:
        yield warning(
            "beat_cron_starting_deadline is not read by this scheduler",
            "use singleton_catch_up and singleton_catch_up_window, or catch_up of an entry",
        )


@check("settings-pickle")
def messages_are_no_programs(patient: Patient) -> Iterator[Trouble]:
    """A message cannot bring code along."""
    accepted = {str(each).rpartition("/")[2] for each in patient.conf.accept_content or ()}
    if accepted & {"pickle", "x-python-serialize"}:
        yield warning(
            "accept_content takes pickle: whoever can write to the broker can run code in your workers",
            'accept_content = ["json"], once no message is pickled any more',
        )


@check("settings-http")
def metrics_are_served_to_this_host_only(patient: Patient) -> Iterator[Trouble]:
    """Metrics and health are served to this host only."""
    address = patient.settings.http
    if address is None:
        raise NotApplicable("singleton_http is not set")
    host = address.rpartition(":")[0]
    if not is_local(host):
        yield warning(
            f"singleton_http = {address!r} serves metrics and health to whoever reaches that address, "
            "without a password",
            "listen on 127.0.0.1, or let a firewall or a network policy guard the port",
        )


@check("settings-tls")
def servers_elsewhere_are_reached_by_tls(patient: Patient) -> Iterator[Trouble]:
    """What goes to a server on another host is encrypted."""
    for setting, url in _urls(patient):
        better = _WITHOUT_TLS.get(scheme_of(url))
        if setting == "broker_url" and patient.conf.broker_use_ssl:
            continue
        if better is not None and _distant_hosts(url):
            yield warning(
                f"{setting} = {redact(url)} is not encrypted: passwords and arguments can be read on "
                "the way",
                f"use {better}, unless the network itself is encrypted",
            )


@check("settings-passwords")
def servers_elsewhere_need_a_password(patient: Patient) -> Iterator[Trouble]:
    """A server on another host asks for a password."""
    for setting, url in _urls(patient):
        if scheme_of(url) not in (*_WITHOUT_TLS, "rediss", "sentinels", "amqps"):
            continue
        login = url.partition("://")[2].rpartition("@")[0]
        user, _, password = login.partition(":")
        if not _distant_hosts(url):
            continue
        if not password:
            yield problem(
                f"{setting} = {redact(url)} has no password: whoever reaches the server can take every "
                "lock, and send every task",
                "give the server one (requirepass, or an ACL), and put it into the URL",
            )
        elif (unquote(user), unquote(password)) == ("guest", "guest"):
            yield problem(
                f"{setting} = {redact(url)} logs in as guest, with the password everybody knows",
                "make a user of your own on RabbitMQ, and remove guest",
            )


@check("settings-result-expiry")
def results_live_as_long_as_runs_are_remembered(patient: Patient) -> Iterator[Trouble]:
    """A result is kept for as long as its run is remembered."""
    backend = str(patient.conf.result_backend or "")
    if not backend or backend.startswith(("disabled", "rpc")):
        raise NotApplicable("results are not kept")
    expires = patient.conf.result_expires
    span = expires if isinstance(expires, timedelta) else timedelta(seconds=float(expires or 0))
    if timedelta(0) < span < patient.settings.remember_for:
        yield warning(
            f"results are gone after {span} (result_expires), while a finished run is remembered for "
            f"{patient.settings.remember_for}: a copy that comes late is not executed, and whoever "
            "waits for its result waits for ever",
            "raise result_expires to singleton_remember_for or more",
        )


@check("settings-catch-up")
def rare_entries_are_caught_up(patient: Patient) -> Iterator[Trouble]:
    """An entry that is due seldom is caught up after a long outage."""
    from celery_singleton_lock.beat.entry import grid_for

    rare = []
    for name, entry in patient.contents.entries.items():
        if (entry.catch_up or patient.settings.catch_up) == "none":
            continue
        window = entry.catch_up_window or patient.settings.catch_up_window
        grid = grid_for(entry)
        first = grid.next(patient.store.now())
        second = grid.next(first) if first else None
        if first and second and second - first > window:
            rare.append(name)
    if rare:
        yield warning(
            f"these entries are due more seldom than the catch-up window is long: {some(rare)}. If no "
            "beat runs for longer than the window, their slot is missed, and the next one is far away",
            "give them a longer catch_up_window",
        )


def is_local(host: str) -> bool:
    """Whether a host is this one."""
    host = host.strip("[]").lower()
    if host in ("", "localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _distant_hosts(url: str) -> list[str]:
    place = url.partition("://")[2].rpartition("@")[2]
    hosts = place.partition("/")[0].partition("?")[0].replace(";", ",").split(",")
    names = [host.rpartition(":")[0] if ":" in host else host for host in hosts]
    return [name for name in names if not is_local(name)]


def _urls(patient: Patient) -> Iterator[tuple[str, str]]:
    yield from (("broker_url", url) for url in patient.brokers)
    backend = patient.conf.result_backend
    if isinstance(backend, str) and "://" in backend:
        yield "result_backend", backend
    lock_url = patient.settings.lock_url
    for url in (lock_url,) if isinstance(lock_url, str) else lock_url:
        if url not in patient.brokers:
            yield "singleton_lock_url", url
