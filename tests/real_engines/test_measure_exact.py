"""`measure` against real engines on the CPU: no error of a single token, whatever is broken and how.

pytest -m "real_engine and not slow"   the smoke test: one server of each engine
pytest -m real_engine                  all block sizes, breaks, boundaries and ranks (about half an hour)
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab

from hitlab.cache.sizes import CacheSizes
from hitlab.servers.cpu import server as launch
from hitlab.servers.cpu.environments import is_installed
from hitlab.servers.cpu.recipe import ServerOptions, load_cpu_recipe
from hitlab.servers.progress import Silent

pytestmark = pytest.mark.real_engine

POOL_TOKENS = 32_768
SERVERS = [
    pytest.param(("vllm", 32), id="vllm-32"),
    pytest.param(("sglang", 1), id="sglang-1"),
    pytest.param(("vllm", 64), id="vllm-64", marks=pytest.mark.slow),
    pytest.param(("vllm", 128), id="vllm-128", marks=pytest.mark.slow),
    pytest.param(("sglang", 16), id="sglang-16", marks=pytest.mark.slow),
]
BREAK_INDEXES = [0, 3, 16, 31, 32, 400, 992, 999]
RUNS: list[list[Any]] = [
    ["--break-mode", "capacity", "--flood-requests", "auto"],
    ["--break-mode", "salt"],
    ["--break-mode", "salt", "--break-fixed"],
    *(["--break-mode", "token", "--break-at", index] for index in BREAK_INDEXES),
    *(["--break-mode", "token", "--break-at", index, "--break-fixed"] for index in BREAK_INDEXES),
    *(["--prefix-len", length, "--suffix-len", 0] for length in (31, 32, 33, 127, 128, 129, 1023, 1024, 1025)),
    ["--prefix-len", 12, "--suffix-len", 500],
    ["--groups", 4],
    ["--cold-by", "fresh-prefix", "--break-mode", "token", "--break-at", 400],
]


@contextmanager
def server(engine: str, block_tokens: int, ranks: int = 1) -> Iterator[str]:
    recipe = load_cpu_recipe(engine)
    if not is_installed(recipe):
        pytest.skip(f"no environment for {recipe.title}: hitlab serve --engine {engine} --cpu makes it")
    sizes = CacheSizes(block_tokens=block_tokens, capacity_blocks=POOL_TOKENS // block_tokens, ranks=ranks)
    with launch.running(recipe, ServerOptions(sizes), Silent()) as running:
        yield running.base_url


@pytest.fixture(scope="module", params=SERVERS)
def target(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    engine, block_tokens = request.param
    with server(engine, block_tokens) as base_url:
        yield engine, base_url


def assert_exact(hitlab: Hitlab, engine: str, base_url: str, folder: Path, *arguments: object) -> dict[str, Any]:
    ran = hitlab(
        *("measure", "--engine", engine, "--base-url", base_url, "--requests", 16, "--out", folder, "--json"),
        *arguments,
    )
    found: dict[str, Any] = json.loads(ran.out)
    assert [phase for phase in found["phases"] if phase["error_tokens"]] == []
    assert [check for check in found["checks"] if not check["ok"]] == []
    assert (ran.status, found["engine"]["source"]) == (0, "real")
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(run, id=" ".join(map(str, run)), marks=[] if at < 3 else pytest.mark.slow)
        for at, run in enumerate(RUNS)
    ],
)
def test_every_phase_is_exact(hitlab: Hitlab, target: tuple[str, str], tmp_path: Path, arguments: list[Any]) -> None:
    found = assert_exact(hitlab, *target, tmp_path, *arguments)
    if "capacity" in arguments:
        assert found["verdict"] == "evicted"
    if arguments == ["--break-mode", "salt"]:
        assert found["verdict"] == "key broken"


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "block_tokens"), [("vllm", 32), ("sglang", 1)])
def test_two_ranks_are_exact(hitlab: Hitlab, tmp_path: Path, engine: str, block_tokens: int) -> None:
    with server(engine, block_tokens, ranks=2) as base_url:
        for arguments in ([], ["--break-mode", "salt"], ["--break-mode", "capacity", "--flood-requests", "auto"]):
            found = assert_exact(hitlab, engine, base_url, tmp_path, *arguments)
            assert found["engine"]["data_parallel_ranks"] == 2
