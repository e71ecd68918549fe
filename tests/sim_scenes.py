"""Small deployments and hypothesis-made traffic for the simulator's tests: sizes at which every limit bites."""

from functools import cache

from hypothesis import strategies as st

from mansard.core.config import SchedulerConfig
from mansard.cost.op_cost import Layout
from mansard.sim.deployment import Deployment
from mansard.sim.planned import PlannedRequest, TokenIds
from mansard.sim.traffic import Chats, ClosedLoop, OpenLoop, Turn
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset

MODELS = ("llama-3.1-8b", "gpt-oss-20b")  # one kind of layer; sliding and full ones
MAX_LEN = 64


@cache
def small_deployment(model="llama-3.1-8b", num_blocks=24, block_size=4, replicas=1, split=None, pp=1):
    return Deployment(
        preset(model),
        find_hardware("h100-sxm"),
        Layout(pipeline_parallel=pp),
        num_replicas=replicas,
        num_kv_blocks=num_blocks,
        block_size=block_size,
        disaggregation=split,
    )


@st.composite
def planned(draw, count, shared=True):
    """Requests whose arrivals fall among the steps of others (a step takes 5 to 20 ms), some sharing prefixes."""
    ids, found, now = TokenIds(), [], 0.0
    common = ids.fresh()
    for number in range(count):
        now += draw(st.sampled_from([0.0, 0.0, 0.004, 0.03, 0.2]))
        own = ((ids.fresh(), draw(st.integers(1, 30))),)
        prefix = ((common, draw(st.integers(1, 40))),) if shared and draw(st.booleans()) else ()
        length = draw(st.integers(1, 40))
        found.append(
            PlannedRequest(f"r{number}", now, prefix + own, length, ids.fresh(), priority=draw(st.integers(0, 2)))
        )
    return found


@st.composite
def traffic(draw):
    """Open loops, closed loops and chats."""
    kind = draw(st.sampled_from(["open", "open", "closed", "chats"]))
    if kind == "chats":
        turn = st.builds(Turn, st.integers(1, 12), st.integers(1, 12), st.sampled_from([0.0, 0.01, 0.3]))
        turns = draw(st.lists(st.lists(turn, min_size=1, max_size=4), min_size=1, max_size=5))
        return Chats([0.01 * i for i in range(len(turns))], turns, ((10**6, draw(st.integers(1, 9))),))
    requests = draw(planned(draw(st.integers(2, 9))))
    if kind == "closed":
        return ClosedLoop(requests, draw(st.integers(1, 5)), draw(st.sampled_from([0.0, 0.02])))
    return OpenLoop(requests)


@st.composite
def configs(draw):
    """Every policy and limit."""
    policy = draw(st.sampled_from(["continuous", "continuous", "static", "dynamic"]))
    is_contiguous = draw(st.sampled_from([False, False, True]))
    is_chunked = draw(st.booleans())
    return SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([8, 16, 40])) if is_chunked else MAX_LEN,
        max_num_seqs=draw(st.sampled_from([2, 4, 8])),
        max_model_len=MAX_LEN,
        policy=policy,
        batch_window_s=0.03 if policy == "dynamic" else 0.0,
        kv_reservation="contiguous" if is_contiguous else "paged",
        enable_prefix_caching=not is_contiguous and draw(st.booleans()),
        enable_chunked_prefill=is_chunked,
        long_prefill_token_threshold=draw(st.sampled_from([None, 5])),
        min_decode_share=draw(st.sampled_from([0.0, 0.5])),
        enable_priority=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
    )
