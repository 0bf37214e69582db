"""Alerts by HTTP. The address may be a secret by itself, and is in no log and no error."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import Final

from .alert import Alert
from .courier import Refused
from .templates import Sender, Template

TIMEOUT_S: Final = 5.0


class Webhook:
    def __init__(self, url: str, template: Template, sender: Sender, key: str | None) -> None:
        self._url = url
        self._template = template
        self._sender = sender
        self._key = key

    def __call__(self, alert: Alert) -> None:
        body = json.dumps(self._template(alert, self._sender, self._key)).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "celery-singleton-lock"}
        request = urllib.request.Request(self._url, body, headers, method="POST")  # nosec B310 # noqa: S310 - checked in the settings
        try:
            answer: HTTPResponse
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # nosec B310 # noqa: S310
                answer.read(1024)
        except urllib.error.HTTPError as error:
            with error:
                if 400 <= error.code < 500 and error.code not in (408, 425, 429):
                    raise Refused(f"it answered {error.code}") from None
            raise
