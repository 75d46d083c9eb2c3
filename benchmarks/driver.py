"""CPU of measuring a request beside that of posting it in a bare httpx loop: python -m benchmarks.driver

An emulated vLLM runs in a process of its own. Ours is the command `measure` with many requests, less the same command
with few, so that its start is not counted: making prompts, predicting each with the cache model, sending, reading,
scraping, checking. The bare loop posts bodies of the same length, encoded beforehand, and reads the replies.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import httpx

from benchmarks.common import HITLAB, arguments, command_cpu_seconds, cpu_seconds, in_turn, leave, ratio, target

FEW = 64
PREFIX_TOKENS, SUFFIX_TOKENS = 1000, 200


@contextmanager
def emulated() -> Iterator[str]:
    """An emulated vLLM while the block runs; its address."""
    command = [*HITLAB, "serve", "--engine", "vllm", "--emulate", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(";")
        finally:
            server.terminate()


def measure_cpu_seconds(base_url: str, requests: int) -> float:
    with TemporaryDirectory() as folder:
        command = (*HITLAB, "measure", "--engine", "vllm", "--base-url", base_url, "-n", requests, "--out", folder)
        return command_cpu_seconds(*command)


def bodies(requests: int) -> list[bytes]:
    """Completions of token ids that share a prefix, as JSON."""
    draw = Random(0)
    prefix = [draw.randrange(1000, 32_000) for _ in range(PREFIX_TOKENS)]
    made = []
    for _ in range(requests):
        prompt = prefix + [draw.randrange(1000, 32_000) for _ in range(SUFFIX_TOKENS)]
        body = {"model": "hitlab-emulated", "prompt": prompt, "max_tokens": 1, "temperature": 0}
        made.append(json.dumps(body, separators=(",", ":")).encode())
    return made


def post_all(base_url: str, contents: list[bytes]) -> None:
    async def loop() -> None:
        async with httpx.AsyncClient() as client:
            for body in contents:
                headers = {"Content-Type": "application/json"}
                reply = await client.post(f"{base_url}/v1/completions", content=body, headers=headers)
                assert reply.status_code == 200, reply.text

    asyncio.run(loop())


def main() -> None:
    options = arguments(__doc__, 5)
    requests = 2000 if options.rounds > 1 else 20
    contents = bodies(requests)
    with emulated() as base_url:
        taken = in_turn(
            {
                "measure": lambda: measure_cpu_seconds(base_url, FEW + requests) - measure_cpu_seconds(base_url, FEW),
                "bare httpx loop": lambda: cpu_seconds(lambda: post_all(base_url, contents)),
                f"whole command, {FEW} requests": lambda: measure_cpu_seconds(base_url, FEW),
                "import httpx, typer, rich": lambda: command_cpu_seconds(
                    sys.executable, "-c", "import httpx, typer, rich"
                ),
            },
            options.rounds,
        )
    for name in ("measure", "bare httpx loop"):
        each = 1e6 * median(taken[name]) / requests
        print(f"{name:<34}{each:>8.0f} us CPU a request, median of {options.rounds}")
    print()
    leave(
        [
            target("measure / bare httpx loop", ratio(taken, "measure", "bare httpx loop"), at_most=1.3),
            target(
                "whole command / its imports",
                ratio(taken, f"whole command, {FEW} requests", "import httpx, typer, rich"),
            ),
        ]
    )


if __name__ == "__main__":
    main()
