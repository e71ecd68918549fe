"""Levers: the single changes to a deployment that are worth knowing, each with what it changes.

One thing is changed at a time, the deployment is evaluated again under the same limits, and the difference is told
in the numbers people decide by: requests at once, TPOT, dollars per million tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mansard.cost.candidates import layouts
from mansard.cost.deployment import Deployment, Pricer, make_deployment
from mansard.cost.engine_support import ENGINES
from mansard.cost.op_cost import Layout
from mansard.cost.options import evaluate
from mansard.cost.pick import Pick, pick
from mansard.cost.question import Question
from mansard.specs.hardware_catalogue import catalogue
from mansard.specs.number_formats import support
from mansard.specs.precision import number_format

MATTERS = 0.01  # changes below are not shown


@dataclass(frozen=True, slots=True)
class Lever:
    """A change and its effect, as ratios to the plan it changes (1.0: no change); `limit` when it does not run.

    `users` is the change of admissible requests at once, `tpot` and `usd` are ratios, at the load each allows;
    `tpot_alone` is the ratio of one request's TPOT.
    """

    change: str
    deployment: Deployment
    users: int = 0
    users_before: int = 0
    tpot: float = 1.0
    tpot_alone: float = 1.0
    tokens_per_s: float = 1.0
    usd: float | None = None
    limit: str | None = None

    @property
    def matters(self) -> bool:
        """Say whether anything changes by a percent or more."""
        ratios = (self.tpot_alone, self.tokens_per_s, 1.0 if self.usd is None else self.usd)
        return self.users != self.users_before or any(abs(ratio - 1.0) >= MATTERS for ratio in ratios)


def levers(question: Question, pricer: Pricer, chosen: Pick) -> tuple[Lever, ...]:
    """Return the changes that run, those that lower the cost or the latency most first."""
    free = _of_one_replica(question)
    before = pick(free, replace(chosen.option, deployment=replace(chosen.deployment, num_replicas=1)))
    if before is None:
        return ()
    found = [_compare(question, pricer, before, change, made) for change, made in changes(question, chosen.deployment)]
    return tuple(lever for lever in found if lever.limit is None and lever.matters)


def _of_one_replica(question: Question) -> Question:
    """Return the question of how much one replica carries: the same requests and limits, their number free."""
    workload = replace(question.workload, rate_req_s=None, concurrency=None)
    return replace(question, workload=workload, num_devices=None, objective="cheapest")


def split_text(layout: Layout) -> str:
    """Return a split in short: `TP4`, `TP8 PP2`, `DP8 EP8`; one device has none."""
    sizes = {"TP": layout.tensor_parallel, "DP": layout.data_parallel, "PP": layout.pipeline_parallel}
    sizes["EP"] = layout.expert_parallel
    return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "one device"


def changes(question: Question, base: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield every single change to `base`: formats, split, token budget."""
    yield from _format_changes(question, base)
    layout = base.layout
    if ENGINES[base.engine].tensor_parallel and base.hardware.link.kind != "none":
        for size in (layout.tensor_parallel // 2, layout.tensor_parallel * 2):
            if size >= 1 and layout.expert_parallel == 1 and layout.data_parallel == 1:
                changed = replace(layout, tensor_parallel=size)
                yield f"TP {layout.tensor_parallel} → {size}", replace(base, layout=changed)
    for budget in (base.num_batched_tokens // 4, base.num_batched_tokens * 2):
        text = f"token budget {base.num_batched_tokens:,} → {budget:,}"
        yield text, replace(base, num_batched_tokens=budget)


def _format_changes(question: Question, base: Deployment) -> Iterator[tuple[str, Deployment]]:
    bits = number_format(base.weights).bits_per_weight
    for name in ("fp8", "int8", "int4", "nvfp4"):
        smaller = number_format(name).bits_per_weight < 0.9 * bits
        if not smaller or support(base.hardware, name) == "none" or (name == "int8" and "fp8" in base.hardware.flops):
            continue
        if name == "nvfp4" and support(base.hardware, name) != "native":
            continue
        yield f"weights {base.weights} → {name}", _rebuilt(question, base, weights=name)
    if number_format(base.kv).bits > 8:
        kv = "fp8" if support(base.hardware, "fp8") != "none" and base.engine != "llama.cpp" else "int8"
        yield f"KV cache {base.kv} → {kv}", _rebuilt(question, base, kv=kv)


def _rebuilt(question: Question, base: Deployment, weights: str = "", kv: str = "") -> Deployment:
    made = make_deployment(question, base.hardware, base.layout, weights or base.weights, kv or base.kv, base.engine)
    return replace(made, num_batched_tokens=base.num_batched_tokens, max_model_len=base.max_model_len)


def _compare(question: Question, pricer: Pricer, before: Pick, change: str, made: Deployment) -> Lever:
    option = evaluate(question, pricer, replace(made, num_replicas=1))  # priced as the requests come, then freed
    after = pick(_of_one_replica(question), option)
    if after is None or after.limit is not None:
        return Lever(change, made, limit=option.limit or (after.limit if after else "not priced"))
    assert before.option.tpot_s is not None and option.tpot_s is not None
    old, new = before.usd_per_million_tokens, after.usd_per_million_tokens
    return Lever(
        change,
        made,
        users=round(after.concurrency),
        users_before=round(before.concurrency),
        tpot=after.tpot_s / before.tpot_s,
        tpot_alone=float(option.tpot_s[0] / before.option.tpot_s[0]),
        tokens_per_s=after.output_tokens_per_s / before.output_tokens_per_s,
        usd=None if old is None or new is None else new / old,
    )


def fixes(question: Question, pricer: Pricer, base: Deployment) -> tuple[str, ...]:
    """Return the single changes that make a deployment answer which does not, each as one sentence."""
    found: list[str] = []
    for change, made in (*changes(question, base), *_more_devices(question, base)):
        option = evaluate(question, pricer, made)
        picked = pick(replace(question, num_devices=None), option)
        if picked is not None and picked.limit is None:
            found.append(change)
    found += [*_shorter(question, pricer, base), *_other_hardware(question, pricer, base)]
    return tuple(dict.fromkeys(found))


def _more_devices(question: Question, base: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield larger replicas of the same devices, split as the search would."""
    for size in (2, 4, 8, 16):
        for layout in layouts(question.spec, base.hardware, base.engine, size)[:1]:
            if size > base.layout.num_ranks:
                yield f"{size} devices ({split_text(layout)})", replace(base, layout=layout)


def _other_hardware(question: Question, pricer: Pricer, base: Deployment) -> Iterator[str]:
    """Yield the fewest devices of the vendor's other kinds that answer: the three cheapest an hour."""
    found: list[tuple[float, str]] = []
    for spec in catalogue().values():
        if spec.price is None or spec.name == base.hardware.name or spec.vendor != base.hardware.vendor:
            continue
        for size in (1, 2, 4, 8):
            if size > max(1, spec.link.max_devices):
                break
            made = make_deployment(question, spec, Layout(tensor_parallel=size), base.weights, base.kv, base.engine)
            picked = pick(replace(question, num_devices=None), evaluate(question, pricer, made))
            if picked is not None and picked.limit is None:
                hourly = picked.deployment.usd_per_hour or 0.0
                found.append((hourly, f"{picked.deployment.num_devices}× {spec.name} (${hourly:.2f}/h)"))
                break
    yield from (text for _, text in sorted(found)[:3])


def _shorter(question: Question, pricer: Pricer, base: Deployment) -> Iterator[str]:
    """Yield the context that would fit, where the context is what does not."""
    option = evaluate(question, pricer, base)
    if option.ledger is None or option.ledger.longest_model_len <= 0:
        return
    longest = option.ledger.longest_model_len
    if 256 <= longest < base.max_model_len:
        yield f"--max-model-len {longest // 256 * 256}"
