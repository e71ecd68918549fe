"""IntegerPrefixHash: names for token prefixes that cost little, for simulations alone.

The server's hash must withstand people who aim for a collision; a simulation has none. Hashes of tuples of integers
are the same in every Python process, and the block manager compares tokens on every hit, so a collision would be a miss
and never a wrong hit.
"""

from __future__ import annotations

from collections.abc import Sequence


class IntegerPrefixHash:
    """Prefix hashes from Python's own hash of integers."""

    def root(self, cache_salt: str | None) -> bytes:
        """Return the parent of every first block; a simulation has no salts."""
        assert cache_salt is None
        return bytes(8)

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the name of the block of `token_ids` that follows `parent`."""
        value = hash((int.from_bytes(parent, "little"), *token_ids))
        return value.to_bytes(8, "little", signed=True)
