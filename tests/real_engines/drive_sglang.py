"""SGLang's own tree, allocators and request life cycle, in process: no model, no server.

Runs inside SGLang's environment, started by test_cache_managers.py. What a scheduler would decide, this file
decides in its place: which step comes next, and that a request waits when the pool has no room. Looking up,
locking, allocating, evicting, inserting and giving back are SGLang's.
"""

import os
from array import array
from types import SimpleNamespace
from typing import Any

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import torch
from real_engines.scripts import answer_scripts
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_TOKEN, Req
from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

ROWS, ROW_TOKENS = 64, 4096  # requests at once, and tokens of each


class Manager:
    """One rank; `core` is the tree: "rust" (what the server runs), "python", or "legacy" (RadixCache)."""

    def __init__(self, core: str, page_tokens: int, capacity_tokens: int, overlap: bool) -> None:
        self.page_tokens, self.overlap = page_tokens, overlap
        pool = SimpleNamespace(device="cpu")  # no keys and values, only where they would be
        if page_tokens == 1:
            self.slots = TokenToKVPoolAllocator(capacity_tokens, torch.float32, "cpu", pool, need_sort=False)
        else:
            self.slots = PagedTokenToKVPoolAllocator(
                capacity_tokens, page_tokens, torch.float32, "cpu", pool, need_sort=False
            )
        self.rows = ReqToTokenPool(ROWS, ROW_TOKENS, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=page_tokens,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=None if core == "legacy" else core,
        )
        self.tree = RadixCache(params) if core == "legacy" else UnifiedRadixCache(params)
        self.running: dict[int, Req] = {}
        self.published: set[int] = set()

    def begin(self, number: int, tokens: list[int], salt: str | None) -> int | None:
        """Prefill; hit tokens, or None when there is no room."""
        request = Req(str(number), "", array("q", tokens), SamplingParams(max_new_tokens=10_000), cache_salt=salt)
        request.init_next_round_input(self.tree)
        lock = self.tree.lock(request.last_node)
        hit_tokens, wanted = request.prefix_len, len(tokens) - request.prefix_len
        if not self._has_room(wanted if self.page_tokens == 1 else wanted + self.page_tokens):
            self.tree.unlock(lock)
            return None
        request.lock, request.extend_end = lock, len(tokens)
        alloc_for_extend(self._batch(request, len(tokens), prefix_lens=[hit_tokens], extend_lens=[wanted]))
        self.running[number] = request
        return int(hit_tokens)

    def decode(self, number: int, tokens: list[int]) -> int:
        """Generate these tokens; how many there was room for."""
        request = self.running[number]
        for done, token in enumerate(tokens):
            if request.output_ids and not self._next_step(number, request):
                return done
            request.output_ids.append(token)
        return len(tokens)

    def finish(self, number: int, stopped: bool) -> None:
        """End by a stop token or by length."""
        request = self.running.pop(number)
        if stopped and self.overlap and request.output_ids:
            self._step(request)  # begun before the stop token was seen
        request.finished_len = len(request.output_ids)
        request.finished_reason = FINISH_MATCHED_TOKEN(0) if stopped else FINISH_LENGTH(len(request.output_ids))
        release_kv_cache(request, self.tree, checkpoint=True)

    def reset(self) -> bool:
        """What flush_cache does when nothing runs."""
        if self.running:
            return False
        self.tree.reset()
        self.rows.clear()
        self.slots.clear()
        return True

    def state(self) -> list[int]:
        """Tokens free, evictable and locked."""
        return [self.slots.available_size(), self.tree.evictable_size(), self.tree.protected_size()]

    def _next_step(self, number: int, request: Req) -> bool:
        """A decode step; around the first one the prompt is published, before or after by the scheduler's kind."""
        if number in self.published:
            return self._step(request)
        if self.overlap and not self._step(request):
            return False
        checkpoint_kv_cache(request, self.tree)
        self.published.add(number)
        return self.overlap or self._step(request)

    def _step(self, request: Req) -> bool:
        if not self._has_room(self.page_tokens):
            return False
        alloc_for_decode(self._batch(request, request.kv.kv_committed_len), token_per_req=1)
        return True

    def _has_room(self, tokens: int) -> bool:
        return bool(tokens <= self.slots.available_size() + self.tree.evictable_size())

    def _batch(self, request: Req, length: int, **more: Any) -> Any:
        """What allocation asks of a batch, for one request."""
        row = [request.kv.req_pool_idx or 0]
        return SimpleNamespace(
            reqs=[request],
            tree_cache=self.tree,
            req_to_token_pool=self.rows,
            device="cpu",
            seq_lens=torch.tensor([length]),
            seq_lens_cpu=torch.tensor([length]),
            req_pool_indices=torch.tensor(row),
            req_pool_indices_cpu=torch.tensor(row),
            extend_num_tokens=sum(more.get("extend_lens", [])),
            model_config=SimpleNamespace(is_encoder_decoder=False),
            hisparse_coordinator=None,
            maybe_evict_swa=lambda: None,
            is_dllm=lambda: False,
            **more,
        )


if __name__ == "__main__":
    arguments = ServerArgs(os.environ["HITLAB_TINY_MODEL"], device="cpu", attention_backend="torch_native")
    publish(arguments, role="scheduler")
    answer_scripts(lambda settings: Manager(**settings))
