"""Mansard's predictions beside those of three other planners, on the same measured rows; writes docs/planner-peers.md.

    python -m venv peers && peers/bin/pip install aiconfigurator==0.12.0 servcalc==0.1.0 ridgepoint==0.1.2
    python benchmarks/planner_peers.py             print the report
    python benchmarks/planner_peers.py --write     write docs/planner-peers.md; --check: fail when it is stale
    python benchmarks/planner_peers.py --peers-python peers/bin/python --write      ask the peers again (4 minutes)

The peers need an environment of their own: `planner_peer_adapters.py` runs in it and answers one question a line.
Their answers are kept in `benchmarks/data/planner_peers.csv.gz`, their times in `planner_peers.json`, so that the
report can be written without them whenever Mansard's constants change. Rows, cleaning and halves are those of
`accuracy.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import Evaluation, evaluate, is_stale, ranking
from accuracy_data import DATA, Row, read_gzip_csv
from accuracy_model import CLIENTS, Floats, model_spec
from numpy.typing import NDArray
from planner_peers_text import render

from mansard.bench.machine_roof import host_name
from mansard.cost.formats import PrecisionPlan
from mansard.cost.serving import estimate
from mansard.specs.hardware_catalogue import catalogue
from mansard.specs.model_presets import presets
from mansard.specs.sizes import num_parameters

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "planner-peers.md"
ANSWERS = DATA / "planner_peers.csv.gz"
TIMES = DATA / "planner_peers.json"
ADAPTERS = Path(__file__).parent / "planner_peer_adapters.py"
PEERS = ("aiconfigurator", "servcalc", "servcalc-wide", "ridgepoint")
COLD_RUNS, WARM_QUESTIONS = 5, 12
MIN_PAIRS = 100  # fewer say nothing of a ranking

Question = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """One planner's answers: TTFT and TPOT by row, in seconds, nan where it has none; why, where it was not asked."""

    name: str
    ttft: Floats
    tpot: Floats
    reasons: dict[int, str]

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Return which rows it has a TPOT for."""
        return ~np.isnan(self.tpot)


def compared(found: Evaluation) -> list[int]:
    """Return the rows that state a load: serving points and single streams (offline rows say "as many as fit")."""
    return [
        i for i, row in enumerate(found.rows) if row.scenario in ("closed-loop", "single-stream") and found.usable[i]
    ]


def questions(found: Evaluation) -> list[Question]:
    """Return what each compared row asks of a planner, in Mansard's words and the model's config.json."""
    labels = {raw["id"]: raw for raw in read_gzip_csv("silicon_sample.csv.gz")}
    extra = tomllib.loads((DATA / "models.toml").read_text(encoding="utf-8"))
    result: list[Question] = []
    for i in compared(found):
        row = found.rows[i]
        question = _question(row, extra)
        if row.scenario == "closed-loop":
            raw = labels[row.source]
            question |= {"gemm": raw["gemm_quant_mode"], "moe": raw["moe_quant_mode"]}
        result.append(question)
    return result


def _question(row: Row, extra: dict[str, Any]) -> Question:
    preset = presets().get(row.model)
    return {
        "model": row.model,
        "config": dict(preset.config) if preset else extra[row.model],
        "parameters": preset.parameters if preset else num_parameters(model_spec(row.model)),
        "sparse": model_spec(row.model).moe is not None,
        "gpu": row.gpu,
        "engine": row.engine,
        "weights": row.weights,
        "kv": row.kv,
        "isl": row.input_tokens,
        "osl": row.output_tokens,
        "concurrency": row.concurrency,
        "tp": row.layout.tensor_parallel,
        "dp": row.layout.data_parallel,
        "pp": row.layout.pipeline_parallel,
        "ep": row.layout.expert_parallel,
        "ranks": row.layout.num_ranks,
    }


def ask(python: str, name: str, asked: Sequence[Question], *options: str) -> list[dict[str, Any]]:
    """Return one planner's answers, from a process in its own environment, at low priority and on one thread."""
    lines = "".join(json.dumps(question) + "\n" for question in asked)
    env = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["nice", python, str(ADAPTERS), name, *options],
        input=lines, capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(answers) != len(asked):
        raise ValueError(f"{name} answered {len(answers)} of {len(asked)} questions: {done.stderr[-400:]}")
    return answers


def record(python: str, found: Evaluation) -> None:
    """Ask every peer every question and keep the answers and the times."""
    asked, times = questions(found), {}
    with gzip.GzipFile(ANSWERS, "wb", mtime=0) as packed:
        packed.write(b"# Answers of other planners to the rows of docs/accuracy.md; written by planner_peers.py\n")
        packed.write(b"peer,source,ttft_ms,tpot_ms,reason\n")
        for name in PEERS:
            answers = ask(python, name, asked)
            for i, answer in zip(compared(found), answers, strict=True):
                cells = [name, found.rows[i].source, *_milliseconds(answer), answer.get("reason", "")]
                packed.write((",".join(f'"{c}"' if "," in c else c for c in cells) + "\n").encode())
            times[name] = warm_times(python, name, asked, answers)
    times["mansard"] = own_times(found)
    for name, command in cold_commands(Path(python)).items():
        times[name]["cold_s"] = cold_time(command)
    times["machine"] = {"name": host_name(), "python": platform.python_version()}
    TIMES.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")


def _milliseconds(answer: dict[str, Any]) -> list[str]:
    return [f"{answer[key] * 1e3:.5g}" if answer.get(key) is not None else "" for key in ("ttft_s", "tpot_s")]


def warm_times(python: str, name: str, asked: Sequence[Question], answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median seconds of one answer: as a script calls it after a first call, and in the bulk run."""
    covered = [q for q, answer in zip(asked, answers, strict=True) if "reason" not in answer]
    chosen = covered[:: max(1, len(covered) // WARM_QUESTIONS)][:WARM_QUESTIONS]
    twice = ask(python, name, [q for question in chosen for q in (question, question)], "--reread")
    bulk = [answer["seconds"] for answer in answers if "reason" not in answer]
    return {"warm_s": statistics.median(a["seconds"] for a in twice[1::2]), "bulk_s": statistics.median(bulk)}


def own_times(found: Evaluation) -> dict[str, Any]:
    """Return the same for Mansard: `estimate` of one row, and all rows in vectorized calls divided by their number."""
    indices = compared(found)
    chosen = indices[:: len(indices) // WARM_QUESTIONS][:WARM_QUESTIONS]
    seconds = []
    for i in (i for i in chosen for _ in range(2)):
        seconds.append(_timed(lambda row=found.rows[i]: own_answer(row)))  # type: ignore[misc]
    return {"warm_s": statistics.median(seconds[1::2]), "bulk_s": _timed(evaluate) / len(found.rows)}


def own_answer(row: Row) -> None:
    """Answer one row through the public call, nothing kept."""
    spec = model_spec(row.model)
    estimate(
        spec, catalogue()[row.gpu], input_tokens=row.input_tokens, output_tokens=row.output_tokens,
        concurrency=row.concurrency, layout=row.layout, engine=row.engine,
        precision=PrecisionPlan.published(spec, row.weights, row.kv),
    )  # fmt: skip


def cold_commands(python: Path) -> dict[str, list[str]]:
    """Return one question as each tool's command: Llama-3.1-8B, one H100, 1,024 in, 256 out, 16 at once."""
    there = python.parent
    config = Path(tempfile.mkdtemp(prefix="peer-model-")) / "config.json"
    config.write_text(json.dumps(dict(presets()["llama-3.1-8b"].config)), encoding="utf-8")
    tools = {
        "mansard": "-m mansard plan llama-3.1-8b --gpu h100:1 --engine vllm --workload 1024/256 --concurrency 16 "
        "--json",
        "aiconfigurator": "cli estimate --model-path meta-llama/Meta-Llama-3.1-8B --system h100_sxm --backend vllm "
        "--isl 1024 --osl 256 --batch-size 16 --tp-size 1",
        "servcalc": "CONFIG --gpu H100-80GB --prompt 1024 --gen 256 --concurrency 16 --json",
        "ridgepoint": "fit llama-3-8b --gpu h100-80gb:1 --prompt 1024 --ctx 1280 --json",
    }
    return {
        name: [sys.executable if name == "mansard" else str(there / name), *line.replace("CONFIG", str(config)).split()]
        for name, line in tools.items()
    }


def cold_time(command: Sequence[str]) -> float:
    """Return the median seconds of a whole process. Raises: CalledProcessError when it fails."""
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    run = lambda: subprocess.run(command, capture_output=True, check=True, env=env)  # noqa: E731
    return statistics.median(_timed(run) for _ in range(COLD_RUNS))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def recorded(found: Evaluation) -> list[Peer]:
    """Return the peers' answers as they were kept, as arrays over all rows."""
    index = {found.rows[i].source: i for i in compared(found)}
    peers = {name: Peer(name, _nans(found), _nans(found), {}) for name in PEERS}
    for line in read_gzip_csv(ANSWERS.name):
        i = index.get(line["source"])
        if i is None:
            continue
        peer = peers[line["peer"]]
        if line["reason"]:
            peer.reasons[i] = line["reason"]
        for values, text in ((peer.ttft, line["ttft_ms"]), (peer.tpot, line["tpot_ms"])):
            values[i] = float(text) / 1e3 if text else np.nan
    return list(peers.values())


def _nans(found: Evaluation) -> Floats:
    return np.full(len(found.rows), np.nan)


def own(found: Evaluation) -> Peer:
    """Return Mansard's plain answers: without what `clients.toml` adds to TTFT for one source's own client."""
    own_client = [row.scenario == "closed-loop" and row.equal_lengths for row in found.rows]
    client = np.where(own_client, [CLIENTS.get(row.engine, 0.0) for row in found.rows], 0.0)
    return Peer("mansard", found.predicted["ttft"] - client, found.predicted["tpot"], {})


def with_predictions(found: Evaluation, peer: Peer) -> Evaluation:
    """Return the same measurements with a planner's predictions; rates follow from TTFT and TPOT, alike for all."""
    length = np.array([row.output_tokens for row in found.rows])
    load = np.array([row.concurrency for row in found.rows])
    rate = load * length / (np.nan_to_num(peer.ttft) + (length - 1.0) * peer.tpot)
    decode_only = np.array([row.tpot_s is not None for row in found.rows])
    predicted = {"ttft": peer.ttft, "tpot": peer.tpot, "throughput": rate}
    return replace(found, predicted=predicted | {"rate": np.where(decode_only, 1.0 / peer.tpot, rate)})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: a planner's errors over the rows it covers. Units: percent."""

    planner: str
    half: str
    rows: int
    asked: int
    numbers: dict[str, tuple[float, float]]  # metric: median and p90 of |error|
    bias: dict[str, float]
    ranked: float | None  # pairs named rightly, across GPUs and engines
    ranked_within: float | None  # and within one GPU and engine


def lines(
    found: Evaluation, peers: Sequence[Peer], scenario: str, metrics: Sequence[str], **what: object
) -> Iterator[Line]:
    """Yield every peer's line and Mansard's on the same rows, on the unseen half and on all rows."""
    mine = with_predictions(found, own(found))
    for peer in peers:
        theirs = with_predictions(found, peer)
        for half in ("unseen", "all"):
            wanted = {**what, "scenario": scenario} | ({"half": half} if half != "all" else {})
            keep = found.select(**wanted)
            covered: Floats = np.logical_and(keep, peer.covered)
            if covered.any():
                for name, run in ((peer.name, theirs), ("mansard", mine)):
                    yield _line(name, half, run, covered, int(keep.sum()), metrics)


def _line(name: str, half: str, run: Evaluation, covered: Floats, asked: int, metrics: Sequence[str]) -> Line:
    errors = {metric: run.errors(metric, covered) for metric in metrics}
    served = "tpot" in metrics
    return Line(
        name, half, int(covered.sum()), asked,
        {m: (float(np.median(np.abs(e))) * 100, float(np.percentile(np.abs(e), 90)) * 100) for m, e in errors.items()},
        {m: float(np.median(e)) * 100 for m, e in errors.items()},
        _ranked(run, [covered]) if served else None,
        _ranked(run, _within(run, covered)) if served else None,
    )  # fmt: skip


def _within(run: Evaluation, covered: Floats) -> Iterator[Floats]:
    """Yield the covered rows of each GPU and engine."""
    for gpu, engine in sorted({(row.gpu, row.engine) for row in run.rows}):
        yield covered * np.array([row.gpu == gpu and row.engine == engine for row in run.rows])


def _ranked(run: Evaluation, parts: Iterable[Floats]) -> float | None:
    """Return the percentage of pairs named rightly, counted in each part; None for too few."""
    right, pairs = (sum(counts) for counts in zip(*(ranking(run, part) for part in parts), strict=True))
    return 100.0 * right / pairs if pairs >= MIN_PAIRS else None


def coverage(found: Evaluation, peer: Peer, scenario: str) -> tuple[int, int, Counter[str]]:
    """Return how many rows of a scenario a planner covers, how many there are, and why not the others."""
    rows = [i for i in compared(found) if found.rows[i].scenario == scenario]
    reasons = Counter(peer.reasons[i] for i in rows if i in peer.reasons)
    return int(peer.covered[rows].sum()), len(rows), reasons


def report(found: Evaluation) -> str:
    """Return docs/planner-peers.md."""
    peers = recorded(found)
    tables = {
        "serving": list(lines(found, peers, "closed-loop", ("tpot", "ttft"))),
        "single": list(lines(found, peers, "single-stream", ("rate",))),
    }
    for kind in ("dense", "moe", "mla"):
        tables[kind] = list(lines(found, peers[:1], "closed-loop", ("tpot", "ttft"), model_class=kind))
    reasons = {(p.name, s): coverage(found, p, s) for p in peers for s in ("closed-loop", "single-stream")}
    return render(tables, reasons, json.loads(TIMES.read_text(encoding="utf-8")))


def main() -> int:
    """Print or write the report; ask the peers first when their Python is given, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", help="the Python of an environment with the three planners: ask them again")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail when docs/planner-peers.md is stale")
    args = parser.parse_args()
    found = evaluate()
    if args.peers_python:
        record(args.peers_python, found)
    text = report(found)
    if args.write:
        DOCS.write_text(text, encoding="utf-8")
    print(text)
    stale = args.check and (not DOCS.exists() or is_stale(DOCS.read_text(encoding="utf-8"), text))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
