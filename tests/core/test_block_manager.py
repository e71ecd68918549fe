"""BlockManager: sharing, hashing, eviction and copy-on-write (cases B23, B24's prefix part)."""

from collections.abc import Sequence as Tokens

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mansard.core.block_manager import BlockManager
from mansard.core.types import Request, Sequence

SIZE = 4


def sequence(tokens: Tokens[int], salt: str | None = None, name: str = "r") -> Sequence:
    return Sequence(Request(name, tuple(tokens), cache_salt=salt), 0, list(tokens))


def compute(blocks: BlockManager, seq: Sequence) -> Sequence:
    """Admit a sequence and compute all its tokens."""
    hits = blocks.match(seq)
    num_blocks = blocks.blocks_for(len(seq.token_ids))
    assert blocks.can_allocate(hits, num_blocks)
    blocks.allocate(seq, hits, num_blocks)
    seq.num_computed_tokens = len(seq.token_ids)
    blocks.register(seq)
    blocks.check()
    return seq


class Colliding:
    """A hash of which nothing can be told apart."""

    def root(self, cache_salt):
        return b"same"

    def extend(self, parent, token_ids):
        return b"same"


class CollidingByBlock(Colliding):
    """A hash that forgets the parent and the salt."""

    def extend(self, parent, token_ids):
        return bytes(token_ids)


def test_a_known_prefix_is_hit_but_a_token_is_always_left_to_compute():
    blocks = BlockManager(16, SIZE)
    first = compute(blocks, sequence(range(12)))
    assert blocks.match(sequence(range(12))) == first.block_ids[:2]  # the third block holds the last token
    assert blocks.match(sequence(range(13))) == first.block_ids
    assert blocks.match(sequence([*range(7), 99, *range(8, 13)])) == first.block_ids[:1]
    assert blocks.match(sequence(range(4))) == []


def test_salt_fingerprint_and_seed_isolate():
    blocks = BlockManager(32, SIZE, fingerprint="X")
    compute(blocks, sequence(range(12), salt="X"))
    for salt in (None, "", "Y"):
        assert blocks.match(sequence(range(12), salt=salt)) == []
    assert len(blocks.match(sequence(range(12), salt="X"))) == 2


def test_off_means_off():
    blocks = BlockManager(16, SIZE, enable_prefix_caching=False)
    compute(blocks, sequence(range(12)))
    assert blocks.match(sequence(range(12))) == [] and blocks.num_registered_blocks == 0


def test_a_forced_collision_is_no_hit():
    blocks = BlockManager(32, SIZE, prefix_hash=Colliding())
    compute(blocks, sequence(range(8)))
    assert blocks.match(sequence(range(100, 108))) == []
    compute(blocks, sequence(range(100, 112)))
    assert blocks.num_registered_blocks == 1
    assert len(blocks.match(sequence(range(8)))) == 1


def test_equal_blocks_behind_different_prefixes_or_salts_are_no_hit():
    """Tokens alone do not make a block the same: what came before it counts."""
    blocks = BlockManager(32, SIZE, prefix_hash=CollidingByBlock())
    compute(blocks, sequence([1, 1, 1, 1, 5, 5, 5, 5, 9]))
    assert len(blocks.match(sequence([1, 1, 1, 1, 5, 5, 5, 5, 9]))) == 2
    assert blocks.match(sequence([5, 5, 5, 5, 9])) == []
    assert blocks.match(sequence([2, 2, 2, 2, 5, 5, 5, 5, 9])) == []
    assert blocks.match(sequence([1, 1, 1, 1, 5, 5, 5, 5, 9], salt="tenant")) == []
    compute(blocks, sequence([2, 2, 2, 2, 5, 5, 5, 5, 9]))
    assert len(blocks.match(sequence([2, 2, 2, 2, 5, 5, 5, 5, 9]))) == 1


def test_ends_of_prefixes_are_evicted_first_and_the_oldest_prefix_before_a_younger():
    blocks = BlockManager(6, SIZE)
    old, young = compute(blocks, sequence(range(12))), compute(blocks, sequence(range(50, 62)))
    blocks.free(old)
    blocks.free(young)
    compute(blocks, sequence(range(90, 94)))
    assert len(blocks.match(sequence(range(13)))) == 2
    assert len(blocks.match(sequence(range(50, 63)))) == 3
    assert blocks.stats.num_evictions == 1


def test_a_hit_makes_a_prefix_young_again():
    blocks = BlockManager(4, SIZE)
    for tokens in (range(8), range(50, 58), range(9)):
        blocks.free(compute(blocks, sequence(tokens)))
    compute(blocks, sequence(range(90, 98)))
    assert len(blocks.match(sequence(range(9)))) == 2
    assert blocks.match(sequence(range(50, 59))) == []


def test_two_who_compute_the_same_block_end_up_sharing_it():
    blocks = BlockManager(16, SIZE)
    first, second = sequence(range(9), name="a"), sequence(range(9), name="b")
    for seq in (first, second):  # both admitted before either is computed: no hit
        blocks.allocate(seq, blocks.match(seq), 3)
    for seq in (first, second):
        seq.num_computed_tokens = 9
        blocks.register(seq)
    assert first.block_ids[:2] == second.block_ids[:2] and first.block_ids[2] != second.block_ids[2]
    assert blocks.num_used_blocks == 4


def test_a_fork_shares_until_it_writes():
    blocks = BlockManager(8, SIZE)
    parent, child = compute(blocks, sequence(range(6), name="p")), sequence(range(6), name="c")
    blocks.fork(parent, child, 6)
    assert child.block_ids == parent.block_ids and blocks.num_used_blocks == 2
    assert blocks.extend(child, 5, 6)
    (copy,) = blocks.take_copies()
    assert copy == (parent.block_ids[1], child.block_ids[1]) and parent.block_ids[0] == child.block_ids[0]
    assert blocks.extend(parent, 6, 7) and blocks.take_copies() == ()  # it has the block for itself again


def test_a_copy_holds_its_source_until_the_step_is_planned():
    blocks = BlockManager(3, SIZE, enable_prefix_caching=False)
    parent, child = compute(blocks, sequence(range(6), name="p")), sequence(range(6), name="c")
    blocks.fork(parent, child, 6)
    assert blocks.extend(child, 5, 6)
    blocks.free(parent)
    assert blocks.num_free_blocks == 0
    assert len(blocks.take_copies()) == 1
    assert blocks.num_free_blocks == 1


def test_no_room_changes_nothing():
    blocks = BlockManager(2, SIZE)
    seq = compute(blocks, sequence(range(8)))
    before = list(seq.block_ids)
    assert not blocks.extend(seq, 8, 9)
    assert seq.block_ids == before and blocks.take_copies() == ()


def test_a_reset_cache_forgets_and_running_sequences_keep_their_blocks():
    blocks = BlockManager(16, SIZE)
    running = compute(blocks, sequence(range(9), name="a"))
    blocks.free(compute(blocks, sequence(range(50, 59), name="b")))
    blocks.reset_prefix_cache()
    assert blocks.match(sequence(range(9))) == blocks.match(sequence(range(50, 59))) == []
    running.token_ids.extend(range(9, 17))
    assert blocks.extend(running, 9, 17)
    running.num_computed_tokens = 17
    blocks.register(running)  # what follows a forgotten block cannot be found: it stays out
    assert blocks.num_registered_blocks == 0
    blocks.free(running)
    blocks.check()
    assert blocks.num_free_blocks == 16


class BlockMachine(RuleBasedStateMachine):
    """Sequences over a tiny alphabet come, grow, fork and go; the pool's laws hold at any time."""

    @initialize(num_blocks=st.integers(1, 12), caching=st.booleans())
    def start(self, num_blocks, caching):
        self.blocks = BlockManager(num_blocks, 2, caching)
        self.live: list[Sequence] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, tokens):
        seq = sequence(tokens)
        hits, num_blocks = self.blocks.match(seq), self.blocks.blocks_for(len(tokens))
        if not self.blocks.can_allocate(hits, num_blocks):
            assert num_blocks > self.blocks.num_free_blocks
            return
        for block_id, index in zip(hits, range(0, 99, 2), strict=False):
            assert self.blocks._contents[block_id][1] == tuple(tokens[index : index + 2])
        self.blocks.allocate(seq, hits, num_blocks)
        seq.num_computed_tokens = len(tokens)
        self.blocks.register(seq)
        self.live.append(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def grow(self, data, token_ids):
        seq = data.draw(st.sampled_from(self.live))
        start = len(seq.token_ids)
        if self.blocks.extend(seq, start, start + len(token_ids)):
            seq.token_ids.extend(token_ids)
            seq.num_computed_tokens = len(seq.token_ids)
            assert self.blocks.ref_count(seq.block_ids[start // 2]) == 1, "a shared block is written"
            self.blocks.take_copies()
            self.blocks.register(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.live))
        child = sequence(parent.token_ids)
        self.blocks.fork(parent, child, len(parent.token_ids))
        child.num_computed_tokens = len(child.token_ids) - 1
        self.live.append(child)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(self.live))
        self.live.remove(seq)
        self.blocks.free(seq)

    @rule()
    def reset(self):
        self.blocks.reset_prefix_cache()

    @invariant()
    def laws(self):
        if not hasattr(self, "blocks"):
            return
        counts = [0] * self.blocks.num_blocks
        for seq in self.live:
            for block_id in seq.block_ids:
                counts[block_id] += 1
        assert counts == [self.blocks.ref_count(b) for b in range(self.blocks.num_blocks)]
        self.blocks.check()


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
