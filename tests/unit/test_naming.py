"""Two who make a name do not make the same."""

from __future__ import annotations

import os
import random

from celery_singleton_lock.core.naming import fresh_name


def test_names_differ_also_where_chance_is_seeded() -> None:
    names = set()
    for _ in range(3):
        random.seed(1)
        names.add(fresh_name())
    assert len(names) == 3
    assert {len(name) for name in names} == {16}


def test_forked_child_makes_names_of_its_own() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, fresh_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert theirs != fresh_name()
