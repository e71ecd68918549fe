"""Prefix hashes: one name for a block of tokens and all that came before it.

A block's keys and values depend on every earlier token, on the model and on the KV format, so its name chains
the parent's hash and starts from a root that covers the rest. Keyed BLAKE2b (RFC 7693) with a personalization
per purpose, 128 bits: a root can never equal a block, and who does not know the seed cannot aim for a
collision. The block manager compares tokens on every hit all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

DIGEST_BYTES = 16


class PrefixHash(Protocol):
    """Names token prefixes."""

    def root(self, cache_salt: str | None) -> bytes:
        """Return the parent of every first block under `cache_salt`."""
        ...

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the name of the block of `token_ids` that follows `parent`."""
        ...


class Blake2PrefixHash:
    """Prefix hashes for one model, KV format and process.

    seed: the key, at most 64 bytes; take it at random in a server, fixed for a reproducible run. fingerprint:
    all that changes KV beside the tokens: model file contents, weight and KV formats, adapters.
    """

    def __init__(self, seed: bytes = b"", fingerprint: str = "") -> None:
        self._root = blake2b(digest_size=DIGEST_BYTES, key=seed, person=b"mansard.kv.root")
        self._root.update(_field(b"fingerprint", fingerprint.encode()))
        self._block = blake2b(digest_size=DIGEST_BYTES, key=seed, person=b"mansard.kv.block")
        self._pack = struct.Struct("").pack
        self._num_packed = 0

    def root(self, cache_salt: str | None) -> bytes:
        """Return the parent of every first block under `cache_salt`; no salt differs from an empty one."""
        state = self._root.copy()
        if cache_salt is not None:
            state.update(_field(b"salt", cache_salt.encode("utf-8", "surrogatepass")))
        return state.digest()

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the name of the block of `token_ids` that follows `parent`."""
        if len(token_ids) != self._num_packed:
            self._num_packed = len(token_ids)
            self._pack = struct.Struct(f"<{self._num_packed}q").pack
        state = self._block.copy()
        state.update(parent + self._pack(*token_ids))
        return state.digest()


def _field(tag: bytes, value: bytes) -> bytes:
    """Encode a tagged value so that no two lists of fields share an encoding."""
    return struct.pack("<II", len(tag), len(value)) + tag + value
