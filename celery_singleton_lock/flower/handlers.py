"""What all pages have of Flower: who may look, who may change something, and how that is answered."""

from __future__ import annotations

import functools
import json
import logging
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeGuard, TypeVar

from flower.views import BaseHandler
from tornado import web

from celery_singleton_lock.core.errors import ConfigurationError

from .asking import Answer, NoAnswer
from .desk import Desk, desk_of

logger = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Awaitable[None]])

LONGEST_TEXT: Final = 2000
LARGEST_NUMBER: Final = 10**9
"""Pages and seconds: beyond it is nothing to be seen, and what databases and calendars cannot count."""
SIZES: Final = (25, 50, 100)
_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")


class Handler(BaseHandler):  # type: ignore[misc]
    @property
    def desk(self) -> Desk:
        return desk_of(self.application)

    @property
    def why_not(self) -> str:
        """Why whoever looks at this may change nothing; empty: he may. As for Flower's own buttons."""
        options = self.application.options
        if options.read_only:
            return "Flower is in read only mode."
        if not (options.basic_auth or options.auth) and not self.unauthenticated_api:
            return (
                "Changes need a login, as Flower's own do: start it with --basic-auth or --auth, "
                "or set FLOWER_UNAUTHENTICATED_API=true."
            )
        return ""

    @property
    def who(self) -> str:
        """The user, for the audit: by Flower's authentication, else by where he is."""
        return f"{self._user_name()} in Flower"

    def _user_name(self) -> str:
        if isinstance(self.current_user, str):
            return self.current_user
        if self.application.options.basic_auth:
            # Flower has checked it, and tells only that it is right.
            with suppress(ValueError):
                login = self.request.headers.get("Authorization", "").split()[-1]
                return b64decode(login).decode().partition(":")[0]
        return f"somebody at {self.request.remote_ip}"

    def text(self, name: str, default: str = "") -> str:
        """An argument as it was sent: all that is shown is escaped where it is shown."""
        given = self.get_argument(name, default, escape=False)
        return str(given)[:LONGEST_TEXT]

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        given = self.get_argument(name, default, type=int)
        return min(max(least, int(given)), LARGEST_NUMBER)

    def size(self) -> int:
        return min(self.number("size", SIZES[0], least=1), SIZES[-1])

    def send(self, said: dict[str, Any]) -> None:
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(said))


class Page(Handler):
    """An empty page, at once: its script asks for what is on it, again and again."""

    template: str
    script: str
    tab: str

    @web.authenticated
    def get(self) -> None:
        self.render(
            self.template,
            script=self.script,
            active_tab=self.tab,
            root=self.reverse_url("main").rstrip("/"),
            why_not=self.why_not,
            is_live=bool(self.application.options.auto_refresh),
            asset=lambda name: self.reverse_url("singleton-static", name),
        )


def answering(method: Method) -> Method:
    """Whoever is away is told to the page, in words, and Flower goes on."""

    @functools.wraps(method)
    async def answer(self: Handler, *args: Any) -> None:
        try:
            await method(self, *args)
        except NoAnswer as error:
            self.set_status(503)
            self.send({"error": str(error)})
        except ConfigurationError as error:
            self.set_status(400)
            self.send({"error": str(error)})

    return web.authenticated(answer)  # type: ignore[return-value]


class Data(Handler):
    """What a script asks for, and what it is told when it cannot be had."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        if status_code in (400, 403, 404, 405) and isinstance(error, web.HTTPError):
            self.send({"error": error.get_message() or self._reason})
        else:
            super().write_error(status_code, **kwargs)


class Change(Data):
    """Needs the right that Flower's own buttons need, and a token of a page."""

    def check_xsrf_cookie(self) -> None:
        super().check_xsrf_cookie()
        # Flower asks for it only where there is a session. Who has opened a page has one, though, and a
        # form on another site has none.
        web.RequestHandler.check_xsrf_cookie(self)

    def prepare(self) -> None:
        if self.why_not:
            raise web.HTTPError(403, self.why_not)

    @answering
    async def post(self) -> None:
        try:
            asked = json.loads(self.request.body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise web.HTTPError(400, "The request needs to be a JSON object")
        self.send(await self.change(asked))

    async def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do it, and say what was done: "message" is for people."""
        raise NotImplementedError

    async def do(self, call: Callable[[], Answer]) -> Answer:
        return await self.desk.asking.ask(call)


def given_text(asked: dict[str, Any], name: str, *, required: bool = True) -> str:
    value = asked.get(name) or ""
    if not is_text(value) or (required and not value.strip()):
        raise web.HTTPError(400, f"{name} is missing")
    return value[:LONGEST_TEXT]


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is one that every store can keep: JSON has a way to write what is no Unicode."""
    return isinstance(value, str) and not _UNKEPT.search(value)
