"""What the native module refuses: every count, index and shape is checked before memory is touched."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import K_QUANTS, NATIVE_NAMES, STORED, stored
from native_parts import BLOCKS, POSITIONS, TOKENS, VOCAB, WIDTH, empty, good_step, ints, whole


def test_the_good_step_runs() -> None:
    step = good_step()
    whole().step(**step)
    assert np.isfinite(step["logits"]).all() and step["logits"].any()


BAD_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "token beyond the vocabulary": ({"tokens": ints(3, VOCAB, 5, 9)}, "token id 50"),
    "negative token": ({"tokens": ints(3, -1, 5, 9)}, "token id -1"),
    "position beyond the tables": ({"positions": ints(62, 63, 64, 0)}, "position 64"),
    "negative position": ({"positions": ints(-1, 0, 1, 0)}, "position -1"),
    "positions with a gap": ({"positions": ints(15, 17, 18, 0)}, "follow each other"),
    "fewer positions": ({"positions": ints(15, 16, 17)}, "differ in length"),
    "block beyond the cache": ({"blocks": ints(4, BLOCKS, 0)}, "block 6"),
    "negative block": ({"blocks": ints(4, -1, 0)}, "block -1"),
    "table too short": ({"table_ends": ints(1, 3)}, "shorter than its tokens"),
    "tables that overlap": ({"table_ends": ints(3, 2)}, "do not fit"),
    "table beyond the blocks": ({"table_ends": ints(2, 4)}, "do not fit"),
    "no table": ({"table_ends": ints(2, 2)}, "shorter than its tokens"),
    "fewer tables": ({"table_ends": ints(3)}, "differ in length"),
    "too many tokens counted": ({"counts": ints(3, 2)}, "do not fit"),
    "too few tokens counted": ({"counts": ints(2, 1), "positions": ints(15, 16, 0, 0)}, "add up"),
    "a sequence of none": ({"counts": ints(4, 0), "positions": ints(15, 16, 17, 18)}, "do not fit"),
    "a negative count": ({"counts": ints(-1, 5)}, "do not fit"),
    "a count near the largest": ({"counts": ints(3, 2**31 - 1)}, "do not fit"),
    "no sequences": ({"counts": ints(), "table_ends": ints()}, "add up"),
    "logit row beyond the tokens": ({"logit_rows": ints(2, 4)}, "logit row 4"),
    "negative logit row": ({"logit_rows": ints(-1, 3)}, "logit row -1"),
    "logits of too few rows": ({"logits": np.zeros((1, VOCAB), np.float32)}, "wrong shape"),
    "logits of too few columns": ({"logits": np.zeros((2, VOCAB - 1), np.float32)}, "wrong shape"),
    "no tokens": ({n: ints() for n in ("tokens", "positions", "counts", "table_ends")}, "number of tokens"),
    "more tokens than the buffers hold": (
        {
            "tokens": ints(*range(9)),
            "positions": ints(*range(9)),
            "counts": ints(9),
            "table_ends": ints(1),
        },
        "number of tokens",
    ),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_bad_steps_are_refused(name: str) -> None:
    changes, message = BAD_STEPS[name]
    model = whole()
    with pytest.raises(ValueError, match=message):
        model.step(**{**good_step(), **changes})
    model.step(**good_step())  # and leave the model in order


@pytest.mark.parametrize(
    "tokens", [np.zeros((2, 2), np.int32), np.zeros(4, np.complex64), "abcd", None, ["a"], object()]
)
def test_tokens_of_another_kind_are_refused(tokens: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        whole().step(**{**good_step(), "tokens": tokens})


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros((2, VOCAB), np.float64),
        np.zeros((2, 2 * VOCAB), np.float32)[:, ::2],
        np.zeros((VOCAB, 2), np.float32).T,
    ],
)
def test_logits_are_never_written_to_a_copy(logits: np.ndarray) -> None:
    """An output that is converted on the way in would leave the caller's array as it was, without a word."""
    with pytest.raises((TypeError, ValueError)):
        whole().step(**{**good_step(), "logits": logits})


def test_hidden_states_are_never_written_to_a_copy() -> None:
    """As for logits: an array of doubles was converted, filled and thrown away."""
    model = whole()
    model.step(**good_step())
    with pytest.raises((TypeError, ValueError)):
        model.hidden_states(0, np.zeros((2, WIDTH), np.float64))
    rows = np.zeros((2, WIDTH), np.float32)
    model.hidden_states(0, rows)
    assert np.abs(rows).max() > 0


def test_steps_of_two_threads_take_turns() -> None:
    """Two threads in one model at once would run the pool's one job slot over each other."""
    model, expected = whole(), whole()
    steps = [good_step() for _ in range(4)]
    for step in steps:
        expected.step(**step)
    want = steps[0]["logits"].copy()
    threads = [threading.Thread(target=lambda s=s: [model.step(**s) for _ in range(50)]) for s in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(step["logits"], want) for step in steps)


def test_logits_that_cannot_be_written_are_refused() -> None:
    step = good_step()
    step["logits"].flags.writeable = False
    with pytest.raises((TypeError, ValueError)):
        whole().step(**step)


SMALL = st.integers(-2, 70)
EXTREME = st.sampled_from([-(2**31), 2**31 - 1, 2**16, -1, 0])
GARBAGE = st.lists(st.one_of(SMALL, SMALL, EXTREME), max_size=12)
MODEL = whole()


@settings(max_examples=400, deadline=None)
@given(
    changed=st.dictionaries(
        st.sampled_from(["tokens", "positions", "counts", "table_ends", "blocks", "logit_rows"]), GARBAGE, min_size=1
    )
)
def test_random_steps_run_or_are_refused(changed: dict[str, list[int]]) -> None:
    step = {**good_step(), **{name: ints(*values) for name, values in changed.items()}}
    step["logits"] = np.zeros((len(step["logit_rows"]), VOCAB), np.float32)
    try:
        MODEL.step(**step)
    except ValueError:
        return
    assert np.isfinite(step["logits"]).all()


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=TOKENS),
    cuts=st.lists(st.integers(1, 4), max_size=4),
    starts=st.lists(st.integers(0, POSITIONS), min_size=9, max_size=9),
    blocks=st.lists(st.integers(0, BLOCKS - 1), max_size=12),
    ends=st.lists(st.integers(0, 12), min_size=9, max_size=9),
)
def test_nearly_valid_steps_run_or_are_refused(
    tokens: list[int], cuts: list[int], starts: list[int], blocks: list[int], ends: list[int]
) -> None:
    """Sequences of valid ids at positions of their own; tables of any length, sharing blocks as they like."""
    counts = [*cuts, len(tokens) - sum(cuts)]
    positions = [s + i for s, n in zip(starts, counts, strict=False) for i in range(max(0, n))]
    logits = np.zeros((1, VOCAB), np.float32)
    arrays = [ints(*a) for a in (tokens, positions, counts, sorted(ends[: len(counts)]), blocks, [len(tokens) - 1])]
    try:
        MODEL.step(*arrays, logits)
    except ValueError:
        return
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("pair", [(-1, 0), (0, BLOCKS), (2**31 - 1, 0), (0, -(2**31))])
def test_copies_outside_the_cache_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="block"):
        MODEL.copy_block(*pair)


@pytest.mark.parametrize("fmt", STORED)
def test_weights_of_a_wrong_size_are_refused(fmt: str) -> None:
    columns = 256 if fmt in K_QUANTS else 64
    tensor = stored(np.random.default_rng(0), fmt, 5, columns)
    name = NATIVE_NAMES.get(fmt, fmt)
    model = empty()
    assert model.add_weight(name, tensor.data, 5, columns) == 0
    for data, rows in ((tensor.data[:-1], 5), (tensor.data, 6), (tensor.data, 4), (tensor.data[:0], 5)):
        with pytest.raises(ValueError, match="bytes"):
            model.add_weight(name, np.ascontiguousarray(data), rows, columns)
    with pytest.raises(ValueError, match=r"multiple of|bytes"):
        model.add_weight(name, tensor.data, 5, columns - 1)
    for rows, width in ((0, columns), (-5, columns), (5, 0), (5, -columns)):
        with pytest.raises(ValueError, match="at least one"):
            model.add_weight(name, tensor.data, rows, width)


@pytest.mark.parametrize("fmt", ["Q8_K", "IQ2_XS", "", "q4_0", "mxfp4", "fp8"])
def test_unknown_formats_are_refused(fmt: str) -> None:
    with pytest.raises(ValueError, match="no layout"):
        empty().add_weight(fmt, np.zeros(64, np.uint8), 1, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"isa": "sse9"},
        {"activations": "int3"},
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"max_positions": 0},
        {"num_blocks": -1},
    ],
)
def test_models_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        empty(**changes)
