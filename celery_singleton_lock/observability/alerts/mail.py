"""Alerts by e-mail."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final
from urllib.parse import unquote, urlsplit

from .alert import Alert
from .courier import Refused
from .templates import Sender, details_of

TIMEOUT_S: Final = 10.0


class Mail:
    """`url`: ``smtp://user:password@host:587`` (STARTTLS, if the server has it; always before a login),
    or ``smtps://`` for TLS from the first byte."""

    def __init__(self, url: str, to: Sequence[str], from_: str, sender: Sender) -> None:
        self._parts = urlsplit(url)
        self._to = to
        self._from = from_
        self._sender = sender

    def __call__(self, alert: Alert) -> None:
        try:
            with self._connect() as server:
                server.send_message(self._message(alert))
        except (smtplib.SMTPAuthenticationError, smtplib.SMTPRecipientsRefused) as error:
            raise Refused(type(error).__name__) from None

    def _connect(self) -> smtplib.SMTP:
        parts, host = self._parts, self._parts.hostname or "localhost"
        context = ssl.create_default_context()
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                host, parts.port or 465, timeout=TIMEOUT_S, context=context
            )
        else:
            server = smtplib.SMTP(host, parts.port or 25, timeout=TIMEOUT_S)
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls(context=context)
            elif parts.password:
                server.close()
                raise Refused("the server has no STARTTLS, and the password would be read on the way")
        if parts.password:
            server.login(unquote(parts.username or ""), unquote(parts.password))
        return server

    def _message(self, alert: Alert) -> EmailMessage:
        message = EmailMessage()
        # On one line: a name with a line break must not become another header.
        summary = " ".join(alert.summary.split())
        message["Subject"] = f"[{self._sender.app}] {summary}"[:200]
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain="celery-singleton-lock")
        details = "".join(f"{name}: {value}\n" for name, value in details_of(alert).items())
        message.set_content(
            f"{alert.summary}\n\n{details}severity: {alert.severity}\nat: {alert.at.isoformat()}\n"
            f"host: {self._sender.host}\n"
        )
        return message
