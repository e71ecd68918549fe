"""Fit the constants of `src/mansard/cost/profiles/*.toml` to the training half of the measurements.

Few constants, each a physical quantity with a prior from kernel timings: a Gauss-Newton fit in their logarithms, robust
to outliers (Huber), drawn to the prior by its stated uncertainty. `--half test` swaps the halves to see how far the
constants depend on the data; `--write` replaces the TOML files, which are otherwise left alone.

    python benchmarks/fit_profiles.py --write
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_data import DATA, Row, silicon_rows
from accuracy_model import CLIENTS, Floats, Group, build_groups, predict
from published_data import published_rows

import mansard.cost.profiles as profiles

PROFILES = Path(profiles.__file__).parent / "profiles"
Tables = dict[str, dict[str, dict[str, Any]]]

# name: (uncertainty of the logarithm, lowest, highest); efficiencies stay between 0.3 and 1
FAMILY_PRIORS: dict[str, tuple[float, float, float]] = {
    "gemm_floor_s": (0.4, 5e-7, 4e-5),
    "gemm_memory.16": (0.06, 0.5, 1.0),
    "gemm_memory.8": (0.15, 0.4, 1.0),
    "gemm_memory.4": (0.15, 0.3, 1.0),
    "gemm_compute.bf16": (0.06, 0.4, 1.0),
    "gemm_compute.fp8": (0.08, 0.3, 1.0),
    "gemm_compute.fp4": (0.12, 0.3, 1.0),
    "decode_attention_floor_s": (0.3, 1e-6, 6e-5),
    "decode_attention_memory.16": (0.08, 0.4, 1.0),
    "decode_attention_memory.8": (0.08, 0.4, 1.0),
    "prefill_attention_peak": (0.2, 0.3, 1.0),
    "elementwise_floor_s": (0.4, 2e-7, 1e-5),
    "moe_floor_s": (0.6, 2e-6, 2e-4),
    "moe_memory.16": (0.2, 0.35, 1.0),
    "moe_memory.8": (0.2, 0.35, 1.0),
    "moe_memory.4": (0.2, 0.35, 1.0),
    "moe_compute": (0.3, 0.3, 1.0),
    "linear_attention_floor_s": (0.6, 1e-6, 1e-4),
}
ENGINE_PRIORS: dict[str, tuple[float, float, float]] = {
    "step_overhead_s": (0.8, 5e-5, 1e-2),
    "sequence_overhead_s": (0.8, 1e-7, 5e-5),
    "first_token_s": (0.7, 1e-3, 0.5),
    "prompt_layer_s": (1.0, 1e-6, 5e-3),
    "prompt_moe_layer_s": (1.5, 1e-6, 1e-2),
    "burst_share": (0.7, 0.02, 1.0),
    "lockstep_share": (0.7, 0.02, 1.0),
    "slot_wait": (1.0, 0.01, 2.0),
    "memory_scale": (0.08, 0.6, 1.1),
    "compute_scale": (0.08, 0.6, 1.1),
    "moe_scale": (0.15, 0.6, 1.3),
    "network_scale": (0.25, 0.4, 2.0),
    "floor_scale": (0.15, 0.5, 2.0),
    "data_parallel_wait_steps": (1.0, 0.1, 100.0),
}
EAGER = {"floor_scale": (1.0, 0.5, 60.0), "memory_scale": (0.2, 0.35, 1.1), "step_overhead_s": (0.8, 1e-5, 3e-2)}
LINK_PRIORS: dict[str, tuple[float, float, float]] = {
    "latency_s": (0.15, 1e-6, 8e-5),
    "bus_efficiency": (0.15, 0.05, 1.0),
}
FAMILIES = ("ampere", "ada", "hopper", "blackwell", "blackwell (gb202)", "cdna3")
ENGINES = ("vllm", "vllm-v0", "sglang", "trtllm")
TRAFFIC = {"kv_traffic": (0.5, 1.0, 30.0)}
EAGER_ENGINES = ("llama.cpp", "transformers", "gpt-fast", "tinychat", "autoawq")
LINKS = ("nvlink3", "nvlink4", "nvlink5", "pcie4", "pcie5", "xgmi")
WEIGHTS = {"tpot": 1.0, "ttft": 0.35, "throughput": 0.7}
HUBER = {"tpot": 0.15, "ttft": 0.5, "throughput": 0.2}


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant to fit: where it lives, its prior and its limits."""

    table: str
    section: str
    key: str
    prior: float
    sigma: float
    low: float
    high: float


def read_tables(folder: Path = DATA / "priors") -> Tables:
    """Return the priors: kernel timings where there are any, assumptions elsewhere; not the fitted constants."""
    return {
        name: tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        for name in ("families", "engines", "links", "clients")
    }


def lookup(tables: Tables, table: str, section: str, key: str) -> float:
    """Return one constant, inherited from the `like` family or `generic` when a section has none of its own."""
    entry = tables[table].get(section, {})
    name, _, inner = key.partition(".")
    value = entry.get(name, {}).get(inner) if inner else entry.get(name)
    if value is None:
        return lookup(tables, table, entry.get("like", "generic"), key)
    return float(value)


def store(tables: Tables, constant: Constant, value: float) -> None:
    """Write one constant into the tables."""
    name, _, inner = constant.key.partition(".")
    entry = tables[constant.table].setdefault(constant.section, {})
    if inner:
        entry.setdefault(name, {})[inner] = value
        if inner == "bf16":
            entry[name]["fp16"] = value
    else:
        entry[name] = value


def constants(tables: Tables) -> list[Constant]:
    """Return every constant that is fitted, with its prior."""
    found: list[Constant] = []
    plan: list[tuple[str, tuple[str, ...], Mapping[str, tuple[float, float, float]]]] = [
        ("families", FAMILIES, FAMILY_PRIORS),
        ("engines", ENGINES, ENGINE_PRIORS),
        ("engines", EAGER_ENGINES, EAGER),
        ("engines", ("transformers",), TRAFFIC),
        ("links", LINKS, LINK_PRIORS),
        ("clients", ("vllm", "sglang", "trtllm"), {"first_token_s": (1.5, 1e-3, 0.5)}),
    ]
    for table, sections, priors in plan:
        for section in sections:
            for key, (sigma, low, high) in priors.items():
                value = lookup(tables, table, section, key)
                found.append(Constant(table, section, key, value, sigma, low, high))
    return found


class Problem:
    """The training rows, prepared once, and their residuals for any constants."""

    def __init__(self, rows: list[Row], tables: Tables) -> None:
        """Prepare `rows` for pricing and weigh them so that a much-measured cell does not drown the others."""
        self.tables = tables
        self.groups = build_groups(rows)
        light = [np.broadcast_to(g.floor_s, len(g.rows)) for g in self.groups]
        self.rows = [r for g in self.groups for r in g.rows]
        self.light = np.concatenate(light)
        cells = Counter((r.model, r.gpu, r.engine) for r in self.rows)
        self.weights = np.array([cells[(r.model, r.gpu, r.engine)] ** -0.3 for r in self.rows])

    def uses(self, constant: Constant, group: Group) -> bool:
        """Say whether a constant has any part in a group's price."""
        if constant.table in ("engines", "clients"):
            return group.rows[0].engine == constant.section
        if constant.table == "families":
            return profiles.family_name(group.priced.hardware) == constant.section
        return group.priced.layout.num_ranks > 1

    def residuals(self, tables: Tables, groups: list[Group], rows: list[Row]) -> dict[str, Floats]:
        """Return log(predicted ÷ measured) by metric; nan where a row has no such measurement."""
        install(tables)
        found = predict(groups, lambda g: profiles.profile_for(g.priced.hardware, g.rows[0].engine))
        return {
            "tpot": np.log(found["tpot"] / _measured([r.tpot_s for r in rows])),
            "ttft": np.log(found["ttft"] / _measured([r.ttft_s for r in rows])),
            "throughput": np.log(found["throughput"] / _measured([r.output_tokens_per_s for r in rows])),
        }

    def vector(self, residuals: dict[str, Floats], rows: slice | Floats, usable: Floats) -> Floats:
        """Return weighted Huber residuals in one vector."""
        parts = []
        for metric, values in residuals.items():
            limit = HUBER[metric]
            size = np.abs(values)
            tail = np.sqrt(np.maximum(2 * limit * size - limit**2, 0.0))
            robust = np.where(size <= limit, values, np.sign(values) * tail)
            parts.append(np.where(np.isnan(values), 0.0, robust) * WEIGHTS[metric] * self.weights[rows] * usable)
        return np.concatenate(parts)


def _measured(values: list[float | None]) -> Floats:
    return np.array([math.nan if v is None else v for v in values])


def install(tables: Tables) -> None:
    """Make the library use these constants instead of its files."""
    for cached in (profiles.family_constants, profiles.engine_constants, profiles.link_constants):
        cached.cache_clear()
    CLIENTS.update({engine: entry["first_token_s"] for engine, entry in tables["clients"].items()})
    files = profiles._table.__wrapped__
    profiles._table = _Override(tables, files)  # type: ignore[assignment]


@contextlib.contextmanager
def using(tables: Tables) -> Iterator[None]:
    """Use these constants for a while, then the library's own again."""
    own, clients = profiles._table, dict(CLIENTS)
    install(tables)
    try:
        yield
    finally:
        profiles._table = own
        CLIENTS.update(clients)
        for cached in (profiles.family_constants, profiles.engine_constants, profiles.link_constants):
            cached.cache_clear()


class _Override:
    """Stands in for the cached reader of TOML tables."""

    def __init__(self, tables: Tables, files: Any) -> None:
        self.tables, self.__wrapped__ = tables, files

    def __call__(self, name: str) -> Mapping[str, Any]:
        return self.tables[name] if name in self.tables else self.__wrapped__(name)

    def cache_clear(self) -> None:
        """Nothing is cached."""


def numeric_jacobian(
    problem: Problem, tables: Tables, items: list[Constant], x: Floats, vector: Floats, usable: Floats
) -> Floats:
    """Return how the residuals change with the logarithm of each constant, pricing only the groups that use it."""
    starts = np.cumsum([0, *(len(g.rows) for g in problem.groups)])
    n = len(problem.rows)
    jacobian = np.zeros((len(vector), len(items)))
    for j, item in enumerate(items):
        index = [i for i, g in enumerate(problem.groups) if problem.uses(item, g)]
        if not index:
            continue
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in index])
        where = np.concatenate([rows + k * n for k in range(3)])
        store(tables, item, math.exp(x[j] + DIFFERENCE))
        moved = problem.residuals(tables, [problem.groups[i] for i in index], [problem.rows[r] for r in rows])
        store(tables, item, math.exp(x[j]))
        jacobian[where, j] = (problem.vector(moved, rows, usable[rows]) - vector[where]) / DIFFERENCE
    return jacobian


def fit(problem: Problem, items: list[Constant], rounds: int, verbose: bool = True) -> Tables:
    """Return the tables with every constant fitted by Gauss-Newton with a numeric Jacobian."""
    tables = {name: _copy(table) for name, table in problem.tables.items()}
    x = np.array([math.log(c.prior) for c in items])
    prior, sigma = x.copy(), np.array([c.sigma for c in items])
    base = problem.residuals(tables, problem.groups, problem.rows)
    usable = np.where(
        np.isnan(_measured([r.tpot_s for r in problem.rows])) | (_tpots(problem) > problem.light), 1.0, 0.0
    )
    damping, cost = 1e-2, math.inf
    for turn in range(rounds):
        vector = problem.vector(base, slice(None), usable)
        cost = float(vector @ vector + np.sum(((x - prior) / sigma) ** 2) * PRIOR_WEIGHT)
        if verbose:
            print(f"round {turn}: cost {cost:.3f}", flush=True)
        jacobian = numeric_jacobian(problem, tables, items, x, vector, usable)
        normal = jacobian.T @ jacobian + np.diag(PRIOR_WEIGHT / sigma**2)
        gradient = jacobian.T @ vector + PRIOR_WEIGHT * (x - prior) / sigma**2
        for _ in range(6):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            limits = [(math.log(c.low), math.log(c.high)) for c in items]
            trial = np.clip(x + np.clip(step, -0.5, 0.5), [lo for lo, _ in limits], [hi for _, hi in limits])
            for item, value in zip(items, trial, strict=True):
                store(tables, item, math.exp(value))
            found = problem.residuals(tables, problem.groups, problem.rows)
            v = problem.vector(found, slice(None), usable)
            new = float(v @ v + np.sum(((trial - prior) / sigma) ** 2) * PRIOR_WEIGHT)
            if new < cost:
                x, base, damping = trial, found, damping / 3
                break
            damping *= 4
        else:
            break
        if cost - new < 1e-3 * cost:
            break
    for item, value in zip(items, x, strict=True):
        store(tables, item, math.exp(value))
    return tables


DIFFERENCE = 0.02  # of a logarithm, for numeric derivatives
PRIOR_WEIGHT = 0.02  # of a prior's pull against the rows': one standard deviation weighs as much as a 14 % residual


def _tpots(problem: Problem) -> Floats:
    return _measured([r.tpot_s for r in problem.rows])


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in table.items()}


def write_tables(tables: Tables, folder: Path) -> None:
    """Write the tables as TOML."""
    for name, table in tables.items():
        lines = [f"# Constants of the cost model: {name}. Written by benchmarks/fit_profiles.py.", ""]
        for section, entry in table.items():
            lines.append(f"[{_key(section)}]")
            lines += [f"{_key(key)} = {_value(value)}" for key, value in entry.items()]
            lines.append("")
        where = DATA if name == "clients" and folder == PROFILES else folder
        (where / f"{name}.toml").write_text("\n".join(lines), encoding="utf-8")


SOURCES = {
    "kernels": "kernel timings (aiconfigurator, Apache-2.0)",
    "kernels, fitted": "kernel timings (aiconfigurator, Apache-2.0), then the training half of the serving rows",
    "serving, fitted": "the training half of the serving rows, from generic priors",
    "priors, fitted": "the training half of the serving rows",
    "priors": "assumed: between the measured ones",
}


def name_sources(tables: Tables, items: list[Constant], problem: Problem) -> None:
    """Write into every section where its numbers came from."""
    touched = {(c.table, c.section) for c in items if any(problem.uses(c, g) for g in problem.groups)}
    for name, table in tables.items():
        for section, entry in table.items():
            origin = entry.get("source", "priors")
            if origin in SOURCES.values():
                continue
            found = f"{origin}, fitted" if (name, section) in touched and name != "links" else origin
            if name != "clients":
                entry["source"] = SOURCES.get(found, found)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else f'"{name}"'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return f"{value:.4g}" if value != int(value) or value < 1 else f"{value:.1f}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def training_rows(half: str) -> list[Row]:
    """Return the rows of one half that can be priced."""
    dropped: Counter[str] = Counter()
    rows = [*silicon_rows(dropped), *published_rows(dropped)]
    return [r for r in rows if half == "all" or r.in_training_half == (half == "train")]


def main() -> None:
    """Fit and, if asked, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("train", "test", "all"), default="train")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", type=Path, nargs="?", const=PROFILES, help="folder; default: the package's")
    args = parser.parse_args()
    tables = read_tables()
    problem = Problem(training_rows(args.half), tables)
    fitted = fit(problem, constants(tables), args.rounds)
    if args.write:
        name_sources(fitted, constants(tables), problem)
        write_tables(fitted, args.write)


if __name__ == "__main__":
    main()
