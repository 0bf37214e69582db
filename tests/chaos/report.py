"""A page about one trial that a person can read: a timeline, what was counted, and what was broken."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from .faults import BEATS, WORKERS
from .history import FOREVER, Execution, Window
from .trial import Trial

PX_PER_S: Final = 15
LANE: Final = 20
LEFT: Final = 130
TASK_COLOURS: Final = {
    "tick": "#7aa6c2", "careful": "#3f7d58", "careless": "#8f6bb0", "flaky": "#c9a227",
    "doomed": "#777777",
}  # fmt: skip
FAULT_COLOURS: Final = {
    "kill": "#b3261e", "behead": "#b3261e", "kill-child": "#b3261e", "kill-master": "#b3261e",
    "stop": "#d9822b", "stop-master": "#d9822b", "forget": "#6a1b9a", "clock": "#00838f",
    "fill-disk": "#5d4037", "hold-lock": "#5d4037",
}  # fmt: skip
LINK_COLOUR: Final = "#c2185b"

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: #1c1c1c; background: #fff }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.verdict { font-weight: 600 } .good { color: #2e6b3e } .bad { color: #b3261e }
.scroll { overflow-x: auto; border: 1px solid #ddd; border-radius: 6px; background: #fff }
svg { display: block } svg text { font: 11px system-ui, sans-serif; fill: #444 }
table { border-collapse: collapse } td, th { padding: .15rem .8rem .15rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
pre, code { font: 13px/1.5 ui-monospace, monospace }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem }
.key span { display: inline-block; width: .9em; height: .9em; margin: 0 .35em 0 1em; border-radius: 2px;
  vertical-align: -1px } .key { font-size: 13px; color: #444 }
"""


@dataclass
class _Picture:
    """Shapes on lanes; `x` of a time."""

    began: float
    until: float
    shapes: list[str]
    lanes: int = 0

    def x(self, at: float) -> float:
        return LEFT + (min(max(at, self.began), self.until) - self.began) * PX_PER_S

    def lane(self, name: str, *, title: bool = False) -> float:
        """The next lane's upper edge."""
        top = 26 + self.lanes * LANE
        self.lanes += 1
        weight = ' style="font-weight:600"' if title else ""
        self.shapes.append(f'<text x="6" y="{top + 14}"{weight}>{escape(name)}</text>')
        if not title:
            y = top + LANE - 0.5
            self.shapes.append(f'<line x1="{LEFT}" x2="100%" y1="{y}" y2="{y}" stroke="#eee"/>')
        return top

    def bar(
        self,
        since: float,
        until: float,
        top: float,
        colour: str,
        tip: str,
        *,
        label: str = "",
        open_end: bool = False,
    ) -> None:
        left = self.x(since)
        width = max(self.x(until) - left, 2.5)
        edge = ' stroke="#b3261e" stroke-width="1.5" stroke-dasharray="3 2"' if open_end else ""
        self.shapes.append(
            f'<rect x="{left:.1f}" y="{top + 3:.1f}" width="{width:.1f}" height="{LANE - 7}" rx="2" '
            f'fill="{colour}"{edge}><title>{escape(tip)}</title></rect>'
        )
        if len(label) * 6 + 6 < width:
            self.shapes.append(
                f'<text x="{left + 4:.1f}" y="{top + 13:.1f}" style="fill:#fff;font-size:10px">'
                f"{escape(label)}</text>"
            )

    def dot(self, at: float, top: float, colour: str, tip: str, size: float = 3) -> None:
        self.shapes.append(
            f'<circle cx="{self.x(at):.1f}" cy="{top + 10:.1f}" r="{size}" fill="{colour}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def svg(self) -> str:
        width = self.x(self.until) + 20
        height = 34 + self.lanes * LANE
        ticks = "".join(
            f'<line x1="{self.x(self.began + s):.0f}" x2="{self.x(self.began + s):.0f}" y1="18" '
            f'y2="{height}" stroke="#f0f0f0"/>'
            f'<text x="{self.x(self.began + s) + 2:.0f}" y="13">{s} s</text>'
            for s in range(0, int(self.until - self.began) + 1, 5)
        )
        return (
            f'<svg role="img" aria-label="Timeline" width="{width:.0f}" height="{height}" '
            f'xmlns="http://www.w3.org/2000/svg">{ticks}{"".join(self.shapes)}</svg>'
        )


def timeline(trial: Trial) -> str:
    history = trial.history
    began = history.events[0].at
    picture = _Picture(began, history.events[-1].at, [])
    picture.lane("hurt", title=True)
    for target in sorted({fault.target for fault in history.faults}, key=_order):
        top = picture.lane(target)
        for fault in history.faults:
            if fault.target == target:
                tip = _tip_of_fault(fault, began)
                picture.bar(fault.since, fault.until, top, _colour(fault), tip, label=fault.kind)
    picture.lane("executed by", title=True)
    for worker in (*WORKERS, ""):
        mine = [each for each in history.executions if each.worker == worker]
        for number, pid in enumerate(dict.fromkeys(each.pid for each in mine), 1):
            top = picture.lane(f"{worker or 'unknown'} #{number}")
            for each in mine:
                if each.pid == pid:
                    _draw_execution(picture, each, top)
    picture.lane("slots of", title=True)
    for entry, slots in sorted(history.slots.items()):
        top = picture.lane(entry)
        for slot, run in slots.items():
            for copy, message in enumerate(history.messages.get(run, [])):
                tip = f"{entry} {slot:%H:%M:%S}: " + (f"copy {copy}" if copy else "published")
                picture.dot(message.at, top, "#d9822b" if copy else "#444", tip, 4 if copy else 2.5)
            if run in history.concluded:
                picture.dot(
                    history.concluded[run][0].at, top, "#2e9e57", f"{entry} {slot:%H:%M:%S}: ended", 2
                )
    for number, violation in enumerate(trial.violations, 1):
        x = picture.x(violation.at)
        picture.shapes.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="100%" stroke="#b3261e" stroke-width="1.5"/>'
            f'<text x="{x + 2:.1f}" y="24" style="fill:#b3261e">{number}</text>'
        )
    for what, text, y in (("healed", "all is healed", 28), ("last_slot", "beats are ended", 40)):
        at = history.when(what)
        if at is not None:
            x = picture.x(at)
            picture.shapes.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="100%" stroke="#2e6b3e" '
                f'stroke-dasharray="4 3"/><text x="{x - 3:.1f}" y="{y}" text-anchor="end" '
                f'style="fill:#2e6b3e">{text}</text>'
            )
    return picture.svg()


def _draw_execution(picture: _Picture, each: Execution, top: float) -> None:
    is_open = each.recorded is None
    tip = f"{each.task}, run {each.run}, attempt {each.attempt}, fence {each.start.fence}: " + (
        "never recorded" if is_open else str(each.recorded and each.recorded.state)
    )
    colour = TASK_COLOURS.get(each.task, "#999")
    picture.bar(each.start.at, each.last.at, top, colour, tip, open_end=is_open)


def _order(target: str) -> tuple[int, str]:
    names = (*BEATS, *WORKERS)
    end = target.partition(">")[0]
    return (names.index(end) if end in names else len(names), target)


def _colour(fault: Window) -> str:
    return LINK_COLOUR if ">" in fault.target else FAULT_COLOURS.get(fault.kind, "#555")


def _tip_of_fault(fault: Window, began: float) -> str:
    lasted = "" if fault.until == FOREVER else f" for {fault.until - fault.since:.1f} s"
    amount = f" by {fault.amount:+.2f} s" if fault.amount else ""
    return f"{fault.kind} {fault.target}{amount} at {fault.since - began:.1f} s{lasted}"


def _legend() -> str:
    tasks = "".join(f'<span style="background:{c}"></span>{t}' for t, c in TASK_COLOURS.items())
    marks = (
        '<span style="background:#fff;border:1.5px dashed #b3261e"></span>its end was never recorded'
        '<span style="background:#444;border-radius:50%"></span>published'
        '<span style="background:#d9822b;border-radius:50%"></span>a copy'
        '<span style="background:#2e9e57;border-radius:50%"></span>ended'
    )
    faults = "".join(
        f'<span style="background:{colour}"></span>{what}'
        for what, colour in (
            ("killed", "#b3261e"), ("stopped, and woken", "#d9822b"), ("its link is hurt", LINK_COLOUR),
            ("emptied", "#6a1b9a"), ("its clock is moved", "#00838f"), ("its disk is full", "#5d4037"),
        )
    )  # fmt: skip
    return f'<p class="key">{faults}</p><p class="key">{tasks}{marks}</p>'


def _page(trial: Trial) -> Iterator[str]:
    broken = len(trial.violations)
    verdict = (
        '<span class="good">no promise was broken</span>' if not broken
        else f'<span class="bad">{broken} violation{"s" if broken > 1 else ""}</span>'
    )  # fmt: skip
    name = f"{trial.store} leases, {trial.broker} broker, seed {trial.seed}"
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(name)}</title>"
    yield '<meta name=viewport content="width=device-width">'
    yield f"<style>{STYLE}</style><h1>{escape(name)}</h1><p class=verdict>{verdict}</p>"
    if commit := commit_of_this():
        yield f"<p>Commit <code>{escape(commit)}</code>, {datetime.now(UTC):%Y-%m-%d}.</p>"
    if broken:
        items = "".join(f"<li>{escape(str(each))}</li>" for each in trial.violations)
        yield f"<h2>Violations</h2><ol>{items}</ol>"
    yield f"<h2>Timeline</h2><div class=scroll>{timeline(trial)}</div>{_legend()}"
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td class=n>{count}</td></tr>"
        for what, count in trial.counts().items()
    )
    yield f"<h2>Counted</h2><table>{rows}</table>"
    yield f"<h2>The plan</h2><pre>{escape(chr(10).join(map(str, trial.faults)))}</pre>"
    again = f"make soak STORE={trial.store} BROKER={trial.broker} SEED={trial.seed} MINUTES=0"
    yield f"<h2>Again</h2><pre>{escape(again)}</pre></html>"


def commit_of_this() -> str:
    """What was tried, also if it was changed since; empty outside of a clone."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_report(trial: Trial, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_page(trial)))
