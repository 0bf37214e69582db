"""Looks an app over: its settings, its servers, its schedule, its workers. Changes nothing.

One check is one small function, in the module of its topic. It yields what is wrong, each with a reason
and a remedy; what it needs to know it asks of the `Patient`, who asks each server once.
"""

from __future__ import annotations

from .examining import examine, strangers
from .findings import Finding, Level

__all__ = ["Finding", "Level", "examine", "strangers"]
