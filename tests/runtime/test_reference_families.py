"""Every family's tiny model in the reference interpreter against `transformers`, and the paged cache's laws."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mansard.core.types import Request, ScheduledSequence, StepPlan
from mansard.loading.weights import Weights
from mansard.program.decoder import decoder
from mansard.program.ops import Program
from mansard.runtime.reference import ReferenceExecutor
from mansard.specs.hf_config import from_hf
from tiny_models import FAMILIES, PROMPT, tiny_model, transformers_logits

# Both compute in float32 in another order; logits are of order one, errors of a few float32 epsilons a layer.
TOLERANCE = 1e-4


def load(family: str, tmp_path: Path, max_model_len: int | None = None) -> tuple[Program, Callable]:
    path = tiny_model(family, tmp_path)
    spec = from_hf(json.loads((path / "config.json").read_text()))
    return decoder(spec, max_model_len=max_model_len), Weights.open(path).float32


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    executor = ReferenceExecutor(*load(family, tmp_path))
    if family == "phi3":  # its context is longer than it was trained for; a short deployment uses the short list
        executor = ReferenceExecutor(*load(family, tmp_path, max_model_len=256))
    expected = transformers_logits(family, PROMPT)
    assert np.ptp(expected) > 1.0, "the tiny model's logits are too flat to show anything"
    np.testing.assert_allclose(executor.forward(PROMPT), expected, rtol=0, atol=TOLERANCE)
