"""Random choices that stay the same for a seed in every version of Python, and the held-out split.

Python promises the sequence of `Random.random()` only, so every choice here is one draw of it. The
order of the draws is part of the data: a seed must go on giving the text that the demo checkpoint
was trained on, which is why some draws in this folder are kept though nothing uses them.
"""

import zlib
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

# One key in 50 is held out; which residue stands for it is arbitrary.
HELD_OUT_MODULUS = 50
HELD_OUT_RESIDUE = 7


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of `items`, all equally likely."""
    return items[int(rng.random() * len(items))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def chance(rng: Random, probability: float) -> bool:
    """True with the given probability."""
    return rng.random() < probability


def held_out(key: str) -> bool:
    """Whether the question that `key` identifies is kept out of the training data."""
    return zlib.crc32(key.encode()) % HELD_OUT_MODULUS == HELD_OUT_RESIDUE
