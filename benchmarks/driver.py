"""CPU of measuring a request beside that of posting it in a bare httpx loop, in turn: python benchmarks/driver.py

An emulated vLLM runs in a process of its own. Ours counts everything from the facts to the result: making prompts,
predicting each with the cache model, sending, reading, scraping, checking. The bare loop posts the same bodies,
encoded beforehand, and reads the replies.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import msgspec

from hitlab import families
from hitlab.client.http import EngineClient
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement.asked import Asked
from hitlab.measurement.run import Unwatched, prepare_run

RUN = Path(__file__).resolve().parent.parent / "run.py"
ROUNDS = 3
SHAPE = SharedPrefix(requests=2000, prefix_tokens=1000, suffix_tokens=200)


@contextmanager
def emulated() -> Iterator[str]:
    command = [sys.executable, str(RUN), "serve", "--engine", "vllm", "--emulate", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(";")
        finally:
            server.terminate()


async def ours(base_url: str) -> None:
    async with EngineClient(families.engine("vllm"), base_url) as client:
        run = await prepare_run(client, Asked(), Experiment(SHAPE))
        await run.walk(Unwatched())
    result = run.result()
    assert result.valid
    assert result.agrees


def bare(bodies: list[bytes]) -> Callable[[str], Awaitable[None]]:
    async def loop(base_url: str) -> None:
        async with httpx.AsyncClient() as client:
            for body in bodies:
                reply = await client.post(
                    f"{base_url}/v1/completions", content=body, headers={"Content-Type": "application/json"}
                )
                assert reply.status_code == 200

    return loop


def cpu_seconds(job: Callable[[str], Awaitable[None]], base_url: str) -> float:
    async def run() -> None:
        await job(base_url)

    before = time.process_time()
    asyncio.run(run())
    return time.process_time() - before


def whole_command(base_url: str) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(RUN), "measure", "--engine", "vllm", "--base-url", base_url, "--out", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    workload = families.workload("shared-prefix").build(SHAPE, 0, (1000, 31_999), 1)
    dialect = families.engine("vllm")
    prompts = workload.prompts(SHAPE.requests)
    bodies = [msgspec.json.encode(dialect.completion(prompt, "hitlab-emulated", 1).json) for prompt in prompts]
    with emulated() as base_url:
        rounds = [(cpu_seconds(ours, base_url), cpu_seconds(bare(bodies), base_url)) for _ in range(ROUNDS)]
        command = median(whole_command(base_url) for _ in range(ROUNDS))
    each = 1e6 / SHAPE.requests
    print(f"measure    {median(mine for mine, _ in rounds) * each:7.0f} us CPU a request, median of {ROUNDS}")
    print(f"bare httpx {median(theirs for _, theirs in rounds) * each:7.0f} us CPU a request")
    print(f"ratio      {median(mine / theirs for mine, theirs in rounds):7.2f}")
    print(f"whole command, N=64 cold and warm: {command:.2f} s CPU")


if __name__ == "__main__":
    main()
