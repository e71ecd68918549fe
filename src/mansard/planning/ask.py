"""Ask: from what a person writes (names, `h100:8`, `ttft=450ms`) to a `Question`, and from there to a `Plan`.

`plan` is what `mansard.plan` calls. Everything is looked up offline; a wrong name answers with the nearest ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mansard.cost.op_cost import Layout
from mansard.cost.planner import Plan, answer
from mansard.cost.question import MAX_DEVICES, Objective, Question, chat
from mansard.cost.stored_formats import checkpoint_format
from mansard.loading.model_source import cached_config, load_model_spec
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import find_hardware, load_hardware_file, parse_hardware
from mansard.specs.model_presets import find_preset
from mansard.specs.number_formats import format_kind
from mansard.specs.precision import number_format
from mansard.specs.slo import Slo, parse_slo
from mansard.specs.workload import Workload, find_workload


def plan(
    model: str,
    *,
    gpu: str | HardwareSpec | Sequence[str | HardwareSpec] | None = None,
    engine: str = "auto",
    weights: str | Sequence[str] = "auto",
    kv: str | Sequence[str] = "auto",
    workload: str | Workload | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    slo: str | Slo | None = None,
    objective: Objective = "cheapest",
    max_model_len: int | None = None,
    memory_fraction: float | None = None,
    num_batched_tokens: int | None = None,
    price: float | None = None,
    layout: Layout | None = None,
    max_devices: int = MAX_DEVICES,
    hardware_file: str | Path | None = None,
    detail: bool = False,
) -> Plan:
    """Return what it takes to serve `model`.

    `gpu` is a name with or without a count (`h100:8`), several of them, or None for the whole catalogue. `weights` and
    `kv` are formats or lists of formats to choose from. `rate` is in requests per second, `price` in US dollars per
    device and hour.

    Raises: ValueError for a name or value that cannot be used, with the nearest names or the limit.
    """
    question = ask(
        model,
        gpu=gpu,
        engine=engine,
        weights=weights,
        kv=kv,
        workload=workload,
        rate=rate,
        concurrency=concurrency,
        slo=slo,
        objective=objective,
        max_model_len=max_model_len,
        memory_fraction=memory_fraction,
        num_batched_tokens=num_batched_tokens,
        price=price,
        layout=layout,
        max_devices=max_devices,
        hardware_file=hardware_file,
    )
    return answer(question, detail)


def ask(
    model: str,
    *,
    gpu: str | HardwareSpec | Sequence[str | HardwareSpec] | None = None,
    engine: str = "auto",
    weights: str | Sequence[str] = "auto",
    kv: str | Sequence[str] = "auto",
    workload: str | Workload | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    slo: str | Slo | None = None,
    objective: Objective = "cheapest",
    max_model_len: int | None = None,
    memory_fraction: float | None = None,
    num_batched_tokens: int | None = None,
    price: float | None = None,
    layout: Layout | None = None,
    max_devices: int = MAX_DEVICES,
    hardware_file: str | Path | None = None,
) -> Question:
    """Return the question that the words mean; see `plan`.

    Raises: ValueError for a name or value that cannot be used, with the nearest names or the limit.
    """
    hardware, count = _hardware(gpu, Path(hardware_file) if hardware_file else None, price)
    stored = stored_in(model)
    return Question(
        spec=load_model_spec(model),
        workload=_load(workload, rate, concurrency),
        slo=parse_slo(slo) if isinstance(slo, str) else slo,
        hardware=hardware,
        num_devices=layout.num_ranks if layout and count is None else count,
        engine=engine,
        weights=_formats(weights, stored),
        kv=_formats(kv, "auto"),
        layout=layout,
        objective=objective,
        max_model_len=max_model_len,
        memory_fraction=memory_fraction,
        num_batched_tokens=num_batched_tokens,
        max_devices=max_devices,
        other_parameters=_other_parameters(model),
    )


def _hardware(
    gpu: str | HardwareSpec | Sequence[str | HardwareSpec] | None, file: Path | None, price: float | None
) -> tuple[tuple[HardwareSpec, ...], int | None]:
    """Return the hardware to consider and the number of devices where one is written."""
    if gpu is None:
        given: tuple[str | HardwareSpec, ...] = load_hardware_file(file) if file else ()
    else:
        given = (gpu,) if isinstance(gpu, str | HardwareSpec) else tuple(gpu)
    if price is not None and price < 0:
        raise ValueError(f"price {price} must be 0 or more US dollars per device and hour")
    found: list[HardwareSpec] = []
    counts: set[int | None] = set()
    for item in given:
        spec, count = (item, None) if isinstance(item, HardwareSpec) else _parse(item, file)
        found.append(spec if price is None else spec.with_price(price))
        counts.add(count)
    if len(counts) > 1:
        raise ValueError("give every GPU the same count, or none (for example h100:8,h200:8)")
    return tuple(found), next(iter(counts), None)


def _parse(text: str, file: Path | None) -> tuple[HardwareSpec, int | None]:
    if ":" not in text:
        return find_hardware(text, file), None
    return parse_hardware(text, file)


def _load(workload: str | Workload | None, rate: float | None, concurrency: int | None) -> Workload:
    found = workload if isinstance(workload, Workload) else find_workload(workload) if workload else chat()
    if rate is not None and concurrency is not None:
        raise ValueError("give a rate or a concurrency, not both")
    if rate is not None:
        return found.at_rate(rate)
    return found if concurrency is None else found.at_concurrency(concurrency)


def _formats(given: str | Sequence[str], auto: str) -> tuple[str, ...]:
    """Return canonical format names; `auto` stands for what the model is stored in."""
    names = given.split(",") if isinstance(given, str) else list(given)
    found = []
    for name in (n.strip() for n in names):
        key = auto if name == "auto" else name
        if key != "auto":
            key = number_format(key).name
            format_kind(key)
        found.append(key)
    return tuple(dict.fromkeys(found))


def stored_in(model: str) -> str:
    """Return the format that a model's own files declare, or `auto`: the publisher's for a known name."""
    path = Path(model).expanduser()
    config = path / "config.json" if path.is_dir() else path if path.suffix == ".json" else cached_config(model)
    if config is None or not config.is_file():
        return "auto"
    try:
        declared = checkpoint_format(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError):
        return "auto"  # load_model_spec says what is wrong with it
    return declared or "bf16"


def _other_parameters(model: str) -> int:
    """Return the parameters beside the language model that a preset tells of (a vision tower)."""
    if Path(model).expanduser().exists():
        return 0
    try:
        return find_preset(model).other_parameters
    except ValueError:
        return 0


def hf_id(model: str) -> str:
    """Return what an engine is told to load: a path as given, a Hugging Face id for a preset's name."""
    if Path(model).expanduser().exists() or "/" in model:
        return model
    return find_preset(model).hf_id
