"""Servers of the real engines on this machine's CPU: they start, count, reset and leave nothing behind."""

import asyncio
import os
import subprocess

import pytest

from hitlab import families
from hitlab.cache.sizes import CacheSizes
from hitlab.client.dialect import load_engine
from hitlab.client.http import EngineClient
from hitlab.servers.cpu import server as launch
from hitlab.servers.cpu.recipe import CpuRecipe, ServerOptions, load_cpu_recipe
from hitlab.servers.cpu.server import running
from hitlab.servers.progress import Silent
from hitlab.tokens import Prompt, Tally

RECIPES = [load_cpu_recipe(name) for name in families.names("engines.cpu")]

pytestmark = pytest.mark.real_engine


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_real_engine_starts_counts_resets_and_leaves_nothing_behind(recipe: CpuRecipe) -> None:
    if not launch.is_installed(recipe):
        pytest.skip(f"{recipe.title} is not installed; `hitlab serve --engine {recipe.engine} --cpu` installs it")
    prompt = Prompt(tuple(range(1000, 2000)))
    options = ServerOptions(CacheSizes(block_tokens=32, capacity_blocks=1024))

    async def talk(base_url: str) -> None:
        async with EngineClient(load_engine(recipe.engine), base_url) as client:
            facts = await client.facts()
            assert (facts.version, facts.block_tokens) == (recipe.version, 32)
            assert facts.capacity_tokens in (32_768, 32_768 - 32)
            before = await client.scrape()
            # Nothing the start did was counted, not even a warm-up.
            assert all(tally == Tally(0, 0) for tally in before.pairs.values())
            cached = [(await client.complete(prompt)).completion.cached_tokens for _ in range(2)]
            assert (await client.reset()).done is not False
            cached.append((await client.complete(prompt)).completion.cached_tokens)
            assert cached == [0, 992, 0]

    with running(recipe, options, Silent()) as server:
        asyncio.run(talk(server.base_url))
        started = descendants(os.getpid())
    assert len(started) > 3
    assert not {process for process, _ in processes()} & started


def processes() -> list[tuple[int, int]]:
    """Every process of the machine and its parent."""
    lines = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True).splitlines()
    return [(int(process), int(parent)) for process, parent in map(str.split, lines)]


def descendants(ancestor: int) -> set[int]:
    table, found = processes(), {ancestor}
    while children := {process for process, parent in table if parent in found} - found:
        found |= children
    return found - {ancestor}
