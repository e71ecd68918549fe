"""Ask: from what a person writes (names, `h100:8`, `ttft=450ms`) to a `Question`, and from there to a `Plan`.

`plan` is what `mansard.plan` calls. Everything is looked up offline; a wrong name answers with the nearest ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, TypedDict, Unpack

from mansard.cost.calibrate import host_hardware, load_calibration
from mansard.cost.op_cost import Layout
from mansard.cost.planner import Plan, answer
from mansard.cost.question import MAX_DEVICES, Objective, Question, chat
from mansard.cost.steady_state import Speculation
from mansard.cost.stored_formats import checkpoint_format
from mansard.loading.model_source import cached_config, load_model_spec
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import find_hardware, load_hardware_file, parse_hardware
from mansard.specs.model_presets import find_preset
from mansard.specs.number_formats import format_kind
from mansard.specs.precision import number_format
from mansard.specs.slo import Slo, parse_slo
from mansard.specs.workload import Workload, find_workload

Gpu: TypeAlias = "str | HardwareSpec | Sequence[str | HardwareSpec] | None"
THIS_MACHINE = ("this", "this-machine", "host")


class Settings(TypedDict, total=False):
    """What may be told beside the model; everything else is left open or takes its default.

    `gpu` is a name with or without a count (`h100:8`), `this` (this machine, measured by `mansard roof`), several of
    them, or None for the whole catalogue. `weights` and `kv` are formats or lists of formats to choose from. `rate` is
    in requests per second, `price` in US dollars per device and hour, `speculation` as `4:0.7` (drafts a step and how
    often one is accepted).
    """

    gpu: Gpu
    engine: str
    weights: str | Sequence[str]
    kv: str | Sequence[str]
    workload: str | Workload | None
    rate: float | None
    concurrency: int | None
    slo: str | Slo | None
    objective: Objective
    max_model_len: int | None
    memory_fraction: float | None
    num_batched_tokens: int | None
    price: float | None
    layout: Layout | None
    max_devices: int
    hardware_file: str | Path | None
    speculation: str | Speculation | None


def plan(model: str, *, detail: bool = False, **settings: Unpack[Settings]) -> Plan:
    """Return what it takes to serve `model`; `detail` adds every op to the phases. See `Settings`.

    Raises: ValueError for a name or value that cannot be used, with the nearest names or the limit.
    """
    return answer(ask(model, **settings), detail)


def ask(model: str, **settings: Unpack[Settings]) -> Question:
    """Return the question that the words mean; see `Settings`.

    Raises: ValueError for a name or value that cannot be used, with the nearest names or the limit.
    """
    unknown = sorted(set(settings) - set(Settings.__annotations__))
    if unknown:
        raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(Settings.__annotations__)}")
    file, layout, slo = settings.get("hardware_file"), settings.get("layout"), settings.get("slo")
    hardware, count = _hardware(settings.get("gpu"), Path(file) if file else None, settings.get("price"))
    speculation = settings.get("speculation")
    return Question(
        spec=load_model_spec(model),
        workload=_load(settings.get("workload"), settings.get("rate"), settings.get("concurrency")),
        slo=parse_slo(slo) if isinstance(slo, str) else slo,
        hardware=hardware,
        num_devices=layout.num_ranks if layout and count is None else count,
        engine=settings.get("engine", "auto"),
        weights=_formats(settings.get("weights", "auto"), stored_in(model)),
        kv=_formats(settings.get("kv", "auto"), "auto"),
        layout=layout,
        objective=settings.get("objective", "cheapest"),
        max_model_len=settings.get("max_model_len"),
        memory_fraction=settings.get("memory_fraction"),
        num_batched_tokens=settings.get("num_batched_tokens"),
        max_devices=settings.get("max_devices", MAX_DEVICES),
        other_parameters=_other_parameters(model),
        speculation=parse_speculation(speculation) if isinstance(speculation, str) else speculation,
    )


def parse_speculation(text: str) -> Speculation:
    """Read `DRAFTS:ACCEPTANCE`, for example `4:0.7`.

    Raises: ValueError with what is wrong.
    """
    drafts, colon, acceptance = text.partition(":")
    try:
        found = Speculation(int(drafts), float(acceptance)) if colon else None
    except ValueError:
        found = None
    if found is None or found.num_drafts < 1 or not 0.0 <= found.acceptance <= 1.0:
        raise ValueError(f"speculation {text!r} must be DRAFTS:ACCEPTANCE, for example 4:0.7")
    return found


def _hardware(gpu: Gpu, file: Path | None, price: float | None) -> tuple[tuple[HardwareSpec, ...], int | None]:
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
    if text.strip().lower() in THIS_MACHINE:
        return this_machine(), 1
    if ":" not in text:
        return find_hardware(text, file), None
    return parse_hardware(text, file)


def this_machine() -> HardwareSpec:
    """Return this machine with its measured ceilings.

    Raises: ValueError when it was never measured.
    """
    measured = load_calibration()
    if measured is None:
        raise ValueError("this machine was never measured (run `mansard roof` first)")
    return host_hardware(measured)


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
    file = gguf_file(path)
    if file is not None:
        return gguf_format(file)
    config = path / "config.json" if path.is_dir() else path if path.suffix == ".json" else cached_config(model)
    if config is None or not config.is_file():
        return "auto"
    try:
        declared = checkpoint_format(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError):
        return "auto"  # load_model_spec says what is wrong with it
    return declared or "bf16"


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path means: itself, or the only one of a directory without a config.json."""
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        return files[0] if len(files) == 1 else None
    return path if path.suffix == ".gguf" and path.is_file() else None


def gguf_format(path: Path) -> str:
    """Return the format that most of a GGUF file's weights are stored in."""
    from mansard.loading.gguf import GgufFile

    counts: dict[str, int] = {}
    for tensor in GgufFile.open(path).tensors.values():
        counts[tensor.format.name] = counts.get(tensor.format.name, 0) + tensor.num_elements
    return max(counts, key=lambda name: counts[name], default="auto")


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
