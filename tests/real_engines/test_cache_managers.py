"""The cache models against the engines' own cache managers, driven in process by random scripts.

pytest -m real_engine tests/real_engines/test_cache_managers.py                               50 scripts a manager
HITLAB_ORACLE_SEQUENCES=1000 pytest -m real_engine tests/real_engines/test_cache_managers.py  1,000, in 3 minutes

A script is made from its number alone, so one that fails can be run again.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from real_engines.scripts import Outcome, Script, outcomes, random_steps

from hitlab.cache.model import CacheModel, Lease, PoolFullError
from hitlab.cache.paged import PagedCache
from hitlab.cache.radix import RadixCache
from hitlab.servers.cpu.environments import environment_dir, is_installed
from hitlab.servers.cpu.recipe import TINY_MODEL, load_cpu_recipe
from hitlab.tokens import Prompt

SEQUENCES = int(os.environ.get("HITLAB_ORACLE_SEQUENCES", "50"))
TESTS = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.real_engine


class Model:
    """A cache model as a script's cache."""

    def __init__(self, model: CacheModel, state: Callable[[], list[int]]) -> None:
        self.model, self.state = model, state
        self.running: dict[int, Lease] = {}

    def begin(self, number: int, tokens: list[int], salt: str | None) -> int | None:
        try:
            self.running[number] = self.model.begin(Prompt(tuple(tokens), salt), max_tokens=10_000)
        except PoolFullError:
            return None
        return self.running[number].hit_tokens

    def decode(self, number: int, tokens: list[int]) -> int:
        for done, token in enumerate(tokens):
            try:
                self.running[number].decode(token)
            except PoolFullError:
                return done
        return len(tokens)

    def finish(self, number: int, stopped: bool) -> None:
        self.running.pop(number).finish(stopped)

    def reset(self) -> bool:
        return self.model.reset()


class Driver:
    """An engine's manager in a process of its environment, answering scripts one after another."""

    def __init__(self, engine: str, log: Path) -> None:
        recipe = load_cpu_recipe(engine)
        if not is_installed(recipe):
            pytest.skip(f"no {recipe.full_title} here: `hitlab serve --engine {engine} --cpu` makes its environment")
        model = log.parent / "config.json"
        model.write_text(json.dumps(TINY_MODEL))
        self._log = log
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [environment_dir(recipe) / "bin" / "python", "-m", f"real_engines.drive_{engine}"],
                cwd=TESTS,
                env={**os.environ, "HITLAB_TINY_MODEL": str(model.parent), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def answer(self, script: Script) -> list[Outcome]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"settings": script.settings, "steps": script.steps}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the driver ended: {self._log.read_text()[-2000:]}")
        answers: list[Outcome] = json.loads(line)
        return answers

    def close(self) -> None:
        self._process.kill()  # it has nothing to keep, and SGLang takes seconds to end by itself
        with self._process:
            pass


@pytest.fixture(scope="module")
def driver() -> Iterator[Callable[[str], Driver]]:
    """One process an engine, for all tests here."""
    made: dict[str, Driver] = {}
    with tempfile.TemporaryDirectory() as folder:

        def driver_of(engine: str) -> Driver:
            if engine not in made:
                (Path(folder) / engine).mkdir(exist_ok=True)
                made[engine] = Driver(engine, Path(folder) / engine / "log")
            return made[engine]

        yield driver_of
        for each in made.values():
            each.close()


def vllm_script(number: int) -> tuple[Script, Model]:
    random = Random(number)
    block_tokens, num_blocks = random.choice([2, 4, 8, 16]), random.randrange(12, 80)
    model = PagedCache(num_blocks, block_tokens)
    steps = random_steps(random, block_tokens, model.capacity_tokens)
    settings = {"block_tokens": block_tokens, "num_blocks": num_blocks}
    return Script(settings, steps), Model(model, lambda: list(model.pool.free_block_queue))


def sglang_script(number: int, core: str) -> tuple[Script, Model]:
    random = Random(number)
    page_tokens, overlap = random.choice([1, 1, 2, 4, 16]), random.random() < 0.8
    capacity_tokens = page_tokens * random.randrange(*((60, 500) if page_tokens == 1 else (12, 80)))
    model = RadixCache(capacity_tokens, page_tokens, overlap_schedule=overlap)
    steps = random_steps(random, page_tokens, capacity_tokens)
    settings: dict[str, Any] = {
        "core": core,
        "page_tokens": page_tokens,
        "capacity_tokens": capacity_tokens,
        "overlap": overlap,
    }

    def state() -> list[int]:
        tree = model.tree
        return [model.available_size, tree.evictable_size, tree.protected_size]

    return Script(settings, steps), Model(model, state)


def hold_equal(driver: Driver, number: int, script: Script, model: Model) -> Counter[str]:
    """Fail at the first step that the two answer differently; else count what happened."""
    theirs, seen = driver.answer(script), Counter[str]()
    for index, (step, engine, mine) in enumerate(zip(script.steps, theirs, outcomes(model, script.steps), strict=True)):
        if engine != mine:
            where = f"script {number}, step {index} of {script.settings}"
            pytest.fail(f"{where}\n{step}\nengine  {engine}\nmodel   {mine}")
        if step[0] == "begin":
            seen += Counter(requests=1, hits=bool(mine[0]), refused=mine[0] is None)
        elif step[0] == "reset":
            seen += Counter(resets=mine[0])
    return seen + Counter(evicted=model.model.evicted_tokens)


def happened(seen: Counter[str]) -> None:
    """The scripts were worth something only if everything occurred in them."""
    print(dict(seen))
    assert all(seen[kind] > SEQUENCES / 5 for kind in ("requests", "hits", "refused", "resets", "evicted"))


def test_paged_model_answers_and_queues_as_vllms_manager_does(driver: Callable[[str], Driver]) -> None:
    vllm, seen = driver("vllm"), Counter[str]()
    for number in range(SEQUENCES):
        seen += hold_equal(vllm, number, *vllm_script(number))
    happened(seen)


@pytest.mark.parametrize("core", ["rust", "python", "legacy"])
def test_radix_model_answers_and_fills_as_sglangs_trees_do(driver: Callable[[str], Driver], core: str) -> None:
    """The server's tree, its Python twin, and RadixCache of older versions."""
    sglang, seen = driver("sglang"), Counter[str]()
    for number in range(SEQUENCES):
        seen += hold_equal(sglang, number, *sglang_script(number, core))
    happened(seen)
