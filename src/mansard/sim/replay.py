"""Replaying a recorded run: the same requests at the same moments through a fresh scheduler, plan by plan.

Every step's plan is compared with the recorded one: the sequences in order, where each starts, how many tokens and
logits, the copies and a checksum of all block tables. The texts are gone, so tokens are made up from the recorded
hashes such that exactly the blocks that were equal are equal again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from mansard.core.block_manager import BlockManager
from mansard.core.config import SchedulerConfig
from mansard.core.scheduler import Scheduler
from mansard.core.types import FinishReason, Request, SamplingParams, SequenceResult, StepPlan, StepResult
from mansard.sim.planned import EOS, EOS_TOKEN_IDS
from mansard.sim.prefix_hash import IntegerPrefixHash
from mansard.sim.recording import VERSION, plan_shape

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One executed step. Units: seconds. seqs: (sequence, start, tokens, logits).

    cycle_s: until the next step began, with all that the server does between two steps; None when the engine may have
    waited for requests in between, or the next step is not known.
    """

    start_s: float
    elapsed_s: float
    seqs: tuple[tuple[str, int, int, int], ...]
    cycle_s: float | None = None

    @property
    def contexts(self) -> list[int]:
        """Return the contexts of the decodes."""
        return [start + 1 for _, start, tokens, _ in self.seqs if tokens == 1]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Return the (tokens, start) of the prompts' chunks."""
        return [(tokens, start) for _, start, tokens, _ in self.seqs if tokens > 1]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run read back: its first line and all events."""

    head: Event
    events: tuple[Event, ...]

    @property
    def config(self) -> SchedulerConfig:
        """Return the scheduler's configuration.

        Raises: ValueError when the file holds steps alone.
        """
        if "config" not in self.head:
            raise ValueError("the file holds steps but no requests, so it cannot be replayed (record a whole server)")
        return SchedulerConfig(**self.head["config"])

    @property
    def steps(self) -> list[RecordedStep]:
        """Return the executed steps."""
        found = [
            RecordedStep(e["t"], e["elapsed_s"], tuple((s[0], s[1], s[2], s[3]) for s in e["seqs"]))
            for e in self.events
            if e["event"] == "step"
        ]
        return [*map(_with_cycle, found, found[1:]), *found[-1:]]


def _with_cycle(step: RecordedStep, following: RecordedStep) -> RecordedStep:
    """Return a step with its cycle when a sequence ran in both: then the engine was never idle between them."""
    names = {seq[0] for seq in step.seqs}
    is_busy = any(seq[0] in names and seq[1] > 0 for seq in following.seqs)
    return replace(step, cycle_s=following.start_s - step.start_s) if is_busy else step


@dataclass(slots=True)
class Parity:
    """How many plans are the same, and the first that differ as (step, recorded, replayed)."""

    num_plans: int = 0
    num_same: int = 0
    differences: list[tuple[int, object, object]] = field(default_factory=list)
    num_preemptions: int = 0
    num_hit_tokens: int = 0

    @property
    def share(self) -> float:
        """Return the share of plans that are the same; 1 for an empty run."""
        return self.num_same / self.num_plans if self.num_plans else 1.0

    def compare(self, recorded: Event, plan: StepPlan | None) -> None:
        """Count one plan."""
        expected = None if recorded["event"] == "idle" else {k: recorded[k] for k in ("seqs", "copies", "tables")}
        found = None if plan is None else plan_shape(plan)
        self.num_plans += 1
        if expected == found:
            self.num_same += 1
        elif len(self.differences) < 10:
            self.differences.append((self.num_plans - 1, expected, found))


def read_run(path: Path) -> RecordedRun:
    """Read a recorded run; a last line that was cut off is left out.

    Raises: ValueError for a file that is none, or of another version.
    """
    events: list[Event] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    if any("event" not in event for event in events) or not events:
        raise ValueError(f"{path} is no recorded run (write one with --record)")
    head: Event = events[0] if events[0]["event"] == "run" else {}
    if head and head.get("version") != VERSION:
        raise ValueError(f"{path} has version {head.get('version')}, this reads {VERSION} (record it again)")
    return RecordedRun(head, tuple(events[1:] if head else events))


def replay(run: RecordedRun) -> Parity:
    """Run the recorded requests again and compare every plan.

    Raises: ValueError when the file cannot be replayed.
    """
    return _Replay(run).run()


class _Replay:
    """A fresh scheduler, driven by recorded events."""

    def __init__(self, run: RecordedRun) -> None:
        config = run.config
        size = run.head["block_size"]
        blocks = BlockManager(
            run.head["num_blocks"], size, config.enable_prefix_caching, prefix_hash=IntegerPrefixHash()
        )
        self.scheduler = Scheduler(config, blocks)
        if any(logits > 1 for step in run.steps for _, _, _, logits in step.seqs):
            raise ValueError("the run has speculated tokens, which cannot be replayed (record it without)")
        self.events = run.events
        self.ends = {e["seq"]: e for e in run.events if e["event"] == "end"}
        self.texts = _Texts(run, size)
        self.parity = Parity()

    def run(self) -> Parity:
        """Replay all events in order."""
        for event, errors in _with_errors(self.events):
            match event["event"]:
                case "add":
                    self.scheduler.add(self._request(event), event["t"])
                case "abort":
                    self.scheduler.abort(event["id"])
                case "finish":
                    self.scheduler.finish(event["seq"], FinishReason(event["reason"]))
                case "reset":
                    self.scheduler.blocks.reset_prefix_cache()
                case "step" | "idle" | "failed":
                    self._step(event, errors)
        self.parity.num_preemptions = self.scheduler.num_preemptions
        self.parity.num_hit_tokens = self.scheduler.blocks.stats.num_hit_tokens
        return self.parity

    def _request(self, event: Event) -> Request:
        params = SamplingParams(
            max_tokens=event["max_tokens"], n=event["n"], prompt_logprobs=0 if event["scores_prompt"] else None
        )
        return Request(event["id"], self.texts.prompt(event), params, event["t"], priority=event["priority"])

    def _step(self, event: Event, errors: frozenset[str]) -> None:
        plan = self.scheduler.schedule(event["t"])
        self.parity.compare(event, plan)
        if plan is None:
            return
        if event["event"] == "failed":
            self.scheduler.fail(plan, "the executor raised")
            return
        answers = tuple(
            SequenceResult(error="recorded")
            if s.sequence_id in errors
            else self._answer(s.sequence_id, len(s.history))
            if s.num_logits
            else SequenceResult()
            for s in plan.sequences
        )
        self.scheduler.update(plan, StepResult(answers, 0.0), EOS_TOKEN_IDS)

    def _answer(self, sequence_id: str, position: int) -> SequenceResult:
        end = self.ends.get(sequence_id)
        is_last = end is not None and position + 1 >= end["num_tokens"]
        if is_last and end is not None and end["by"] == "step" and end["reason"] == FinishReason.STOP:
            return SequenceResult((EOS,))
        return SequenceResult((self.texts.token(sequence_id, position),))


class _Texts:
    """Token ids for every sequence, made up so that blocks are equal exactly where their hashes are."""

    def __init__(self, run: RecordedRun, block_size: int) -> None:
        self._size = block_size
        self._ids = count(1)
        self._of_hash: dict[str, tuple[int, ...]] = {}
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._blocks: dict[str, list[str]] = {}
        self._own: dict[str, int] = {}  # sequence → the token of what is in no full block
        ends = {e["seq"]: e["blocks"] for e in run.events if e["event"] == "end"}
        for event in run.events:
            if event["event"] == "add":
                self._take_in(event, ends)

    def prompt(self, event: Event) -> tuple[int, ...]:
        """Return the prompt of an added request."""
        return self._prompts[event["id"]]

    def token(self, sequence_id: str, position: int) -> int:
        """Return the token of a sequence at a position of its output."""
        blocks, index = self._blocks[sequence_id], position // self._size
        if index < len(blocks):
            return self._of_hash[blocks[index]][position % self._size]
        return self._own[sequence_id]

    def _take_in(self, event: Event, ends: Mapping[str, list[str]]) -> None:
        full: list[int] = []
        for name in event["blocks"]:
            full.extend(self._of_hash.setdefault(name, (next(self._ids),) * self._size))
        names = [f"{event['id']}/{index}" for index in range(event["n"])]
        tail = self._tail(event["num_tokens"] - len(full), [ends[name][0] for name in names if ends.get(name)])
        self._prompts[event["id"]] = (*full, *tail)
        for name in names:
            self._blocks[name] = [*event["blocks"], *ends.get(name, ())]
            self._own[name] = next(self._ids)
            for position, block in enumerate(ends.get(name, ())):
                begin = tail if position == 0 else ()
                rest = self._size - len(begin)
                self._of_hash.setdefault(block, (*begin, *((next(self._ids),) * rest)))

    def _tail(self, length: int, completed: list[str]) -> tuple[int, ...]:
        """Return a prompt's last tokens, those of the block that they begin when it is known already."""
        known = next((self._of_hash[name] for name in completed if name in self._of_hash), None)
        return known[:length] if known is not None else (next(self._ids),) * length


def _with_errors(events: tuple[Event, ...]) -> Iterator[tuple[Event, frozenset[str]]]:
    """Yield each event with the sequences that its step ended with an error: their ends follow it directly."""
    for number, event in enumerate(events):
        found: list[str] = []
        if event["event"] == "step":
            for after in events[number + 1 :]:
                if after["event"] != "end":
                    break
                if after["by"] == "step" and after["reason"] == FinishReason.ERROR:
                    found.append(after["seq"])
        yield event, frozenset(found)
