"""SchedulerConfig: the limits and the batching policy of a scheduler, checked once and never changed.

A policy is a set of parameters, not another scheduler, so that what each one costs can be measured on the
same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["continuous", "dynamic", "static"]
KvReservation = Literal["paged", "contiguous"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a step may hold and how batches form.

    policy: `continuous` admits whenever there is room; `static` takes up to `batch_size` waiting sequences
    and runs them to completion before it takes more; `dynamic` is static that first waits until the batch is
    full or `batch_window_s` is over. kv_reservation: `paged` takes blocks as a sequence grows; `contiguous`
    reserves `max_model_len` tokens for each when it is admitted.

    Raises: ValueError naming the value, its limit and the remedy.
    """

    max_num_batched_tokens: int = 2048  # tokens of one step, all sequences together
    max_num_seqs: int = 256  # sequences of one step
    max_model_len: int = 4096  # prompt and output of one sequence
    policy: Policy = "continuous"
    batch_size: int | None = None  # static, dynamic; None: max_num_seqs
    batch_window_s: float = 0.0  # dynamic
    kv_reservation: KvReservation = "paged"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int | None = None  # most tokens of one prompt in a step; None: no limit
    min_decode_share: float = 0.0  # of a step's tokens, kept from prompts while other sequences decode
    enable_priority: bool = False
    watermark: float = 0.01  # of the blocks, kept free when a sequence joins others

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name, choices in (("policy", get_args(Policy)), ("kv_reservation", get_args(KvReservation))):
            value = getattr(self, name)
            _require(value in choices, name, value, f"one of {', '.join(choices)}")
        _require(0.0 <= self.min_decode_share < 1.0, "min_decode_share", self.min_decode_share, "in [0, 1)")
        _require(0.0 <= self.watermark < 1.0, "watermark", self.watermark, "in [0, 1)")
        _require(self.batch_window_s >= 0.0, "batch_window_s", self.batch_window_s, "at least 0")
        self._check_optional_limits()
        self._check_combinations()

    @property
    def num_batch_seqs(self) -> int:
        """Return how many sequences a static or dynamic batch may hold."""
        return self.max_num_seqs if self.batch_size is None else self.batch_size

    @property
    def max_prefill_tokens_beside_decodes(self) -> int:
        """Return how many prompt tokens a step may hold while other sequences decode; at least 1."""
        return max(1, int(self.max_num_batched_tokens * (1.0 - self.min_decode_share)))

    def _check_optional_limits(self) -> None:
        threshold, size = self.long_prefill_token_threshold, self.batch_size
        is_valid = threshold is None or threshold >= 1
        _require(is_valid, "long_prefill_token_threshold", threshold, "at least 1, or None")
        _require(
            size is None or 1 <= size <= self.max_num_seqs,
            "batch_size",
            size,
            f"between 1 and max_num_seqs = {self.max_num_seqs}; raise max_num_seqs",
        )

    def _check_combinations(self) -> None:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs} but a step holds max_num_batched_tokens = "
                f"{self.max_num_batched_tokens} tokens, at least one each; raise it or lower max_num_seqs"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but without chunked prefill a step "
                f"holds whole prompts of up to max_model_len = {self.max_model_len} tokens; raise the former "
                "or enable chunked prefill"
            )
        if self.kv_reservation == "contiguous" and self.enable_prefix_caching:
            raise ValueError(
                "kv_reservation is 'contiguous', which shares no blocks, and prefix caching is enabled; "
                "set enable_prefix_caching=False or use 'paged'"
            )
        if self.policy != "dynamic" and self.batch_window_s > 0.0:
            raise ValueError(
                f"batch_window_s is {self.batch_window_s}, but only policy 'dynamic' waits; policy is '{self.policy}'"
            )


def _require(holds: bool, name: str, value: object, limit: str) -> None:
    """Refuse a value outside its limit."""
    if not holds:
        raise ValueError(f"{name} is {value}; it must be {limit}")
