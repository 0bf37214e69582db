"""The scripts that a node runs: those of a single server where they fit, behind a guard."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from celery_singleton_lock.leases import redis as single
from celery_singleton_lock.leases.redis.scripts import Script

_OURS: Final = resources.files(__package__)
_THEIRS: Final = resources.files(single)


def _load(name: str, *, is_guarded: bool = True) -> Script:
    ours = _OURS.joinpath(f"{name}.lua")
    parts = [
        _THEIRS.joinpath("batch.lua"),
        *([_OURS.joinpath("guard.lua")] if is_guarded else []),
        ours if ours.is_file() else _THEIRS.joinpath(f"{name}.lua"),
    ]
    source = b"".join(part.read_bytes() for part in parts)
    # Redis names scripts by SHA-1; nothing here rests on its strength.
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


PROPOSE = _load("propose")
CONFIRM = _load("confirm")
WITHDRAW = _load("withdraw")
RENEW = _load("renew")
RESTORE = _load("restore")
RELEASE = _load("release")
FORCE_RELEASE = _load("force_release")
PEEK = _load("peek")
MEET = _load("meet")
EXPIRED = _load("expired")
DISMISS = _load("dismiss")
WRITE = _load("write")
READ = _load("read")
DUMP = _load("dump")
MERGE = _load("merge")
"""Guarded by the right to repair, and not by the incarnation."""

CLAIM = _load("claim", is_guarded=False)
SEIZE = _load("seize", is_guarded=False)
RENOUNCE = _load("renounce", is_guarded=False)
ADMIT = _load("admit", is_guarded=False)
REFRESH = _load("refresh", is_guarded=False)
