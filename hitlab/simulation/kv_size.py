"""How many bytes of KV cache a token takes, from a model's architecture, and how many blocks fit in a memory size.

Bytes per token = 2 (a key and a value) x layers x KV heads x head dimension x bytes per element; for multi-head
latent attention (DeepSeek) one latent vector and its rotary key per layer instead. All GPUs of a tensor-parallel
group together: a group of them holds one cache.
"""

import re
from dataclasses import dataclass

from hitlab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Architecture:
    """The numbers of a model's config.json that decide its KV size."""

    layers: int
    kv_heads: int
    head_dim: int
    source: str  # the repository on huggingface.co whose config.json has them
    latent_dim: int = 0  # kv_lora_rank + qk_rope_head_dim, for latent attention

    def bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of one token's keys and values in all layers; elements of 2 bytes are BF16, of 1 FP8.

        >>> MODELS["llama-3.1-8b"].bytes_per_token(), MODELS["deepseek-v3"].bytes_per_token(element_bytes=1)
        (131072, 35136)
        """
        per_layer = self.latent_dim or 2 * self.kv_heads * self.head_dim
        return per_layer * self.layers * element_bytes


MODELS = {
    "llama-3.1-8b": Architecture(32, 8, 128, "meta-llama/Llama-3.1-8B"),
    "llama-3.1-70b": Architecture(80, 8, 128, "meta-llama/Llama-3.1-70B"),
    "llama-3.1-405b": Architecture(126, 8, 128, "meta-llama/Llama-3.1-405B"),
    "mistral-7b": Architecture(32, 8, 128, "mistralai/Mistral-7B-v0.3"),
    "mixtral-8x7b": Architecture(32, 8, 128, "mistralai/Mixtral-8x7B-v0.1"),
    "qwen2.5-7b": Architecture(28, 4, 128, "Qwen/Qwen2.5-7B"),
    "qwen2.5-72b": Architecture(80, 8, 128, "Qwen/Qwen2.5-72B"),
    "qwen3-8b": Architecture(36, 8, 128, "Qwen/Qwen3-8B"),
    "qwen3-32b": Architecture(64, 8, 128, "Qwen/Qwen3-32B"),
    "qwen3-235b-a22b": Architecture(94, 4, 128, "Qwen/Qwen3-235B-A22B"),
    "deepseek-v3": Architecture(61, 1, 0, "deepseek-ai/DeepSeek-V3", latent_dim=512 + 64),
}

MAX_MEMORY_BYTES = 2**53  # 8 PiB; beyond it a size is no longer exact as a float

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}


def architecture(name: str) -> Architecture:
    """The model of that name, in any case. Raises UsageError."""
    found = MODELS.get(name.lower())
    if found is None:
        raise UsageError(f"no model named {name!r}", todo=f"give `bytes_per_token`, or choose from {', '.join(MODELS)}")
    return found


def bytes_of(text: str) -> int:
    """A memory size in bytes. Raises UsageError.

    >>> bytes_of("8GiB"), bytes_of("1.5 GB"), bytes_of("512")
    (8589934592, 1500000000, 512)
    """
    said = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", text)
    if said is None or said[2] not in _UNITS:
        raise UsageError(f"{text!r} is no memory size", todo="write it as 8GiB or 200GB")
    size = float(said[1]) * _UNITS[said[2]]
    if size > MAX_MEMORY_BYTES:
        raise UsageError(f"{text.strip()} of memory", todo=f"choose up to {MAX_MEMORY_BYTES:,} bytes")
    return int(size)


def blocks_in(memory_bytes: int, bytes_per_token: int, block_tokens: int) -> int:
    """How many whole blocks fit into this much memory.

    >>> blocks_in(bytes_of("8GiB"), 131_072, 512)
    128
    """
    return memory_bytes // (bytes_per_token * block_tokens)
