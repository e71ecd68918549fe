"""Generated workloads for the toy model: requests and scheduler configurations at sizes where limits bite."""

from hypothesis import strategies as st

from mansard.core.config import SchedulerConfig
from mansard.core.types import Request, SamplingParams

MAX_LEN = 40


@st.composite
def requests(draw, max_requests=8, **fixed):
    """Requests with shared prefixes, early stops, siblings, salts and priorities."""
    found = []
    for number in range(draw(st.integers(3, max_requests))):
        num_shared, num_own = draw(st.integers(0, 20)), draw(st.integers(1, 12))
        prompt = [1] * num_shared + [draw(st.integers(1, 3))] * num_own
        prompt_logprobs = fixed.get("prompt_logprobs", draw(st.sampled_from([None, None, None, 0])))
        fields = {
            "temperature": draw(st.sampled_from([0.0, 1.0])),
            "seed": draw(st.sampled_from([None, 3])),
            "max_tokens": draw(st.sampled_from([1, 9, 15, None] + [0] * (prompt_logprobs is not None))),
            "ignore_eos": draw(st.sampled_from([True, True, False])),
            "stop_token_ids": draw(st.sampled_from([(), (), (5, 6, 7)])),
            "n": draw(st.sampled_from([1, 1, 1, 2, 4])),
            "prompt_logprobs": prompt_logprobs,
        }
        params = SamplingParams(**(fields | fixed))
        salt = draw(st.sampled_from([None, None, "tenant"]))
        priority = draw(st.integers(0, 2))
        found.append(Request(f"r{number}", tuple(prompt), params, cache_salt=salt, priority=priority))
    return found


@st.composite
def configs(draw, **fixed):
    """Every policy and limit, at sizes where they bite."""
    is_chunked, is_contiguous = draw(st.booleans()), draw(st.sampled_from([False, False, True]))
    policy = fixed.get("policy", draw(st.sampled_from(["continuous", "continuous", "static", "dynamic"])))
    fields = {
        "max_num_batched_tokens": draw(st.sampled_from([4, 7, 16, 30])) if is_chunked else MAX_LEN,
        "max_num_seqs": draw(st.sampled_from([4, 3, 2, 1])),
        "max_model_len": MAX_LEN,
        "policy": policy,
        "batch_window_s": 2.5 if policy == "dynamic" else 0.0,
        "kv_reservation": "contiguous" if is_contiguous else "paged",
        "enable_prefix_caching": not is_contiguous and draw(st.booleans()),
        "enable_chunked_prefill": is_chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([None, 3])),
        "min_decode_share": draw(st.sampled_from([0.0, 0.5])),
        "enable_priority": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.2])),
    }
    return SchedulerConfig(**(fields | fixed))
