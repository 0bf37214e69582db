"""Listens to facts, and has people told of those they asked for."""

from __future__ import annotations

import socket
from typing import Any

from celery.signals import worker_process_shutdown

from celery_singleton_lock.core import facts
from celery_singleton_lock.settings import Settings

from .alert import alert_of
from .courier import Courier, Deliver
from .mail import Mail
from .templates import TEMPLATES, Sender
from .webhook import Webhook


class Alerting:
    """A listener of facts."""

    def __init__(self, app_name: str, settings: Settings) -> None:
        self._kinds = frozenset(settings.alert_on)
        self.courier = Courier(_deliveries(Sender(app_name, socket.gethostname()), settings))
        # A child of the pool ends without its exit handlers.
        worker_process_shutdown.connect(self._on_shutdown, weak=False)

    def __call__(self, fact: facts.Fact) -> None:
        alert = alert_of(fact)
        if alert is not None and alert.kind in self._kinds:
            self.courier.send(alert)

    def _on_shutdown(self, **_: Any) -> None:
        self.courier.flush()


def _deliveries(sender: Sender, settings: Settings) -> list[tuple[str, Deliver]]:
    deliveries: list[tuple[str, Deliver]] = []
    if settings.alert_webhook is not None:
        template = TEMPLATES[settings.alert_format]
        webhook = Webhook(settings.alert_webhook, template, sender, settings.alert_key)
        deliveries.append(("webhook", webhook))
    if settings.alert_smtp_url is not None:
        from_ = settings.alert_email_from or settings.alert_email[0]
        mail = Mail(settings.alert_smtp_url, settings.alert_email, from_, sender)
        deliveries.append(("mail", mail))
    return deliveries
