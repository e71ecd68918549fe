"""POST /v1/embeddings: pooled hidden states, whatever the chunks, the neighbours and the pool of blocks."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from toy_model import ToyExecutor
from toy_server import ToyServer, toy_server

from mansard.runtime.pooling import Pooling

PATH = "/v1/embeddings"


def vectors(server: ToyServer, given: Any, **body: Any) -> list[Any]:
    answer = server.post(PATH, input=given, **body)
    assert answer.status_code == 200, answer.text
    return [item["embedding"] for item in answer.json()["data"]]


def expected(server: ToyServer, text: str, pooling: str) -> np.ndarray:
    rows = server.executor.table[list(text.encode()), 32:40].astype(np.float64)
    vector = rows.mean(axis=0) if pooling == "mean" else rows[-1]
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_vector_is_the_pooled_hidden_states(pooling: str) -> None:
    texts = ["abc", "a longer text that takes several chunks of a step, " * 3]
    with toy_server(max_num_batched_tokens=16, max_num_seqs=4) as server:
        for _ in range(2):  # the second time the prefix cache must not hide any token
            for vector, text in zip(vectors(server, texts, pooling=pooling), texts, strict=True):
                np.testing.assert_allclose(vector, expected(server, text, pooling), rtol=1e-5)  # float32 answers
        assert server.is_idle() and not server.executor.pools


def test_the_four_forms_of_input_and_both_encodings() -> None:
    with toy_server() as server:
        (one,) = vectors(server, "ab")
        assert vectors(server, [97, 98]) == vectors(server, ["ab"]) == vectors(server, [[97, 98]]) == [one]
        (packed,) = vectors(server, "ab", encoding_format="base64")
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), np.float32(one))
        answer = server.post(PATH, input=["ab", "c"]).json()
        assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        assert [item["index"] for item in answer["data"]] == [0, 1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [999_999]}, "prompt"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": ["a"] * 300}, "input"),
    ],
)
def test_bad_input_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with toy_server() as server:
        refused = server.post(PATH, **body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_preemption_changes_no_vector() -> None:
    texts = ["a" * 60, "b" * 60]
    with toy_server(ToyExecutor(step_s=0.001), num_blocks=7, max_num_batched_tokens=8, max_num_seqs=4) as server:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda text: vectors(server, text)[0], texts))
        for vector, text in zip(found, texts, strict=True):
            np.testing.assert_allclose(vector, expected(server, text, "mean"), rtol=1e-5)


def test_rows_that_come_again_count_once() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    pool = Pooling("mean", 5)
    for start, end in ((0, 2), (2, 4), (0, 3), (3, 6)):
        pool.add(start, rows[start:end])
    mean = rows[:5].mean(axis=0)
    np.testing.assert_allclose(pool.embedding(), mean / np.linalg.norm(mean), rtol=1e-6)
    broken = Pooling("last", 1)
    broken.add(0, np.full((1, 2), np.nan, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        broken.embedding()
