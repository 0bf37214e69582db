"""Ratios as tables: what is promised, and ours beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.measure import Spread
from benchmarks.promises import KNOWN_MISSES, PROMISES, Promise
from benchmarks.results import read
from benchmarks.table import digits, quantity

Row = Mapping[str, Any]

AREAS: Final = {
    "leases": "Leases",
    "redlock": "Redlock",
    "beat": "Beat",
    "tasks": "Tasks",
    "ledger": "The ledger",
    "outbox": "The outbox",
}


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def environment_of(name: str) -> Callable[[], str]:
    def text() -> str:
        known = read(name)["environment"]
        warning = "**A quick run: too short to say anything.** " if known["run"] == "quick" else ""
        return (
            f"{warning}*Measured {known['when']} in {minutes(known['seconds'])} (a {known['run']} run),"
            f" on {known['cores']} cores ({known['processor']}), load {known['load']:g} before it,"
            f" {known['system']}, Python {known['python']}, Valkey {known['valkey']},"
            f" {versions(known['packages'])}.*"
        )

    return text


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds} seconds"


def versions(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def rows_of(name: str) -> Iterator[Row]:
    for chapter in read(name)["chapters"]:
        yield from chapter["rows"]


# Promises


def promises() -> str:
    measured = {row["name"]: row for row in rows_of("promises") if row.get("at_most") is not None}
    rows = []
    for promise in PROMISES:
        row = measured.get(promise.name)
        area = f"[{AREAS[promise.page]}]({promise.page}.md)"
        rows.append([area, promise.name, bound(promise), *outcome(row), promise.why])
    return table(["", "", "at most", "measured", "", "where the bound comes from"], rows)


def bound(promise: Promise) -> str:
    if promise.unit is None:
        return f"{promise.at_most:g}"
    return quantity(flat(promise.at_most), promise.unit).partition(" [")[0] + unit_after(promise)


def unit_after(promise: Promise) -> str:
    """`quantity` puts quartiles before the unit, which a bound has not."""
    said = quantity(flat(promise.at_most), promise.unit or "seconds")
    return said.partition("]")[2]


def outcome(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", "**not measured**"
    return figure(row), "kept" if row["is_kept"] else "**missed**"


def figure(row: Row) -> str:
    """The ratio; or what was measured, if that is not promised as a ratio."""
    promise = next((each for each in PROMISES if each.name == row["name"]), None)
    if promise and promise.unit:
        return quantity(spread(row["measured"]), promise.unit)
    return ratio(row)


def ratio(row: Row) -> str:
    given = row["ratio"]
    return f"{digits(given['median'])} [{digits(given['low'])} {digits(given['high'])}]"


def misses() -> str:
    """Each with its reason."""
    reasons = {promise.name: reason for promise, reason in KNOWN_MISSES.items()}
    missed = [row for row in rows_of("promises") if row.get("is_kept") is False]
    if not missed:
        return "None in this run."
    grouped: dict[str, list[str]] = {}
    for row in missed:
        reason = reasons.get(row["name"], "Not known yet.")
        grouped.setdefault(reason, []).append(f"{row['name']} ({figure(row)})")
    return "\n".join(f"- **{'; '.join(names)}.** {reason}" for reason, names in grouped.items())


# Beside the others


def beside() -> str:
    return "\n\n".join(map(chapter_table, read("beside")["chapters"]))


def chapter_table(chapter: Mapping[str, Any]) -> str:
    title = chapter["title"][0].upper() + chapter["title"][1:]
    rows = []
    for row in chapter["rows"]:
        if reason := row.get("not_measured"):
            rows.append([row["name"], "", f"not measured: {reason}"])
        else:
            rows.append(
                [bold_if_ours(row["name"]), quantity(spread(row["measured"]), row["unit"]), *told(row)]
            )
    return f"**{title}**\n\n{table(['', 'measured', 'ratio'], rows)}"


def told(row: Row) -> list[str]:
    """What is measured against nothing has no ratio worth telling."""
    return [ratio(row) if row["unit"] == "seconds" else ""]


def bold_if_ours(name: str) -> str:
    return f"**{name}**" if name.startswith("ours") else name


def spread(given: Mapping[str, float]) -> Spread:
    return Spread(given["low"], given["median"], given["high"])


def flat(value: float) -> Spread:
    return Spread(value, value, value)
