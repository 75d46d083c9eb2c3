"""Every rule of vLLM's cache model (V1 to V11 of hitlab/cache/paged.py) is needed: without it answers change."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest
from recordings.rules import Mutants, outcome

from hitlab.cache.model import serve
from hitlab.cache.paged import BlockPool, PagedCache, PagedLease
from hitlab.client.dialect import load_engine
from hitlab.recordings.recording import Recording, compare, recorded_facts
from hitlab.tokens import Prompt

MUTANTS = Mutants(PagedCache, pool_type=BlockPool, lease_type=PagedLease)
recorded, worked_out = MUTANTS.recorded, MUTANTS.worked_out

# --- What recordings show --------------------------------------------------------------------------


@recorded("V1 the null block holds nothing")
class UsesTheNullBlock(BlockPool):
    def usable_blocks(self) -> range:
        return range(self.num_gpu_blocks)


@recorded("V2 hashes are chained")
class HashesBlocksByTheirOwnTokens(PagedCache):
    def block_hashes(self, prompt: Prompt) -> list[int]:
        root, tokens, size = self.none_hash(prompt.salt), prompt.tokens, self.block_tokens
        return [self.hash_block_tokens(root, tokens[end - size : end]) for end in range(size, len(tokens) + 1, size)]


@recorded("V2 the salt enters the hash")
class IgnoresTheSalt(PagedCache):
    def none_hash(self, salt: str | None) -> int:
        return 0


@recorded("V3 the last token is computed")
class HitsTheLastToken(PagedCache):
    def max_hit_blocks(self, length: int) -> int:
        return length // self.block_tokens


@recorded("V4 a lookup answers the oldest block")
class AnswersTheNewestBlock(BlockPool):
    def get_cached_block(self, block_hash: Hashable) -> int | None:
        blocks = self.cached_block_hash_to_block.get(block_hash)
        return blocks[-1] if blocks else None


@recorded("V4 a second block gets the hash too")
class LeavesTheSecondBlockWithoutHash(BlockPool):
    def cache_full_blocks(self, blocks: Iterable[int], block_hashes: Iterable[Hashable]) -> None:
        for block, block_hash in zip(blocks, block_hashes, strict=False):
            if self.get_cached_block(block_hash) is None:
                super().cache_full_blocks([block], [block_hash])


@recorded("V4 the first block keeps the hash")
class MovesTheHashToTheSecondBlock(BlockPool):
    def cache_full_blocks(self, blocks: Iterable[int], block_hashes: Iterable[Hashable]) -> None:
        for block, block_hash in zip(blocks, block_hashes, strict=False):
            first = self.get_cached_block(block_hash)
            if first is not None:
                self.maybe_evict_cached_block(first)
            super().cache_full_blocks([block], [block_hash])


@recorded("V4 evicting one block leaves the hash to the other")
class ForgetsTheHashWithOneBlock(BlockPool):
    def maybe_evict_cached_block(self, block: int) -> bool:
        block_hash = self.block_hash.pop(block, None)
        self.cached_block_hash_to_block.pop(block_hash, None)
        return block_hash is not None


@recorded("V6 hit blocks leave the free queue")
class LeavesHitBlocksQueued(BlockPool):
    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.ref_cnt[block] += 1


@recorded("V7 new blocks come from the head")
class TakesFromTheTail(BlockPool):
    def get_new_blocks(self, num_blocks: int) -> list[int]:
        for block in list(self.free_block_queue)[len(self.free_block_queue) - num_blocks :]:
            self.free_block_queue.move_to_end(block, last=False)
        return super().get_new_blocks(num_blocks)


@recorded("V7 a block that is taken loses its hash")
class KeepsTheHashOfATakenBlock(BlockPool):
    def maybe_evict_cached_block(self, block: int) -> bool:
        return self.block_hash.pop(block, None) is not None


@recorded("V8 the partial block has no hash")
class HashesThePartialBlock(PagedCache):
    def block_hashes(self, prompt: Prompt) -> list[int]:
        full, size = super().block_hashes(prompt), self.block_tokens
        rest = prompt.tokens[len(full) * size :]
        parent = full[-1] if full else self.none_hash(prompt.salt)
        return [*full, self.hash_block_tokens(parent, rest)] if rest else full


@recorded("V9 generated tokens are stored")
class StoresNoOutput(PagedLease):
    def store(self, token: int) -> None:
        pass


@recorded("V9 but the last")
class StoresAllOutput(PagedLease):
    def finish(self, stopped: bool = False) -> None:
        if self.newest is not None:
            self.store(self.newest)
        super().finish(stopped)


@recorded("V9 a block filled by decode gets its hash")
class LeavesDecodedBlocksWithoutHash(PagedLease):
    def cache_full_block(self) -> None:
        self.partial = []


@recorded("V10 blocks are given back tail first")
class FreesHeadFirst(BlockPool):
    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        super().free_blocks(list(ordered_blocks)[::-1])


@recorded("V10 blocks without hash go to the head")
class FreesAllToTheTail(BlockPool):
    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        blocks = list(ordered_blocks)
        super().free_blocks(blocks)
        for block in blocks:
            if block in self.free_block_queue:
                self.free_block_queue.move_to_end(block)


def builder(tape: Recording, cache: type[PagedCache]) -> Callable[[], PagedCache]:
    facts = recorded_facts(tape, load_engine("vllm"))
    assert facts.capacity_blocks and facts.block_tokens
    blocks, block_tokens = facts.capacity_blocks, facts.block_tokens
    return lambda: cache(blocks, block_tokens)


@pytest.mark.parametrize("mutant", MUTANTS.recorded_rules)
def test_a_recording_is_answered_differently_without_the_rule(
    mutant: type[PagedCache], recordings: dict[str, Recording]
) -> None:
    tapes = [tape for tape in recordings.values() if tape.engine == "vllm"]
    assert any(not compare(tape, builder(tape, mutant)).agrees for tape in tapes)


# --- What recordings do not show -------------------------------------------------------------------


def hole_at_the_first_block(cache: type[PagedCache]) -> int:
    """Three blocks hold hashes 1, 2 and 3; the first is reused, so a request for 1, 2, 3 finds nothing."""
    pool = cache.pool_type(num_gpu_blocks=4)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [1, 2, 3])
    pool.free_blocks(blocks)
    pool.free_blocks(pool.get_new_blocks(1))
    return len(pool.find_longest_cache_hit([1, 2, 3]))


@worked_out("V3 the run is unbroken from the first block on", hole_at_the_first_block, 0)
class CountsBeyondHoles(BlockPool):
    def find_longest_cache_hit(self, block_hashes: Iterable[Hashable]) -> list[int]:
        found = map(self.get_cached_block, block_hashes)
        return [block for block in found if block is not None]


def admission_of_a_hit_in_a_full_pool(cache: type[PagedCache]) -> str:
    """4 usable blocks of 2: 2 in use, and the 2 that are free are the very ones the request would hit.

    It needs a third for its last token, so it waits.
    """
    model = cache(num_gpu_blocks=5, block_tokens=2)
    serve(model, Prompt((1, 2, 3, 4, 5)))
    model.begin(Prompt((7, 8, 9)))
    try:
        return outcome(lambda: model.begin(Prompt((1, 2, 3, 4, 6))))
    except KeyError:
        return "took a block that was not there"


@worked_out("V5 hits in the free queue count", admission_of_a_hit_in_a_full_pool, "full")
class CountsOnlyNewBlocks(PagedCache):
    def get_num_blocks_to_allocate(self, length: int, hits: Sequence[int]) -> int:
        return self.num_blocks(length) - len(hits)


def a_shared_block_after_one_of_its_users(cache: type[PagedCache]) -> int:
    """Two running requests share a block; when one ends the block is still in use: 5 - 1 null - 2 = 2 free."""
    model = cache(num_gpu_blocks=5, block_tokens=2)
    first, _second = (model.begin(Prompt((1, 2, 3))) for _ in range(2))
    first.finish()
    return model.pool.get_num_free_blocks()


@worked_out("V6 a block may have several users", a_shared_block_after_one_of_its_users, 2)
class FreesWithTheFirstUser(BlockPool):
    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            self.ref_cnt[block] = 1
        super().free_blocks(blocks)


def hits_on_a_running_request(cache: type[PagedCache]) -> int:
    model = cache(num_gpu_blocks=9, block_tokens=2)
    _first, second = (model.begin(Prompt((1, 2, 3, 4, 5))) for _ in range(2))
    return second.hit_tokens


@worked_out("V8 blocks have their hash before they are computed", hits_on_a_running_request, 4)
class GivesHashesAtTheEnd(BlockPool):
    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        self.waiting: dict[int, Hashable] = {}

    def cache_full_blocks(self, blocks: Iterable[int], block_hashes: Iterable[Hashable]) -> None:
        self.waiting.update(zip(blocks, block_hashes, strict=False))

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        blocks = list(ordered_blocks)
        full = [block for block in blocks if block in self.waiting]
        super().cache_full_blocks(full, [self.waiting.pop(block) for block in full])
        super().free_blocks(blocks)


def hits_after_a_stop_token(cache: type[PagedCache]) -> int:
    """3 prompt tokens and a stop token would fill a block of 4, if the stop token were stored."""
    model = cache(num_gpu_blocks=9, block_tokens=4)
    serve(model, Prompt((1, 2, 3)), output=(99,), max_tokens=50, stopped=True)
    return serve(model, Prompt((1, 2, 3, 99, 5))).hit_tokens


@worked_out("V9 nor is a stop token", hits_after_a_stop_token, 0)
class StoresTheStopToken(PagedLease):
    def finish(self, stopped: bool = False) -> None:
        if stopped and self.newest is not None:
            self.store(self.newest)
        super().finish(stopped)


def reset_while_one_runs(cache: type[PagedCache]) -> list[bool]:
    model = cache(num_gpu_blocks=9, block_tokens=4)
    lease = model.begin(Prompt((1, 2, 3, 4, 5)))
    refused = model.reset()
    lease.finish()
    return [refused, model.reset(), model.resident_tokens == 0]


@worked_out("V11 a reset is refused while a block is in use", reset_while_one_runs, [False, True, True])
class AlwaysResets(BlockPool):
    def reset_prefix_cache(self) -> bool:
        self.block_hash.clear()
        return True


@pytest.mark.parametrize(("mutant", "case", "right"), MUTANTS.worked_out_rules)
def test_a_case_worked_out_by_hand_comes_out_differently_without_the_rule(
    mutant: type[PagedCache], case: Callable[[type[PagedCache]], Any], right: Any
) -> None:
    assert case(PagedCache) == right
    assert case(mutant) != right


def test_no_rule_is_lost() -> None:
    assert (len(MUTANTS.recorded_rules), len(MUTANTS.worked_out_rules)) == (17, 6)
