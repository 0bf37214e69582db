"""Whatever is sent to the pages in Flower, by a script or by hand: never an error of ours, and never
what was sent as part of a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_singleton_lock.ledger import open_ledger
from celery_singleton_lock.testing.servers import RedisServer
from tests.support import examples

from .flowers import FlowerServer
from .test_flower_access import CHANGES, PATHS, token_of

pytestmark = pytest.mark.xdist_group("flower input")  # each Flower is started once

few = examples(0.5)

MARK = "<i id=evil>"
texts = st.text(max_size=20) | st.sampled_from(
    ["", MARK, f"'\"><script>{MARK}", "\0", "'; DROP TABLE runs", "%", "_", "\\", "a" * 3000, "\ud800"]
)
known = st.sampled_from(
    ["stock: count", "late", "paused", "held", "overdue", "failed", "next", "task:shop.stock", "true"]
)
numbers = st.integers().map(str) | st.sampled_from(
    ["0", "1", "-1", "1e9", "nan", "9" * 30, "9" * 5000, "٣", "1_0", " 7 "]
)
QUERIES = ["show", "search", "sort", "page", "size", "window", "entry", "name", "id"]
queries = st.lists(
    st.tuples(st.sampled_from(QUERIES) | texts, known | numbers | texts), max_size=4
).map(lambda pairs: urlencode(pairs, errors="surrogatepass"))
raw_queries = st.binary(max_size=20).map(quote)

jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | known,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["entry", "why", "key", "ids"]
bodies = (
    st.dictionaries(st.sampled_from(FIELDS), known | texts | jsons, max_size=4).map(json.dumps)
    | jsons.map(json.dumps)
    | texts
).map(lambda body: body.encode(errors="surrogatepass")) | st.binary(max_size=40)


@pytest.fixture(scope="module", params=["events", "ledger"])
def flower(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlowerServer]:
    """Its history from what it saw itself, or from a ledger."""
    database = None
    if request.param == "ledger":
        database = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
        open_ledger(database).schema.upgrade()
    with RedisServer() as redis, FlowerServer(redis.url, database=database) as server:
        yield server


def is_well_answered(asked: object, status: int, text: str, headers: Any) -> None:
    assert status < 500, (asked, status, text)
    if headers.get_content_type() == "text/html":
        assert MARK not in text, asked
    else:
        assert isinstance(json.loads(text), dict), asked


@few
@given(st.sampled_from(PATHS), queries | raw_queries)
@example("/singleton/runs/data", "window=" + "9" * 30)
@example("/singleton/contention/data", "window=" + "9" * 30)
@example("/singleton/runs/data", "page=" + "9" * 30)
@example("/singleton/schedule/data", "search=%ff")
def test_any_query_is_answered(flower: FlowerServer, path: str, query: str) -> None:
    is_well_answered((path, query), *flower.ask("GET", f"{path}?{query}"))


@few
@given(st.sampled_from(CHANGES), bodies)
@example("/singleton/locks/unlock", b'{"key": "\\ud800", "why": "x"}')
@example("/singleton/schedule/pause", b'{"entry": "stock: count", "why": "\\ud800"}')
@example("/singleton/schedule/pause", b'{"entry": "stock: count", "why": "\\u0000"}')
@example("/singleton/dead-letters/replay", b'{"ids": ["\\ud800"]}')
@example("/singleton/schedule/trigger", b"[" * 100_000)
def test_any_form_is_answered(flower: FlowerServer, path: str, body: bytes) -> None:
    token = token_of(flower)
    cookie = {"Cookie": f"_xsrf={token}", "X_XSRFToken": token}
    answer = flower.ask("POST", path, body, **cookie)
    assert answer[0] != 403, "it was looked at"
    is_well_answered((path, body), *answer)


@few
@given(st.sampled_from(CHANGES), queries)
def test_form_with_a_query_is_answered(flower: FlowerServer, path: str, query: str) -> None:
    is_well_answered((path, query), *flower.ask("POST", f"{path}?{query}", "{}"))
    is_well_answered((path, query), *flower.ask("GET", f"{path}?{query}"))
