"""vLLM's own KVCacheManager, in process: no model, no server.

Runs inside vLLM's environment, started by test_cache_managers.py.
"""

import os

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
from real_engines.scripts import answer_scripts
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class Manager:
    """One rank's manager and the requests that run; `num_blocks` counts the null block."""

    def __init__(self, block_tokens: int, num_blocks: int) -> None:
        spec = FullAttentionSpec(block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
        group = KVCacheGroupSpec(["layer"], spec)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
            max_model_len=8192,
            scheduler_block_size=block_tokens,
            hash_block_size=block_tokens,
            enable_caching=True,
            log_stats=True,
        )
        self.hasher = get_request_block_hasher(block_tokens, sha256)
        self.running: dict[int, Request] = {}

    def begin(self, number: int, tokens: list[int], salt: str | None) -> int | None:
        """Prefill; hit tokens, or None when there is no room."""
        sampling = SamplingParams(max_tokens=10_000)
        request = Request(str(number), tokens, sampling, None, cache_salt=salt, block_hasher=self.hasher)
        blocks, hit_tokens, _ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - hit_tokens, hit_tokens, blocks) is None:
            return None
        request.num_computed_tokens = len(tokens)
        self.running[number] = request
        return int(hit_tokens)

    def decode(self, number: int, tokens: list[int]) -> int:
        """Generate these tokens; how many there was room for."""
        request = self.running[number]
        for done, token in enumerate(tokens):
            if request.num_output_tokens:
                if self.manager.allocate_slots(request, 1) is None:
                    return done
                request.num_computed_tokens += 1
            request.append_output_token_ids(token)
        return len(tokens)

    def finish(self, number: int, stopped: bool) -> None:
        """End, the same way whether by a stop token or by length."""
        self.manager.free(self.running.pop(number))

    def reset(self) -> bool:
        """What /reset_prefix_cache does."""
        return bool(self.manager.reset_prefix_cache())

    def state(self) -> list[int]:
        """Block ids in the free queue, from its head."""
        return [block.block_id for block in self.manager.block_pool.free_block_queue.get_all_free_blocks()]


if __name__ == "__main__":
    init_none_hash(sha256)
    answer_scripts(lambda settings: Manager(**settings))
