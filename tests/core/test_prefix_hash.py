"""Prefix hashes separate everything that changes KV (case B23)."""

from itertools import combinations

import pytest

from mansard.core.prefix_hash import Blake2PrefixHash

TOKENS = list(range(16))


def test_names_are_at_least_128_bits_and_depend_on_parent_tokens_and_their_order():
    names = Blake2PrefixHash()
    root = names.root(None)
    first = names.extend(root, TOKENS)
    others = [
        names.extend(root, TOKENS[::-1]),
        names.extend(first, TOKENS),
        names.extend(root, TOKENS[:8]),
        names.extend(root, [*TOKENS[:15], 2**40]),
        root,
    ]
    assert len(first) * 8 >= 128
    assert len({first, *others}) == 6
    assert names.extend(root, TOKENS) == first


def test_roots_differ_by_every_field_and_never_by_accident_of_concatenation():
    roots = [
        Blake2PrefixHash(b"", "x").root(None),
        Blake2PrefixHash(b"", "").root("x"),  # a salt "x" is no fingerprint "x"
        Blake2PrefixHash(b"", "x").root(""),  # no salt is no empty salt
        Blake2PrefixHash(b"", "x").root("x"),
        Blake2PrefixHash(b"", "xx").root(None),
        Blake2PrefixHash(b"", "").root("xx"),
        Blake2PrefixHash(b"seed", "x").root(None),
        Blake2PrefixHash(b"", "model.gguf bf16 kv=int8").root(None),
        Blake2PrefixHash(b"", "model.gguf bf16 kv=bf16").root(None),
    ]
    assert all(a != b for a, b in combinations(roots, 2))


def test_a_root_is_never_a_block():
    names = Blake2PrefixHash()
    assert names.extend(b"", []) != names.root(None)


def test_a_lone_surrogate_in_a_salt_is_just_another_salt():
    assert Blake2PrefixHash().root("\ud800") != Blake2PrefixHash().root("?")


def test_a_seed_longer_than_the_key_is_refused():
    with pytest.raises(ValueError, match="64"):
        Blake2PrefixHash(b"k" * 65)
