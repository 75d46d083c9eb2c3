"""Every rule of SGLang's cache model (S1 to S11, D1 to D3 of cache/radix.py) is needed: without it answers change.

Two details have no case because nothing can tell them apart: whether a matched path is made recent from the root
down or from the leaf up, and which half of a split comes first. No other node's turn comes between theirs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recordings.rules import Mutants, outcome

from hitlab.cache.model import PoolFullError, serve
from hitlab.cache.radix import RadixCache, RadixLease
from hitlab.cache.radix_tree import RadixTree, Tokens, TreeNode
from hitlab.client.dialect import load_engine
from hitlab.recordings.recording import Recording, compare, recorded_facts
from hitlab.tokens import Prompt

MUTANTS = Mutants(RadixCache, tree_type=RadixTree, lease_type=RadixLease)
recorded, worked_out = MUTANTS.recorded, MUTANTS.worked_out

# --- What recordings show --------------------------------------------------------------------------


@recorded("S1 running requests hold tokens outside the tree")
class CountsOnlyTheTree(RadixLease):
    def hold(self, tokens: int) -> None:
        pass


@recorded("S2 the salt is part of a child's name")
class IgnoresTheSalt(RadixTree):
    def get_child_key(self, token_ids: Tokens, depth: int, extra_key: str | None) -> tuple[str | None, Tokens]:
        return super().get_child_key(token_ids, depth, None)


@recorded("S2 the tree is cut at pages")
class CutsAnywhere(RadixTree):
    def __init__(self, page_size: int) -> None:
        super().__init__(1)


@recorded("S3 the last token is computed")
class MatchesTheLastToken(RadixCache):
    def matchable(self, length: int) -> int:
        return self.floor(length)


@recorded("S3 a match may end inside a node")
class MatchesWholeNodes(RadixTree):
    def match_prefix(self, token_ids: Tokens, extra_key: str | None = None) -> tuple[TreeNode, int]:
        node, depth = self.root_node, 0
        while (child := self.get_child(node, token_ids, depth, extra_key)) and (
            child.token_ids == token_ids[depth : depth + len(child.token_ids)]
        ):
            node, depth = child, depth + len(child.token_ids)
        return super().match_prefix(token_ids[:depth], extra_key)


@recorded("S4 a split refreshes the rest too")
class LeavesTheRestAsOldAsItWas(RadixTree):
    def split_node(self, node: TreeNode, split_len: int) -> TreeNode:
        before = list(self.recency)
        upper = super().split_node(node, split_len)
        self.recency = OrderedDict.fromkeys([*before, upper])
        return upper


@recorded("S6 above page size 1 prefill asks for a page more")
class AsksForWhatPrefillTakes(RadixCache):
    def prefill_room(self, tokens: int) -> int:
        return tokens


@recorded("S7 leaves go whole")
class EvictsPageByPage(RadixTree):
    def evict_leaf(self) -> int:
        leaf = next(self.evictable_leaves())
        if len(leaf.token_ids) == self.page_size:
            return self.remove_leaf(leaf)
        leaf.token_ids = leaf.token_ids[: -self.page_size]
        self.total_size -= self.page_size
        return self.page_size


@recorded("S7 the least recent leaf goes")
class EvictsTheMostRecent(RadixTree):
    def evictable_leaves(self) -> Iterator[TreeNode]:
        return reversed(list(super().evictable_leaves()))


@recorded("S7 a parent left alone is as recent as it was")
class RefreshesAParentLeftAlone(RadixTree):
    def remove_leaf(self, node: TreeNode) -> int:
        tokens = super().remove_leaf(node)
        if node.parent and node.parent in self.recency:
            self.recency.move_to_end(node.parent)
        return tokens


@recorded("S8 insertion refreshes the nodes on the way")
class RefreshesNothingByInsertion(RadixTree):
    def insert(self, token_ids: Tokens, extra_key: str | None = None) -> TreeNode:
        before = list(self.recency)
        node = super().insert(token_ids, extra_key)
        self.recency = OrderedDict.fromkeys([*before, *self.recency])
        return node


@recorded("S8 what is new becomes one leaf")
class AddsTwoLeaves(RadixTree):
    def insert(self, token_ids: Tokens, extra_key: str | None = None) -> TreeNode:
        half = len(token_ids) // 2 // self.page_size * self.page_size
        super().insert(token_ids[:half], extra_key)
        return super().insert(token_ids, extra_key)


@recorded("S9 the output is inserted")
class InsertsOnlyThePrompt(RadixLease):
    def finish(self, stopped: bool = False) -> None:
        self.stored_tokens = len(self.prompt)
        super().finish()


@recorded("S9 the prompt is inserted again")
class InsertsOnce(RadixLease):
    def insert_prompt_again(self, inserted: int) -> None:
        pass


@recorded("S10 long prefills are chunked")
class PrefillsAtOnce(RadixLease):
    def prefill(self) -> None:
        self.extend(len(self.prompt))


@recorded("D1 the prompt is inserted after prefill")
class InsertsNoPromptBeforeTheEnd(RadixLease):
    def cache_unfinished_req(self, length: int) -> None:
        if not self.output:
            super().cache_unfinished_req(length)


@recorded("D1 the last token is not stored")
class StoresTheLastToken(RadixLease):
    def is_step_ahead(self, stopped: bool) -> bool:
        return bool(self.output)


@recorded("D2 every decode step asks for a page")
class AsksWhenAPageIsCrossed(RadixLease):
    def decode_step(self) -> None:
        if self.stored_tokens % self.cache.page_size == 0:
            self.cache.make_room(self.cache.page_size)
        self.store(self.stored_tokens + 1)


@recorded("D3 a stop token is stored by the step ahead")
class SeesTheStopTokenInTime(RadixLease):
    def is_step_ahead(self, stopped: bool) -> bool:
        return False


@recorded("D3 but not at max_tokens")
class StepsAheadOfMaxTokens(RadixLease):
    def is_step_ahead(self, stopped: bool) -> bool:
        return stopped


def builder(tape: Recording, cache: type[RadixCache]) -> Callable[[], RadixCache]:
    facts = recorded_facts(tape, load_engine("sglang"))
    assert facts.capacity_tokens and facts.block_tokens
    tokens, page_size = facts.capacity_tokens, facts.block_tokens
    return lambda: cache(tokens, page_size, facts.chunked_prefill_tokens, facts.overlap_schedule)


@pytest.mark.parametrize("mutant", MUTANTS.recorded_rules)
def test_a_recording_is_answered_differently_without_the_rule(
    mutant: type[RadixCache], recordings: dict[str, Recording]
) -> None:
    tapes = [tape for tape in recordings.values() if tape.engine == "sglang"]
    assert any(not compare(tape, builder(tape, mutant)).agrees for tape in tapes)


# --- What recordings do not show -------------------------------------------------------------------


def admission_beside_a_partial_page(cache: type[RadixCache]) -> str:
    """12 tokens in pages of 4: a running request of 5 holds 8, so one that asks for 1 + a page waits."""
    model = cache(max_total_num_tokens=12, page_size=4)
    model.begin(Prompt((1, 2, 3, 4, 5)))
    return outcome(lambda: model.begin(Prompt((9,))))


@worked_out("S1 held in whole pages", admission_beside_a_partial_page, "full")
class HoldsSingleTokens(RadixLease):
    def store(self, length: int) -> None:
        self.stored_tokens = length
        self.hold(length - self.path_tokens)


def capacity_of_15_tokens_in_pages_of_4(cache: type[RadixCache]) -> int:
    return cache(max_total_num_tokens=15, page_size=4).capacity_tokens


@worked_out("S1 capacity in whole pages", capacity_of_15_tokens_in_pages_of_4, 12)
class FloorsNothing(RadixCache):
    def floor(self, length: int) -> int:
        return length


def what_goes_after_a_match(cache: type[RadixCache]) -> list[int]:
    """A match alone makes its path recent: of two leaves the younger, shorter one goes first."""
    tree = cache.tree_type(page_size=1)
    tree.insert((1, 2, 3))
    tree.insert((7, 8))
    tree.match_prefix((1, 2, 3))
    return [tree.evict_leaf(), tree.evict_leaf()]


@worked_out("S3 a match makes its path recent", what_goes_after_a_match, [2, 3])
class MatchesWithoutATrace(RadixTree):
    def match_prefix(self, token_ids: Tokens, extra_key: str | None = None) -> tuple[TreeNode, int]:
        before = list(self.recency)
        found = super().match_prefix(token_ids, extra_key)
        self.recency = OrderedDict.fromkeys([*before, *self.recency])
        return found


def hits_on_the_path_of_a_running_request(cache: type[RadixCache]) -> int:
    """10 tokens: 4 on the path of a running request that holds a 5th, 5 of a later one that fill the pool.

    A third request of 5 evicts the later one though the path is older, so the path is still found.
    """
    model = cache(max_total_num_tokens=10)
    serve(model, Prompt((1, 2, 3, 4)))
    model.begin(Prompt((1, 2, 3, 4, 5)))
    serve(model, Prompt((21, 22, 23, 24, 25)))
    serve(model, Prompt((31, 32, 33, 34, 35)))
    return serve(model, Prompt((1, 2, 3, 4, 9))).hit_tokens


@worked_out("S5 the path of a running request is locked", hits_on_the_path_of_a_running_request, 4)
class LocksNothing(RadixTree):
    def inc_lock_ref(self, node: TreeNode) -> None:
        pass

    def dec_lock_ref(self, node: TreeNode) -> None:
        pass


def hits_on_a_first_chunk(cache: type[RadixCache]) -> int:
    """Pages of 4, chunks of 6, 5 tokens: ceiled to 8 they are more than a chunk, so the first page is shared."""
    model = cache(max_total_num_tokens=100, page_size=4, chunked_prefill_size=6)
    model.begin(Prompt((1, 2, 3, 4, 5)))
    return model.begin(Prompt((1, 2, 3, 4, 5))).hit_tokens


@worked_out("S10 the first comparison is of the ceiled length", hits_on_a_first_chunk, 4)
class ComparesThePlainLength(RadixLease):
    def first_prefill_length(self) -> int:
        return len(self.prompt) - self.path_tokens


def refusal_of_what_will_not_fit(cache: type[RadixCache]) -> list[Any]:
    """10 tokens, 5 of them held by a running request: one of 6 is refused, and the 4 in the tree stay."""
    model = cache(max_total_num_tokens=10)
    serve(model, Prompt((1, 2, 3, 4)))
    model.begin(Prompt((5, 6, 7, 8, 9)))
    refused = outcome(lambda: model.begin(Prompt((21, 22, 23, 24, 25, 26))))
    return [refused, model.evicted_tokens, model.resident_tokens]


@worked_out("S11 nothing is evicted for what will not fit", refusal_of_what_will_not_fit, ["full", 0, 4])
class EvictsFirst(RadixCache):
    def require(self, tokens: int) -> None:
        while self.available_size < tokens:
            try:
                self.evicted_tokens += self.tree.evict_leaf()
            except LookupError:
                raise PoolFullError("full") from None


def evicted_by_the_first_decode_step(cache: type[RadixCache]) -> list[int]:
    """8 tokens: (1, 2, 3, 4) and (5, 6, 7) in the tree, then (1, 2, 3, 4) again with two output tokens.

    Prefill takes the one free token. Overlapped, the first step needs another before the prompt's insertion
    frees the duplicate, and (5, 6, 7) goes; without overlap the duplicate is free in time.
    """
    evicted = []
    for overlap in (True, False):
        model = cache(max_total_num_tokens=8, overlap_schedule=overlap)
        serve(model, Prompt((1, 2, 3, 4)))
        serve(model, Prompt((5, 6, 7)))
        evicted.append(serve(model, Prompt((1, 2, 3, 4)), output=(50, 51)).evicted_tokens)
    return evicted


@worked_out("D2 overlapped, the first step comes before the prompt", evicted_by_the_first_decode_step, [3, 0])
class InsertsThePromptFirst(RadixLease):
    def first_decode_step(self) -> None:
        self.cache_unfinished_req(len(self.prompt))
        self.decode_step()


def tokens_after_a_stop_token(cache: type[RadixCache]) -> list[int]:
    """2 prompt tokens + 2 generated, the second a stop token; then at max_tokens; then without overlap."""
    resident = []
    for max_tokens, overlap in ((9, True), (2, True), (9, False)):
        model = cache(max_total_num_tokens=100, overlap_schedule=overlap)
        serve(model, Prompt((1, 2)), output=(3, 4), max_tokens=max_tokens, stopped=True)
        resident.append(model.resident_tokens)
    return resident


@worked_out("D3 only the overlap scheduler is a step ahead", tokens_after_a_stop_token, [4, 3, 3])
class IsAlwaysAStepAhead(RadixLease):
    def is_step_ahead(self, stopped: bool) -> bool:
        return stopped and len(self.output) < self.max_tokens


@pytest.mark.parametrize(("mutant", "case", "right"), MUTANTS.worked_out_rules)
def test_a_case_worked_out_by_hand_comes_out_differently_without_the_rule(
    mutant: type[RadixCache], case: Callable[[type[RadixCache]], Any], right: Any
) -> None:
    assert case(RadixCache) == right
    assert case(mutant) != right


def test_no_rule_is_lost() -> None:
    assert (len(MUTANTS.recorded_rules), len(MUTANTS.worked_out_rules)) == (20, 8)
