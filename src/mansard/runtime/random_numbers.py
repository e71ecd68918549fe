"""Counter-based random numbers: one uniform number per (seed, sequence index, position), with no state.

A sampler that keeps a generator per request must save, restore and fork it through preemption,
recomputation and speculation. A number that is a pure function of its coordinates needs none of that: the
same seed gives the same text whatever runs beside it. The mixing function is SplitMix64's finalizer
(Steele, Lea and Flood, OOPSLA 2014), applied once per coordinate.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


def mix(value: int) -> int:
    """Return a 64-bit integer whose every bit depends on every bit of `value` (SplitMix64)."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def derive_seed(seed: int, *coordinates: int) -> int:
    """Return a 64-bit seed for the given coordinates under `seed`; any integers will do."""
    state = mix(seed & _MASK)
    for coordinate in coordinates:
        state = mix(state ^ (coordinate & _MASK))
    return state


def uniform(seed: int, index: int, position: int) -> float:
    """Return the number in [0, 1) of the token at `position` of sequence `index` under `seed`."""
    return (derive_seed(seed, index, position) >> 11) * _TO_UNIT
