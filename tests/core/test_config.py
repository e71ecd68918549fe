"""SchedulerConfig refuses what cannot work, with value, limit and remedy."""

import pytest

from mansard.core.block_manager import BlockManager
from mansard.core.config import SchedulerConfig
from mansard.core.scheduler import Scheduler


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"max_num_seqs": 0}, ["max_num_seqs is 0", "at least 1"]),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, ["9", "8", "raise"]),
        ({"policy": "orca"}, ["policy is orca", "continuous, dynamic, static"]),
        ({"kv_reservation": "heap"}, ["kv_reservation is heap", "paged, contiguous"]),
        ({"min_decode_share": 1.0}, ["min_decode_share is 1.0", "[0, 1)"]),
        ({"watermark": -0.1}, ["watermark is -0.1"]),
        ({"batch_window_s": -1.0, "policy": "dynamic"}, ["batch_window_s is -1.0"]),
        ({"batch_window_s": 1.0}, ["batch_window_s is 1.0", "continuous"]),
        ({"batch_size": 300}, ["batch_size is 300", "256"]),
        ({"long_prefill_token_threshold": 0}, ["long_prefill_token_threshold is 0"]),
        ({"enable_chunked_prefill": False}, ["2048", "4096", "chunked"]),
        ({"kv_reservation": "contiguous"}, ["enable_prefix_caching=False"]),
    ],
)
def test_a_bad_value_is_refused_with_its_limit(fields, parts):
    with pytest.raises(ValueError) as error:
        SchedulerConfig(**fields)
    assert all(part in str(error.value) for part in parts)


def test_a_scheduler_refuses_blocks_that_do_not_fit_its_configuration():
    with pytest.raises(ValueError, match="both the same"):
        Scheduler(SchedulerConfig(), BlockManager(8, enable_prefix_caching=False))
    config = SchedulerConfig(kv_reservation="contiguous", enable_prefix_caching=False, max_model_len=4096)
    with pytest.raises(ValueError, match="256 blocks; the pool has 255"):
        Scheduler(config, BlockManager(255, 16, enable_prefix_caching=False))


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="0 blocks of 16"):
        BlockManager(0)
