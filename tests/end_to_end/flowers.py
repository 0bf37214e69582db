"""Real Flowers, and a real browser that looks at them."""

from __future__ import annotations

import http.client
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from celery_singleton_lock.testing.servers.launch import Command
from celery_singleton_lock.testing.servers.process import Server
from tests.support import skip_or_fail

# Pages ask every two seconds, and for letters every five.
expect.set_options(timeout=20_000)

ROOT = Path(__file__).parents[2]
CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SHOP = """
from tests.end_to_end.flower_shop import open_shop
app = open_shop({redis!r}, {customers}, {database!r})
"""
FLOWERCONFIG = """
from celery_singleton_lock.flower import install
install()
"""


class FlowerServer(Server):
    """Flower on the shop. `stock`: started as its own users do, with two lines of a flowerconfig."""

    kind = "flower"

    def __init__(
        self,
        redis: str,
        *options: str,
        customers: int = 0,
        database: str | None = None,
        stock: bool = False,
        prefix: str = "",
        may_change: bool = True,
        okta: str | None = None,
    ) -> None:
        """`okta`: the address of a provider of logins."""
        super().__init__()
        self._redis = redis
        self._options = options
        self._customers = customers
        self._database = database
        self._stock = stock
        self._prefix = prefix
        self._may_change = may_change
        self._okta = okta

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._prefix}"

    def _create_data(self) -> None:
        shop = SHOP.format(redis=self._redis, customers=self._customers, database=self._database)
        (self.data / "shop.py").write_text(shop)
        if self._stock:
            (self.data / "flowerconfig.py").write_text(FLOWERCONFIG)

    def _command(self) -> Command:
        how = ["flower", "--conf=flowerconfig.py"] if self._stock else ["singleton", "flower"]
        where = [f"--port={self.port}", "--address=127.0.0.1"]
        prefix = [f"--url_prefix={self._prefix.strip('/')}"] if self._prefix else []
        return Command(
            [sys.executable, "-m", "celery", "--workdir", str(self.data), "-A", "shop",
             *how, *where, *prefix, *self._login(), *self._options],
            environment={
                "PYTHONPATH": f"{ROOT}:{self.data}",
                "FLOWER_UNAUTHENTICATED_API": "true" if self._may_change else "false",
                "FLOWER_OAUTH2_OKTA_BASE_URL": self._okta or "",
            },
        )  # fmt: skip

    def _login(self) -> list[str]:
        if self._okta is None:
            return []
        return [
            "--auth_provider=flower.views.auth.OktaLoginHandler",
            "--oauth2_key=shop",
            "--oauth2_secret=s3cret",
            f"--oauth2_redirect_uri={self.url}/login",
        ]

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/healthcheck")[0] == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        return self._log()

    def ask(
        self, method: str, path: str, body: str | bytes | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Without a browser: status, text and headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, self._prefix + path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()


@contextmanager
def browsing() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        skip_or_fail("chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody at a page, who notices what must never happen there."""

    def __init__(self, browser: Browser, flower: FlowerServer, **context: Any) -> None:
        self.flower = flower
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(20_000)
        self.page: Page = self.context.new_page()
        self.troubles: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("dialog", self._be_alerted)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.on("console", self._hear)

    def _be_alerted(self, dialog: Dialog) -> None:
        self.troubles.append(dialog.message)
        dialog.dismiss()

    def _hear(self, message: Any) -> None:
        # Chromium's own line about an answer that the page deals with.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.troubles.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(self.flower.url + path)
        expect(self.page.locator("#singleton-status")).to_have_text("Live")
        return self.page

    def row(self, text: str) -> Any:
        return self.page.locator("#singleton-table tbody tr", has_text=text).first

    def press(self, name: str, *, why: str = "") -> None:
        """A button, and then the one that confirms it."""
        self.page.get_by_role("button", name=name, exact=True).click()
        dialog = self.page.get_by_role("dialog")
        if why:
            dialog.get_by_role("textbox").fill(why)
        dialog.locator("button[value=yes]").click()

    def told(self) -> str:
        """The last message of the page; it goes away with this."""
        toast = self.page.locator(".toast.show").last
        text = toast.inner_text()
        toast.get_by_role("button", name="Close").click()
        toast.wait_for(state="hidden")
        return text

    def leave(self) -> None:
        self.context.close()
        assert self.troubles == []
        assert self.hosts <= {f"127.0.0.1:{self.flower.port}"}, "nothing is fetched from elsewhere"
