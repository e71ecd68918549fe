"""BlockManager: which KV block belongs to whom.

The KV cache is a pool of fixed-size blocks (PagedAttention, arXiv 2309.06180). A sequence's table lists the
blocks that hold its tokens; tables may share blocks, which are counted, and a block is written only while one
table has it.

    tokens   0 ........ bs ........ 2·bs ...... computed ... known
    table   [  block 9   |  block 4   |  block 7    |  block 2  ]
             registered: full, computed,  full soon    being filled
             named by its prefix hash

A full block is registered in the prefix cache under the hash of all tokens up to its end. A second sequence
that computes the same block gives its own up for the registered one, so a registered block's parent is held
by whoever holds the block. Freed in reverse order, children therefore leave the cache before their parents,
and a block's parent is known by its id, which lets a hit be verified exactly: same tokens, same parent.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from mansard.core.prefix_hash import Blake2PrefixHash, PrefixHash
from mansard.core.types import Sequence

_Parent = int | str | None  # a block's id, or the cache salt of a first block
_Content = tuple[_Parent, tuple[int, ...]]  # what a registered block holds: these tokens behind that parent


@dataclass(slots=True)
class CacheStats:
    """Counters since the start."""

    num_query_tokens: int = 0  # tokens of first admissions
    num_hit_tokens: int = 0  # those of them found in the prefix cache
    num_evictions: int = 0  # registered blocks given to others


class BlockManager:
    """Allocates, shares, registers and evicts KV blocks.

    hash_seed: key of the prefix hashes. fingerprint: what changes KV beside tokens and salt (see
    `prefix_hash`). prefix_hash: replaces the hash of those two. `allocate` may only be called after
    `can_allocate` said yes.

    Raises: ValueError for an empty pool or block.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        hash_seed: bytes = b"",
        fingerprint: str = "",
        prefix_hash: PrefixHash | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"the KV cache has {num_blocks} blocks of {block_size} tokens; both must be at least 1 "
                "(give the KV cache more memory)"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.stats = CacheStats()
        self._prefix_hash = prefix_hash or Blake2PrefixHash(hash_seed, fingerprint)
        self._ref_counts = [0] * num_blocks
        self._block_of_name: dict[bytes, int] = {}  # name: the prefix hash of a registered block
        self._names: list[bytes | None] = [None] * num_blocks
        self._contents: list[_Content | None] = [None] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # never registered, or forgotten; used from the end
        self._evictable: OrderedDict[int, None] = OrderedDict()  # registered and unused, oldest first
        self._copies: list[tuple[int, int]] = []

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks no table holds, registered or not."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used_blocks(self) -> int:
        """Return how many blocks tables hold."""
        return self.num_blocks - self.num_free_blocks

    @property
    def num_registered_blocks(self) -> int:
        """Return how many blocks the prefix cache knows, in use or not."""
        return len(self._block_of_name)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def ref_count(self, block_id: int) -> int:
        """Return how many tables hold a block."""
        return self._ref_counts[block_id]

    # Admission: match, can_allocate, allocate.

    def match(self, sequence: Sequence) -> list[int]:
        """Return the registered blocks of the longest prefix of `sequence` that leaves a token to compute."""
        hits: list[int] = []
        if not self.enable_prefix_caching:
            return hits
        size, known = self.block_size, sequence.token_ids
        parent: _Parent = sequence.request.cache_salt
        for index in range((len(known) - 1) // size):
            block_id = self._block_of_name.get(self._name(sequence, index))
            if block_id is None:
                break
            if self._contents[block_id] != (parent, tuple(known[index * size : (index + 1) * size])):
                break  # a hash collided
            hits.append(block_id)
            parent = block_id
        return hits

    def can_allocate(self, hits: list[int], num_blocks: int, num_spare: int = 0) -> bool:
        """Say whether a table of `num_blocks` blocks, `hits` among them, leaves `num_spare` free."""
        num_needed = num_blocks - len(hits) + num_spare
        if num_needed > self.num_free_blocks:
            return False
        return num_needed + sum(1 for b in hits if not self._ref_counts[b]) <= self.num_free_blocks

    def allocate(self, sequence: Sequence, hits: list[int], num_blocks: int) -> None:
        """Give an empty table `hits` and new blocks, `num_blocks` in all."""
        assert not sequence.block_ids
        for block_id in hits:
            self._share(block_id)
        sequence.block_ids.extend(hits)
        sequence.block_ids.extend([self._take() for _ in range(num_blocks - len(hits))])
        sequence.block_table = None
        sequence.num_registered_blocks = len(hits)

    # Growth: extend before a step, take_copies with it, register after it.

    def extend(self, sequence: Sequence, start: int, end: int) -> bool:
        """Make the tokens [start, end) writable, or change nothing when there is no room; returns which.

        Blocks up to `end` are added; a shared block at `start` is replaced by a copy of it (copy-on-write).
        """
        table, size = sequence.block_ids, self.block_size
        first = start // size
        is_shared = first < len(table) and self._ref_counts[table[first]] > 1
        if not is_shared and end <= len(table) * size:
            return True
        num_new = -(-end // size) - len(table)
        if max(num_new, 0) + is_shared > self.num_free_blocks:
            return False
        if is_shared:
            copy = self._take()
            self._copies.append((table[first], copy))
            table[first] = copy
        for _ in range(num_new):
            table.append(self._take())
        sequence.block_table = None
        return True

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Return the (source, destination) copies since the last call; no block is in two of them.

        A source stays held until now, so that it is not handed out as a destination of the same step.
        """
        copies = tuple(self._copies)
        for source, _ in copies:
            self._release(source)
        self._copies.clear()
        return copies

    def register(self, sequence: Sequence) -> None:
        """Put the full computed blocks of `sequence` into the prefix cache; share those it knows already."""
        if not self.enable_prefix_caching:
            return
        table, size, known = sequence.block_ids, self.block_size, sequence.token_ids
        for index in range(sequence.num_registered_blocks, sequence.num_computed_tokens // size):
            block_id = table[index]
            parent: _Parent = table[index - 1] if index else sequence.request.cache_salt
            if index and self._names[table[index - 1]] is None:
                return  # the cache was reset, or a hash collided: what follows cannot be found either
            name = self._name(sequence, index)
            content = (parent, tuple(known[index * size : (index + 1) * size]))
            found = self._block_of_name.setdefault(name, block_id)
            if found == block_id:
                self._names[block_id] = name
                self._contents[block_id] = content
            elif self._contents[found] == content:
                self._share(found)
                self._release(block_id)
                table[index] = found
                sequence.block_table = None
            else:
                return
            sequence.num_registered_blocks = index + 1

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """Let an empty `child` share the blocks of the parent's first `num_tokens` tokens."""
        assert not child.block_ids
        child.block_ids.extend(parent.block_ids[: self.blocks_for(num_tokens)])
        for block_id in child.block_ids:
            self._ref_counts[block_id] += 1
        child.block_table = None
        child.block_hashes = parent.block_hashes[: num_tokens // self.block_size]
        child.num_registered_blocks = min(parent.num_registered_blocks, (num_tokens - 1) // self.block_size)

    # The end.

    def free(self, sequence: Sequence) -> None:
        """Give a table's blocks back, last first: ends of prefixes are evicted before their beginnings."""
        for block_id in reversed(sequence.block_ids):
            self._release(block_id)
        sequence.block_ids.clear()
        sequence.block_table = None
        sequence.num_registered_blocks = 0

    def reset_prefix_cache(self) -> None:
        """Forget every prefix; running sequences keep their blocks."""
        self._block_of_name.clear()
        self._names = [None] * self.num_blocks
        self._contents = [None] * self.num_blocks
        self._free.extend(self._evictable)
        self._evictable.clear()

    def check(self) -> None:
        """Assert the pool's laws: each block in one place, registered ones found, parents kept."""
        unused = [*self._free, *self._evictable]
        assert sorted(unused) == [b for b, count in enumerate(self._ref_counts) if count == 0]
        assert all(self._names[b] is None for b in self._free)
        assert {name: b for b, name in enumerate(self._names) if name is not None} == self._block_of_name
        for parent, _ in filter(None, self._contents):
            assert not isinstance(parent, int) or self._names[parent] is not None

    def _take(self) -> int:
        """Hand out a free block, evicting the least recently used registered one when there is no other."""
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._evictable.popitem(last=False)
            name = self._names[block_id]
            assert name is not None
            del self._block_of_name[name]
            self._names[block_id] = self._contents[block_id] = None
            self.stats.num_evictions += 1
        self._ref_counts[block_id] = 1
        return block_id

    def _share(self, block_id: int) -> None:
        """Count one more table that holds a registered block."""
        if not self._ref_counts[block_id]:
            del self._evictable[block_id]
        self._ref_counts[block_id] += 1

    def _release(self, block_id: int) -> None:
        """Count one table less that holds a block."""
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id]:
            return
        if self._names[block_id] is None:
            self._free.append(block_id)
        else:
            self._evictable[block_id] = None

    def _name(self, sequence: Sequence, index: int) -> bytes:
        """Return the prefix hash of a sequence's full block; each is computed once."""
        names, size = sequence.block_hashes, self.block_size
        if index < len(names):
            return names[index]
        for begin in range(len(names) * size, (index + 1) * size, size):
            parent = names[-1] if names else self._prefix_hash.root(sequence.request.cache_salt)
            names.append(self._prefix_hash.extend(parent, sequence.token_ids[begin : begin + size]))
        return names[index]
