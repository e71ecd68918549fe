"""The engine's thread behind asyncio: streams, leaving early, failures, draining and health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from toy_model import ToyExecutor, toy_model

from mansard.core.types import FinishReason, SamplingParams
from mansard.runtime.async_engine import AsyncEngine
from mansard.runtime.llm import LLM
from mansard.runtime.model import EngineOptions
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.prompts import RequestTraits
from mansard.runtime.text_engine import TextEngine

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


@asynccontextmanager
async def running(
    executor: ToyExecutor | None = None, stall_after_s: float = 60.0, **options: int
) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(TextEngine(toy_model(executor), EngineOptions(**options)), stall_after_s=stall_after_s)
    engine.start()
    try:
        yield engine
    finally:
        if executor is not None:
            executor.gate.set()
        await engine.stop()


async def collect(engine: AsyncEngine, prompt: str, params: SamplingParams) -> list[SequenceDelta]:
    submission = await engine.in_pool(lambda: engine.prompts.completion(prompt, params))
    return [delta async for delta in engine.stream(submission)]


async def until(condition: object, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.002)


def is_idle(engine: AsyncEngine) -> bool:
    stats = engine.stats()
    return stats.num_running + stats.num_waiting + stats.num_used_blocks + engine.num_requests == 0


def text(deltas: Sequence[SequenceDelta]) -> str:
    return "".join(d.text for d in deltas)


def test_concurrent_streams_equal_offline_outputs() -> None:
    async def main() -> list[str]:
        async with running(max_num_seqs=5) as engine:
            answers = await asyncio.gather(
                *(collect(engine, f"p{i}", SamplingParams(seed=i, max_tokens=15)) for i in range(12))
            )
            assert is_idle(engine)
            return [text(a) for a in answers]

    prompts, params = [f"p{i}" for i in range(12)], [SamplingParams(seed=i, max_tokens=15) for i in range(12)]
    assert asyncio.run(main()) == [o.outputs[0].text for o in LLM(toy_model()).generate(prompts, params)]


def test_n_sequences_share_a_stream_with_one_last_delta() -> None:
    async def main() -> None:
        async with running() as engine:
            deltas = await collect(engine, "x", SamplingParams(n=3, seed=1, max_tokens=4))
            assert sorted(d.index for d in deltas if d.finish_reason) == [0, 1, 2]
            assert [d.last for d in deltas].count(True) == 1 and deltas[-1].last

    asyncio.run(main())


def test_leaving_a_stream_aborts_within_two_steps() -> None:
    async def main() -> None:
        executor = ToyExecutor(step_s=0.002)
        async with running(executor) as engine:
            stream = engine.stream(engine.prompts.completion("x", LONG))
            await anext(stream)
            num_before = len(executor.plans)
            await stream.aclose()
            await until(lambda: is_idle(engine))
            assert len(executor.plans) - num_before <= 2 + 1  # one may have begun before the stream was closed

    asyncio.run(main())


def test_leaving_while_queued_never_runs_the_request() -> None:
    async def main() -> None:
        executor = ToyExecutor(step_s=0.001)
        async with running(executor, max_num_seqs=1) as engine:
            first = asyncio.create_task(collect(engine, "a", LONG))
            await until(lambda: executor.plans)
            second = asyncio.create_task(collect(engine, "b", LONG))
            await until(lambda: engine.stats().num_waiting == 1)
            second.cancel()
            await until(lambda: engine.num_requests == 1)
            deltas = await first
            assert len(deltas) == 400
            assert all(p.sequences[0].request.prompt_token_ids == (97,) for p in executor.plans)
            assert is_idle(engine)

    asyncio.run(main())


def test_a_finished_request_is_never_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running() as engine:
            aborted: list[str] = []
            monkeypatch.setattr(engine._thread, "abort", aborted.append)
            for _ in range(50):
                await collect(engine, "x", SamplingParams(max_tokens=2))
            assert aborted == [] and is_idle(engine)

    asyncio.run(main())


def test_a_failed_step_fails_its_requests_only() -> None:
    async def main() -> None:
        executor = ToyExecutor(fails=lambda plan: any(s.request.prompt_token_ids == (98,) for s in plan.sequences))
        async with running(executor) as engine:
            (failed,) = await collect(engine, "b", LONG)
            assert failed.finish_reason is FinishReason.ERROR and "the toy broke" in (failed.error or "")
            assert len(await collect(engine, "a", LONG)) == 400
            assert engine.health() is None

    asyncio.run(main())


def test_a_broken_engine_answers_everyone_and_says_so() -> None:
    """An error outside the executor is a bug of ours: nobody may be left waiting for ever."""

    async def main() -> None:
        executor = ToyExecutor()
        executor.gate.clear()
        async with running(executor) as engine:
            waiting = [asyncio.create_task(collect(engine, c, LONG)) for c in "ab"]
            await until(lambda: engine.num_requests == 2)
            engine._engine.step = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
            executor.gate.set()
            for deltas in await asyncio.gather(*waiting):
                assert deltas[-1].finish_reason is FinishReason.ERROR
            assert "ZeroDivisionError" in (engine.health() or "")
            (refused,) = await collect(engine, "c", LONG)
            assert "ZeroDivisionError" in (refused.error or "")

    asyncio.run(main())


def test_a_request_id_in_use_is_refused() -> None:
    async def main() -> None:
        async with running() as engine:
            one, other = (engine.prompts.completion("x", LONG, RequestTraits(id="same")) for _ in "12")
            stream = engine.stream(one)
            await anext(stream)
            with pytest.raises(ValueError, match="in use"):
                await anext(engine.stream(other))
            await stream.aclose()

    asyncio.run(main())


def test_draining_waits_for_requests_and_gives_up_in_time() -> None:
    async def main() -> None:
        executor = ToyExecutor()
        executor.gate.clear()
        async with running(executor) as engine:
            reading = asyncio.create_task(collect(engine, "x", SamplingParams(max_tokens=3)))
            await until(lambda: engine.num_requests == 1)
            assert not await engine.drain(0.05)
            executor.gate.set()
            assert await engine.drain(5.0)
            assert len(await reading) == 3

    asyncio.run(main())


def test_health_reports_a_stalled_step() -> None:
    async def main() -> None:
        executor = ToyExecutor()
        executor.gate.clear()
        async with running(executor, stall_after_s=0.05) as engine:
            assert engine.health() is None
            reading = asyncio.create_task(collect(engine, "x", SamplingParams(max_tokens=3)))
            await until(lambda: engine.health() is not None)
            assert "has not finished a step" in (engine.health() or "")
            executor.gate.set()
            await reading
            assert engine.health() is None
        assert engine.health() == "the engine is not running"

    asyncio.run(main())


def test_ten_thousand_requests_leave_nothing_behind_and_none_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning up once aborted every finished request again, and finished ones stayed in tables."""

    async def serve() -> None:
        async with running(ToyExecutor()) as engine:
            aborted: list[str] = []
            monkeypatch.setattr(engine._thread, "abort", aborted.append)
            params = SamplingParams(temperature=0.0, max_tokens=1)

            async def one(number: int) -> None:
                submission = engine.prompts.completion([97 + number % 20], params, RequestTraits(f"r{number}"))
                async for _ in engine.stream(submission):
                    pass

            for start in range(0, 10_000, 500):
                await asyncio.gather(*(one(i) for i in range(start, start + 500)))
            assert not aborted and not engine._queues and not engine._thread._under_way
            assert not engine._engine._under_way and not engine._engine._engine.scheduler._sequences
            stats = engine.stats()
            assert stats.num_used_blocks == stats.num_running == stats.num_waiting == 0
            assert stats.num_output_tokens == 10_000

    asyncio.run(serve())
