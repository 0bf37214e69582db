"""How Sphinx builds these pages: ``make docs``. Nothing here needs the network."""

from __future__ import annotations

from collections.abc import Iterable

from celery_singleton_lock import __version__
from celery_singleton_lock.flower.catalogue import METRICS as FLOWERS_METRICS
from celery_singleton_lock.observability.metrics.catalogue import METRICS, Metric
from celery_singleton_lock.settings import describe

project = "celery-singleton-lock"
author = "celery-singleton-lock contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"celery-singleton-lock {__version__}"
html_show_copyright = False
smartquotes = False

# Docstrings put names of the domain between single backticks.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3


def settings_table() -> str:
    """All settings as a Markdown table, from the code that reads them: it cannot drift."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in describe():
        cells = (f"`{setting.name}`", setting.default, f"{setting.doc} *Takes: {setting.kind}.*")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def metrics_table(metrics: Iterable[Metric]) -> str:
    """All metrics, likewise."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{each}`" for each in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.doc} |")
    return "\n".join(lines)


myst_substitutions = {
    "settings_table": settings_table(),
    "metrics_table": metrics_table(METRICS),
    "flower_metrics_table": metrics_table(FLOWERS_METRICS),
}
