"""Draws the pictures of the documentation: ``python docs/images/make.py`` writes the SVGs beside it.

Each picture has a background of its own, so that it can be read on a light page and on a dark one,
whatever the reader's system prefers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

STYLE = """
  svg { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }
  .card { fill: #fcfcfa; stroke: #d5d5d0; }
  text { fill: #22252a; }
  .small { font-size: 11.5px; fill: #555b63; }
  .name { font-weight: 600; }
  .mid { text-anchor: middle; }
  .end { text-anchor: end; }
  .lane { stroke: #d5d5d0; }
  .a { fill: #2f7d4f; } .b { fill: #2b6cb0; } .bad { fill: #b3261e; }
  .a-line { stroke: #2f7d4f; } .b-line { stroke: #2b6cb0; } .bad-line { stroke: #b3261e; }
  .grey-line { stroke: #777d86; }
  .on-bar { fill: #ffffff; font-weight: 600; }
  .on-stripes { fill: #22252a; font-weight: 600; }
  .pause { fill: url(#stripes); stroke: #b7791f; }
  .box { fill: #eef1f4; stroke: #777d86; }
  .dashed { stroke-dasharray: 5 4; }
  line, path { stroke-width: 1.6; fill: none; }
  marker path { stroke: none; }
  .grey { fill: #777d86; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1b1e23; stroke: #3a3f47; } text { fill: #e8e8e6; } .small { fill: #aeb4bd; }
    .lane { stroke: #3a3f47; } .box { fill: #2a2f36; stroke: #8a919b; }
    .a { fill: #3f9c67; } .b { fill: #4a8fd8; } .bad { fill: #ef6c63; }
    .a-line { stroke: #3f9c67; } .b-line { stroke: #4a8fd8; } .bad-line { stroke: #ef6c63; }
  }
"""


class Picture:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>')

    def bar(self, x1: float, x2: float, y: float, kind: str, words: str = "") -> None:
        self._parts.append(
            f'<rect x="{x1:g}" y="{y - 13:g}" width="{x2 - x1:g}" height="26" rx="5" class="{kind}"/>'
        )
        if words:
            self.text((x1 + x2) / 2, y + 4.5, words, "on-bar mid")

    def box(self, x: float, y: float, name: str, more: str) -> None:
        """A state, with its middle at (x, y)."""
        self._parts.append(
            f'<rect x="{x - 75:g}" y="{y - 28:g}" width="150" height="56" rx="8" class="box"/>'
        )
        self.text(x, y - 4, name, "name mid")
        self.text(x, y + 14, more, "small mid")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, *, arrow: str = "") -> None:
        self.path(f"M{x1:g} {y1:g} L{x2:g} {y2:g}", kind, arrow=arrow)

    def path(self, course: str, kind: str, *, arrow: str = "") -> None:
        """`arrow`: the colour of the head (a, b, bad, grey); empty for none."""
        head = f' marker-end="url(#head-{arrow})"' if arrow else ""
        self._parts.append(f'<path d="{course}" class="{kind}"{head}/>')

    def __str__(self) -> str:
        heads = "\n".join(
            f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            f'markerHeight="6" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" class="{kind}"/>'
            "</marker>"
            for kind in ("a", "b", "bad", "grey")
        )
        stripes = (
            '<pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="8" height="8" fill="#f6e7c1"/>'
            '<rect width="3" height="8" fill="#dfbf72"/></pattern>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" '
                f'width="{self._width}" height="{self._height}" role="img" aria-label="{self._title}">',
                f"<title>{self._title}</title>",
                f"<style>{STYLE}</style>",
                f"<defs>{heads}{stripes}</defs>",
                f'<rect x="0.5" y="0.5" width="{self._width - 1}" height="{self._height - 1}" rx="10" '
                'class="card"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def lease() -> Picture:
    """A grant, renewals, a pause past the ttl, a takeover, and a late write that is refused."""
    picture = Picture(900, 430, "A lease is granted, renewed, lost in a pause and taken over")
    holder_a, store, holder_b, table = 95, 190, 285, 372
    grant, pause, deadline, expiry, takeover, write, wake, late = 130, 370, 560, 590, 625, 690, 755, 835
    lanes = (("holder A", holder_a), ("store", store), ("holder B", holder_b), ("your table", table))
    for name, y in lanes:
        picture.text(20, y + 4.5, name, "name")
        picture.line(110, y, 880, y, "lane")
    picture.text(880, 28, "time →", "small end")

    # Holder A asks, is granted and renews.
    picture.bar(grant, pause, holder_a, "a", "held, fence 41")
    for at, words in ((grant, "acquire"), (grant + 80, "renew"), (grant + 160, "renew")):
        picture.line(at, holder_a + 13, at, store - 4, "a-line", arrow="a")
        picture.text(at + 5, holder_a + 45, words, "small")
    picture.text(grant, store + 20, "41 granted", "small")

    # It is paused past its deadline; the store lets the lease run out a little later.
    picture.bar(pause, wake, holder_a, "pause")
    picture.text((pause + deadline) / 2, holder_a + 4.5, "paused past its ttl", "on-stripes mid")
    picture.line(deadline, 48, deadline, store, "grey-line dashed")
    picture.text(deadline, 40, "A's deadline", "small end")
    picture.line(expiry, 48, expiry, store + 12, "grey-line dashed")
    picture.text(expiry + 4, 40, "the store's deadline: a little later", "small")

    # Holder B is told to wait, then takes over, and writes with its fence.
    picture.line(470, holder_b - 13, 470, store + 6, "b-line", arrow="b")
    picture.text(476, store + 50, "B asks: Held", "small")
    picture.line(takeover, holder_b - 13, takeover, store + 6, "b-line", arrow="b")
    picture.text(takeover + 6, store + 20, "42 granted: takeover", "small")
    picture.bar(takeover, 880, holder_b, "b", "held, fence 42")
    picture.line(write, holder_b + 13, write, table - 6, "b-line", arrow="b")
    picture.text(write - 8, holder_b + 50, "B writes with 42", "small end")
    picture.text(write, table + 22, "the row has 42", "small mid")

    # A wakes: it is told, and what it writes without looking is refused.
    picture.bar(wake, 880, holder_a, "bad", "LeaseLost")
    picture.text(880, holder_a + 30, "told within 100 ms of waking", "small end")
    picture.line(late, holder_a + 38, late, table - 6, "bad-line dashed", arrow="bad")
    picture.text(880, table + 22, "41 &lt; 42: refused", "bad end")
    return picture


def states() -> Picture:
    """What a record can be, and what moves it."""
    picture = Picture(900, 350, "The states of a record and what moves it from one to another")
    left, middle, right, top, bottom = 120, 450, 780, 140, 290
    picture.box(left, top, "FREE", "nobody has it")
    picture.box(middle, top, "HELD", "until a deadline")
    picture.box(right, top, "EXPIRED", "ran out, kept for a day")
    picture.box(left, bottom, "PARKED", "waits for an heir")

    picture.line(left + 75, top - 12, middle - 75, top - 12, "a-line", arrow="a")
    picture.text((left + middle) / 2, top - 22, "acquire: larger fence", "small mid")
    picture.line(middle - 75, top + 12, left + 75, top + 12, "grey-line", arrow="grey")
    picture.text((left + middle) / 2, top + 30, "release, or by force", "small mid")

    loop = f"M{middle + 15} {top + 28} C{middle + 5} {top + 90} {middle + 80} {top + 90} {middle + 55} "
    picture.path(f"{loop}{top + 28}", "a-line", arrow="a")
    picture.text(middle + 40, top + 92, "renew: same fence", "small")

    picture.line(middle + 75, top - 12, right - 75, top - 12, "bad-line", arrow="bad")
    picture.text((middle + right) / 2, top - 22, "the deadline passes", "small mid")
    picture.line(right - 75, top + 12, middle + 75, top + 12, "b-line", arrow="b")
    picture.text((middle + right) / 2, top + 30, "acquire: larger fence,", "small mid")
    picture.text((middle + right) / 2, top + 46, "by another (a takeover)", "small mid")
    picture.text((middle + right) / 2, top + 62, "or by its last owner", "small mid")

    picture.path(
        f"M{right} {top - 28} C{right} 20 {left} 20 {left} {top - 28}", "grey-line", arrow="grey"
    )
    picture.text(middle, 40, "release by its last owner, late; or by force", "small mid")

    picture.line(middle - 55, top + 28, left + 75, bottom - 14, "grey-line", arrow="grey")
    picture.text(left + 168, bottom - 82, "release", "small end")
    picture.text(left + 168, bottom - 67, "with a park", "small end")
    heir = f"M{left + 75} {bottom + 10} C{middle - 60} {bottom + 10} {middle - 20} {bottom - 20} "
    picture.path(f"{heir}{middle - 20} {top + 28}", "a-line", arrow="a")
    picture.text(middle - 22, bottom - 8, "acquire by the heir: larger fence", "small")
    picture.line(left - 45, bottom - 28, left - 45, top + 28, "grey-line", arrow="grey")
    picture.text(left - 38, (top + bottom) / 2, "its time is over,", "small")
    picture.text(left - 38, (top + bottom) / 2 + 15, "or by force", "small")
    return picture


def beat() -> Picture:
    """Two slots of one entry: one as usual, one whose first replica is killed before it publishes."""
    picture = Picture(900, 440, "Three beat replicas, one slot as usual, and one that is taken over")
    first, second, third, store, broker = 105, 165, 225, 305, 385
    lanes = (
        ("replica A", "rank 0", first),
        ("replica B", "rank 1", second),
        ("replica C", "rank 2", third),
        ("store", "one record", store),
        ("broker", "", broker),
    )
    for name, more, y in lanes:
        picture.text(20, y + (4.5 if not more else -1), name, "name")
        picture.text(20, y + 14, more, "small")
        picture.line(110, y, 880, y, "lane")
    picture.text(880, 28, "time →", "small end")
    for at, words in ((140, "slot 12:00"), (470, "slot 12:05")):
        picture.line(at, 48, at, broker, "grey-line dashed")
        picture.text(at, 40, words, "name mid")

    def step(at: float, lane: float, to: float, words: str, kind: str) -> None:
        picture.line(at, lane + 4, at, to, f"{kind}-line", arrow=kind)
        picture.text(at + 4, lane - 8, words, "small")

    # As usual: the first one does it all, the others look later and find it done.
    step(155, first, store - 15, "claim", "a")
    step(205, first, broker - 4, "publish", "a")
    step(260, first, store - 15, "record", "a")
    picture.bar(150, 270, store, "a", "A's lease")
    picture.text(205, broker + 22, "id 5d0c…", "small mid")
    step(300, second, store - 4, "+100 ms: done", "grey")
    step(355, third, store - 4, "+200 ms: done", "grey")
    picture.text(278, store + 30, "position 12:00", "small")

    # The first one is killed between claim and publish: its lease runs out, and another takes over.
    picture.bar(480, 690, store, "a", "A's lease, until the slot ttl")
    step(485, first, store - 15, "claim", "a")
    picture.text(527, first - 8, "✕ killed before it publishes", "bad name")
    step(520, second, store - 15, "held", "grey")
    picture.bar(552, 700, second, "pause")
    picture.text(626, second + 4.5, "waits", "on-stripes mid")
    step(560, third, store - 15, "held", "grey")
    picture.bar(592, 700, third, "pause")
    picture.text(646, third + 4.5, "waits", "on-stripes mid")
    step(708, second, store - 15, "claim", "b")
    step(755, second, broker - 4, "publish", "b")
    step(810, second, store - 15, "record", "b")
    picture.bar(700, 820, store, "b", "B's lease")
    picture.text(755, broker + 22, "id 91f3…: A would have used the same", "small mid")
    step(840, third, store - 4, "done", "grey")
    picture.text(880, store + 30, "position 12:05", "small end")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "lease.svg": lease,
    "states.svg": states,
    "beat.svg": beat,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / name).write_text(str(draw()))
