"""How the real engines are installed and started: their command lines, pins and limits."""

from dataclasses import replace

import pytest

from hitlab.cache.sizes import CacheSizes
from hitlab.errors import UsageError
from hitlab.servers.cpu.recipe import CpuRecipe, ServerOptions, ServerSpec, load_cpu_recipe

VLLM: CpuRecipe = load_cpu_recipe("vllm")
SGLANG: CpuRecipe = load_cpu_recipe("sglang")
SPEC = ServerSpec("model", port=8123, block_tokens=64, capacity_blocks=48)


def value_of(flag: str, argv: tuple[str, ...]) -> str:
    return argv[argv.index(flag) + 1]


def test_vllm_gets_blocks_and_a_longest_request_that_fits_beside_the_reserved_block() -> None:
    argv = VLLM.argv(SPEC)
    assert value_of("--block-size", argv) == "64"
    assert value_of("--num-gpu-blocks-override", argv) == "48"
    assert value_of("--max-model-len", argv) == "3008"  # 47 x 64
    assert value_of("--max-model-len", VLLM.argv(replace(SPEC, capacity_blocks=10_000))) == "16384"


def test_sglang_gets_tokens() -> None:
    argv = SGLANG.argv(SPEC)
    assert value_of("--page-size", argv) == "64"
    assert value_of("--max-total-tokens", argv) == "3072"  # 48 x 64


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_ranks_and_extra_arguments_come_through(recipe: CpuRecipe) -> None:
    argv = recipe.argv(replace(SPEC, ranks=2, extra_args=("--seed", "3")))
    assert argv[-2:] == ("--seed", "3")  # last, so that they win
    assert [flag for flag in argv if flag in recipe.owned_args and "d" in flag and value_of(flag, argv) == "2"]
    assert not [flag for flag in recipe.argv(SPEC) if flag in ("--data-parallel-size", "--dp-size")]


def test_sglang_ranks_get_cpus_of_their_own() -> None:
    def bound(ranks: int, *cpus: int) -> str | None:
        return SGLANG.environment(replace(SPEC, ranks=ranks, cpus=cpus)).get("SGLANG_CPU_OMP_THREADS_BIND")

    assert bound(1, 0, 1) is None
    assert bound(2, 4, 5) == "4|5"
    assert bound(3, 4, 5) == "4|5|4"


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_recipes_pin_every_distribution_and_name_no_address(recipe: CpuRecipe) -> None:
    wanted = [argument for step in recipe.pip_steps for argument in step.arguments[1:] if not argument.startswith("--")]
    assert len(wanted) > 100
    assert [argument for argument in wanted if argument.count("==") != 1 or "/" in argument] == []


@pytest.mark.parametrize("recipe", [VLLM, SGLANG], ids=lambda recipe: recipe.name)
def test_files_written_beside_the_packages_compile(recipe: CpuRecipe) -> None:
    assert recipe.site_files
    for path, text in recipe.site_files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ServerOptions(CacheSizes(block_tokens=16)),
            "vLLM on the CPU has no blocks of 16 tokens; `block_tokens` must be a multiple of 32",
        ),
        (ServerOptions(CacheSizes(block_tokens=48)), "no blocks of 48 tokens"),
        (ServerOptions(CacheSizes(block_tokens=0)), "no blocks of 0 tokens"),
        (ServerOptions(CacheSizes(capacity_blocks=1)), "`capacity_blocks` is 1; it must be at least 2"),
        (ServerOptions(CacheSizes(ranks=0)), "`ranks` is 0"),
        (ServerOptions(port=-1), "`port` is -1"),
        (ServerOptions(extra_args=("--port=1",)), "--port among the engine's arguments; use hitlab's own option"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before_it_starts(options: ServerOptions, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        VLLM.spec(options, "model", cpus=(0,))


def test_defaults_are_the_recipes() -> None:
    spec = VLLM.spec(ServerOptions(), "model", cpus=(0,))
    assert (spec.block_tokens, spec.capacity_blocks) == (32, 8192)
    assert VLLM.spec(ServerOptions(CacheSizes(block_tokens=128)), "model", cpus=(0,)).capacity_blocks == 2048
