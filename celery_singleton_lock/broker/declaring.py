"""What a message needs of a broker, declared once a connection.

kombu binds a copy of each queue to the channel before it looks whether that was declared: a tenth of
what a call costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Undeclared(list[Any]):
    """In the place of the entities that a message needs. Those of them that are declared are passed
    over whenever it is walked through: kombu does so anew after a lost connection, with which all
    that was declared is forgotten."""

    def __init__(self, producer: Any, entities: Iterable[Any]) -> None:
        super().__init__(entities)
        self._producer = producer

    def __iter__(self) -> Iterator[Any]:
        declared = self._producer.connection.declared_entities
        return (
            entity
            for entity in super().__iter__()
            if not entity.can_cache_declaration or hash(entity) not in declared
        )
