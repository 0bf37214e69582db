"""An app, and the command line on it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_singleton_lock.cli import singleton
from celery_singleton_lock.worker.parts import Parts, parts_of


class CommandLine:
    def __init__(self, app: Celery, *before: str) -> None:
        self.app = app
        self._before = before

    @property
    def parts(self) -> Parts:
        return parts_of(self.app)

    def run(self, *arguments: str, answer: str | None = None) -> Result:
        context = SimpleNamespace(app=self.app)
        return CliRunner().invoke(singleton, [*self._before, *arguments], obj=context, input=answer)

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == code, result.output + repr(result.exception)
        return json.loads(result.stdout)


def shop_on(url: str, **config: Any) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(config)
    return app


def somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be asked: the runner's input is taken for a terminal."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
