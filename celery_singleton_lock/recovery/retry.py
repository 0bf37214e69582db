"""Whether a run that failed is tried again, and after how long. Pure: chance is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SHORTEST_S: Final = 0.5
"""Full jitter may give nothing at all: then a service that is down is asked again at once."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`first_s` doubles with each retry, up to `longest_s`. `max_retries` None: for ever."""

    max_retries: int | None = 3
    first_s: float = 2.0
    longest_s: float = 600.0
    jitter: bool = True


@dataclass(frozen=True, slots=True)
class RetryIn:
    seconds: float


GiveUp = Literal["give up"]
GIVE_UP: Final[GiveUp] = "give up"


def decide(policy: RetryPolicy, retries: int, chance: float) -> RetryIn | GiveUp:
    """After an attempt that failed, and `retries` retries before it. `chance` is between 0 and 1."""
    if policy.max_retries is not None and retries >= policy.max_retries:
        return GIVE_UP
    # The exponent is bounded, since a run may be retried for ever.
    longest = min(policy.first_s * 2.0 ** min(retries, 64), policy.longest_s)
    if not policy.jitter:
        return RetryIn(longest)
    shortest = min(SHORTEST_S, longest)
    return RetryIn(shortest + (longest - shortest) * chance)
