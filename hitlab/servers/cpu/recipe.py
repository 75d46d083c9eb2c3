"""What an engine's file declares so that server.py can run the real engine on a CPU. Data only."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from hitlab import families
from hitlab.cache.sizes import UNKNOWN, CacheSizes
from hitlab.errors import UsageError

# A model that answers at once and needs no weights (the engines draw them at random) and no tokenizer.
TINY_MODEL: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class PipStep:
    """One call of pip in the environment; `what` is what the user reads meanwhile."""

    what: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the user asks of a server. Sizes left open are the recipe's own; port 0 is any free one."""

    sizes: CacheSizes = UNKNOWN
    port: int = 0
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Everything that a recipe's command line is made from."""

    model_dir: str
    port: int
    block_tokens: int
    capacity_blocks: int
    ranks: int = 1
    extra_args: tuple[str, ...] = ()
    cpus: tuple[int, ...] = (0,)  # ids of the CPUs the server may run on

    @property
    def capacity_tokens(self) -> int:
        """Tokens of one rank's pool.

        >>> ServerSpec("model", port=0, block_tokens=32, capacity_blocks=1024).capacity_tokens
        32768
        """
        return self.capacity_blocks * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRecipe:
    """How one version of an engine is installed and started on a machine without a GPU.

    `pip_steps` run in order in a virtual environment of its own and name distributions, never addresses, so
    that pip's own configuration decides where they come from. `site_files` are then written, by their paths
    below site-packages. `argv` begins with a program of the environment's bin directory. `ready_path` answers
    200 when the server serves and must not move a counter. `owned_args` are the flags that `argv` sets from
    the options, which the user's extra arguments may therefore not repeat.
    """

    engine: str
    title: str
    version: str
    pip_steps: tuple[PipStep, ...]
    argv: Callable[[ServerSpec], tuple[str, ...]]
    environment: Callable[[ServerSpec], Mapping[str, str]]
    ready_path: str
    block_tokens: int
    capacity_tokens: int
    block_multiple: int = 1
    site_files: Mapping[str, str] = field(default_factory=dict)
    owned_args: frozenset[str] = frozenset({"--host", "--port"})
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))  # oldest and newest that it runs on
    download_mb: int = 0
    installed_mb: int = 0
    ready_seconds: float = 600.0  # after which a start is given up

    @property
    def name(self) -> str:
        """The environment's name: engine and version."""
        return f"{self.engine}-{self.version}"

    @property
    def full_title(self) -> str:
        """The engine's name as people write it, with the version."""
        return f"{self.title} {self.version}"

    @property
    def digest(self) -> str:
        """A hash of all that an environment is made from: another one means that it has to be made again."""
        made_of = [[step.arguments for step in self.pip_steps], sorted(self.site_files.items())]
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]

    def spec(self, options: ServerOptions, model_dir: str, cpus: tuple[int, ...]) -> ServerSpec:
        """The options with the recipe's defaults filled in. Raises UsageError for what this engine refuses."""
        block_tokens, capacity_blocks, ranks = options.sizes.filled(self.block_tokens, self.capacity_tokens)
        spec = ServerSpec(
            model_dir=model_dir,
            port=options.port,
            block_tokens=block_tokens,
            capacity_blocks=capacity_blocks,
            ranks=ranks,
            extra_args=options.extra_args,
            cpus=cpus,
        )
        self._check(spec)
        return spec

    def _check(self, spec: ServerSpec) -> None:
        block_tokens = spec.block_tokens
        if block_tokens < 1 or block_tokens % self.block_multiple:
            multiples = ", ".join(str(self.block_multiple * factor) for factor in (1, 2, 3, 4))
            raise UsageError(
                f"{self.title} on the CPU has no blocks of {block_tokens} tokens",
                todo=f"`block_tokens` must be a multiple of {self.block_multiple}: {multiples}, ...",
            )
        for flag, value, least in (
            ("`capacity_blocks`", spec.capacity_blocks, 2),
            ("`ranks`", spec.ranks, 1),
            ("`port`", spec.port, 0),
        ):
            if value < least:
                raise UsageError(f"{flag} is {value}", todo=f"it must be at least {least}")
        for argument in spec.extra_args:
            flag = argument.partition("=")[0]
            if flag in self.owned_args:
                raise UsageError(f"{flag} among the engine's arguments", todo="use hitlab's own option for it")


def load_cpu_recipe(name: str) -> CpuRecipe:
    """How this engine is installed and started on a CPU. Raises UsageError for an unknown name."""
    return cast(CpuRecipe, families.load("engines.cpu", name).CPU)
