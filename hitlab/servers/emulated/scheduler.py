"""The scheduler of an emulated engine: which requests run beside each other, around the cache models.

Time is the number of calls of `step`: in one step each data-parallel rank admits what waits, in order of arrival
and as far as the pool and its prefill batch allow, and every running request generates one token. Requests that
arrive between two steps therefore overlap, and what one finds of the other is up to the cache model.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hitlab.cache.model import CacheModel, Lease, PoolFullError
from hitlab.cache.radix_tree import common_prefix
from hitlab.servers.emulated.config import EmulatedConfig, EngineDiedError, Faults, PostFailedError
from hitlab.tokens import Prompt

_UNLIMITED = 1 << 62
_BOS = 1


@dataclass(slots=True, eq=False)
class Generation:
    """One prompt to be continued; the scheduler fills in the fields below the line."""

    prompt: Prompt
    max_tokens: int = 1
    stop_tokens: frozenset[int] = frozenset()
    #: Index among the several outputs of one prompt, which differ.
    choice: int = 0
    #: False computes the whole prompt and counts neither queries nor hits; its blocks are stored all the same.
    looked_up: bool = True
    #: The server's own, as a health check is; counted in the scheduler and not among the answers.
    internal: bool = False

    # ----
    rank: int = 0
    hit_tokens: int = 0
    external_hit_tokens: int = 0
    output: list[int] = field(default_factory=list)
    #: "length", "stop", "abort", or "error" for a request that the pool can never hold.
    finish_reason: str = ""
    preemptions: int = 0
    held: bool = False
    lease: Lease | None = None
    on_finish: Callable[["Generation"], None] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt as the server sees it."""
        return len(self.prompt.tokens)

    @property
    def cached_tokens(self) -> int:
        """Hit tokens of every tier, which is what responses report."""
        return self.hit_tokens + self.external_hit_tokens


@dataclass(slots=True)
class RankCounters:
    """What one rank has counted since it started, and how it stands; tokens unless the name says otherwise."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    external_queried_tokens: int = 0
    external_hit_tokens: int = 0
    recounted_queried_tokens: int = 0
    recounted_hit_tokens: int = 0
    preempted_requests: int = 0
    #: Prompt tokens of all prefills, counted as queries or not.
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    #: Those of them that came after a request's first.
    decoded_tokens: int = 0
    #: Of requests that came from outside and have finished.
    answered_requests: int = 0
    answered_prompt_tokens: int = 0
    answered_hit_tokens: int = 0
    answered_external_hit_tokens: int = 0
    answered_output_tokens: int = 0
    #: {prompt tokens: requests} and {finish reason: requests}, of the same.
    prompt_lengths: Counter[int] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    last_batch_queried_tokens: int = 0
    last_batch_hit_tokens: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    resident_tokens: int = 0
    evicted_tokens: int = 0
    capacity_tokens: int = 0

    @property
    def found_tokens(self) -> int:
        """Prompt tokens of all prefills that were found in the cache or in a tier behind it."""
        return self.hit_tokens + self.external_hit_tokens

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens of all prefills that were not found."""
        return self.prefilled_tokens - self.found_tokens

    def copy(self) -> "RankCounters":
        """A copy that stays as it is."""
        return replace(self, prompt_lengths=Counter(self.prompt_lengths), finish_reasons=Counter(self.finish_reasons))


def output_token(generation: Generation, vocab_size: int) -> int:
    """The next token: any but the lowest ids, which are special, made from the prompt and the token's place alone.

    >>> [output_token(Generation(Prompt((5, 6)), output=[0] * n), 32_000) for n in range(3)]
    [5390, 12087, 8076]
    """
    lowest = 1000 if vocab_size > 2000 else 3
    mixed = hash((generation.prompt.tokens, generation.choice, len(generation.output))) * 0x9E3779B97F4A7C15
    return lowest + (mixed >> 17) % (vocab_size - lowest)


class Scheduler:
    """All ranks of one server. POSTs reach the ranks in turn, prompt by prompt."""

    def __init__(
        self,
        config: EmulatedConfig,
        faults: Faults,
        build_cache: Callable[[EmulatedConfig], CacheModel],
        batch_tokens: int | None = None,
        warm_up: Callable[[EmulatedConfig], list[Generation]] = lambda config: [],
    ) -> None:
        self._config = config
        self._faults = faults
        self._build_cache = build_cache
        self._batch_tokens = batch_tokens or _UNLIMITED
        self._warm_up = warm_up
        self._history: deque[list[RankCounters]] = deque(maxlen=faults.lag_scrapes + 1)
        self._tier: OffloadTier | None = OffloadTier(config.block_tokens) if faults.offload_tier else None
        self._posts = 0
        self._turn = 0
        self.restarts = 0
        self.ranks: list[Rank] = []
        self._start()

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return all(rank.idle for rank in self.ranks)

    def submit(self, generations: Sequence[Generation], *, internal: bool = False) -> None:
        """Queue one POST's generations. Raises PostFailedError or EngineDiedError, where a fault says so."""
        foreign = []
        if not internal:
            foreign = self._spoil(generations)
        for generation in (*generations, *foreign):
            generation.internal = internal
            generation.rank = self._turn
            self.ranks[self._turn].waiting.append(generation)
            self._turn = (self._turn + 1) % len(self.ranks)

    def step(self) -> bool:
        """Let every rank take one step; whether another step would change anything."""
        moved = [rank.step() for rank in self.ranks]
        if self.idle and not self.restarts and 0 < self._faults.restart_after <= self._posts:
            self.restarts += 1
            self._start()
        return any(moved) and not self.idle

    def abort(self, generation: Generation) -> None:
        """End a generation that nobody waits for any longer."""
        self.ranks[generation.rank].abort(generation)

    def reset(self) -> bool:
        """Empty the cache; False, and nothing changed, while a request runs."""
        if not self.idle:
            return False
        emptied = [rank.cache.reset() for rank in self.ranks]
        return all(emptied)

    def scrape(self) -> list[RankCounters]:
        """Each rank's counters as a scrape shows them, which may be late by a fault."""
        self._history.append([rank.read() for rank in self.ranks])
        return self._history[0]

    def _start(self) -> None:
        self.ranks = [
            Rank(self._config, self._faults, self._build_cache(self._config), self._batch_tokens, self._tier)
            for _ in range(self._config.ranks)
        ]
        self._turn = 0
        for rank in self.ranks:
            rank.waiting.extend(self._warm_up(self._config))
        while self.step():
            pass

    def _spoil(self, generations: Sequence[Generation]) -> list[Generation]:
        """Do to a POST what the faults ask for; the requests that another client sends beside it."""
        faults = self._faults
        self._posts += 1
        if self._posts == faults.die_post:
            raise EngineDiedError("the emulated engine died")
        if self._posts == faults.fail_post:
            raise PostFailedError("the emulated engine failed this request")
        for generation in generations:
            if faults.extra_bos:
                generation.prompt = Prompt((_BOS, *generation.prompt.tokens), generation.prompt.salt)
            generation.held = self._posts == faults.hang_post
        if faults.foreign_every and self._posts % faults.foreign_every == 0:
            # Low ids, so that it shares nothing with a client that keeps to a safe range.
            return [Generation(Prompt(tuple(20 + n % 80 for n in range(faults.foreign_tokens))))]
        return []


class Rank:
    """One data-parallel rank: its cache, its queue and what it runs."""

    def __init__(
        self,
        config: EmulatedConfig,
        faults: Faults,
        cache: CacheModel,
        batch_tokens: int,
        tier: "OffloadTier | None",
    ) -> None:
        self.cache = cache
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.counters = RankCounters(capacity_tokens=cache.capacity_tokens)
        self._config = config
        self._recount_every = faults.recount_every
        self._batch_tokens = batch_tokens
        self._tier = tier
        self._begun = 0
        # The last request of a prefill batch may not fit into it; the rest of it comes first in the next one.
        self._cut: Generation | None = None
        self._cut_tokens = 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not (self.waiting or self.running or self._cut)

    def step(self) -> bool:
        """Admit what fits, then let everything that runs generate a token; whether anything happened."""
        moved = self._admit()
        for generation in self.running[:]:
            if generation.lease is not None and not generation.held:
                moved = True
                self._decode(generation)
        if self.waiting and not (moved or self.running or self._cut):
            self._finish(self.waiting.popleft(), "error")
            moved = True
        return moved

    def abort(self, generation: Generation) -> None:
        """End a generation wherever it is."""
        if generation in self.waiting:
            self.waiting.remove(generation)
        elif generation is self._cut:
            self._cut, self._cut_tokens = None, 0
        elif generation in self.running:
            self.running.remove(generation)
        else:
            return
        self._finish(generation, "abort")

    def read(self) -> RankCounters:
        """A copy of the counters, with what runs, waits and is resident now."""
        self.counters.running_requests = len(self.running) + (self._cut is not None)
        self.counters.waiting_requests = len(self.waiting)
        self.counters.resident_tokens = self.cache.resident_tokens
        self.counters.evicted_tokens = self.cache.evicted_tokens
        return self.counters.copy()

    def _admit(self) -> bool:
        budget, moved = self._batch_tokens, False
        if self._cut is not None:
            moved = True
            self._cut_tokens, budget = max(0, self._cut_tokens - budget), max(0, budget - self._cut_tokens)
            if self._cut_tokens:
                return moved
            self.running.append(self._cut)
            self._cut = None
        if self.waiting and budget:
            self.counters.last_batch_queried_tokens = self.counters.last_batch_hit_tokens = 0
        while self.waiting and budget > 0:
            try:
                computed = self._begin(self.waiting[0])
            except PoolFullError:
                break
            generation, moved = self.waiting.popleft(), True
            self._cut_tokens, budget = max(0, computed - budget), budget - computed
            if self._cut_tokens:
                self._cut = generation
            else:
                self.running.append(generation)
        return moved

    def _begin(self, generation: Generation) -> int:
        """Take room for a request; how many tokens it has to compute. Raises PoolFullError."""
        prompt = Prompt(generation.prompt.tokens + tuple(generation.output), generation.prompt.salt)
        lease = self.cache.begin(prompt, generation.max_tokens - len(generation.output))
        generation.lease = lease
        found = lease.hit_tokens
        self._begun += 1
        if not generation.preemptions:
            found = self._count(generation, lease)
        return len(prompt.tokens) - found

    def _count(self, generation: Generation, lease: Lease) -> int:
        """Count a request's lookup; how many tokens it found."""
        counters, length = self.counters, generation.prompt_tokens
        counters.prefilled_tokens += length
        counters.last_batch_queried_tokens += length
        if not (generation.looked_up and self._config.caching_on):
            return 0
        generation.hit_tokens = lease.hit_tokens
        counters.queried_tokens += length
        counters.hit_tokens += lease.hit_tokens
        counters.last_batch_hit_tokens += lease.hit_tokens
        if self._tier is not None:
            generation.external_hit_tokens = self._tier.look_up(generation.prompt, lease.hit_tokens)
            counters.external_queried_tokens += length - lease.hit_tokens
            counters.external_hit_tokens += generation.external_hit_tokens
        if self._recount_every and self._begun % self._recount_every == 0:
            counters.preempted_requests += 1
            counters.recounted_queried_tokens += length
            counters.recounted_hit_tokens += (length - 1) // self._config.block_tokens * self._config.block_tokens
        return generation.cached_tokens

    def _decode(self, generation: Generation) -> None:
        assert generation.lease is not None
        if generation.max_tokens:
            token = output_token(generation, self._config.vocab_size)
            try:
                generation.lease.decode(token)
            except PoolFullError:
                self._make_way()
                return
            generation.output.append(token)
            self.counters.generated_tokens += 1
            self.counters.decoded_tokens += len(generation.output) > 1
        stopped = bool(generation.output) and generation.output[-1] in generation.stop_tokens
        if stopped or len(generation.output) >= generation.max_tokens:
            self.running.remove(generation)
            self._finish(generation, "stop" if stopped else "length")

    def _make_way(self) -> None:
        """Preempt the request that came last; it begins again, with what it has generated, when there is room."""
        last = next(generation for generation in reversed(self.running) if not generation.held)
        self.running.remove(last)
        if not (self.running or self._cut):
            self._finish(last, "error")
            return
        assert last.lease is not None
        last.lease.finish()
        last.lease = None
        last.preemptions += 1
        self.counters.preempted_requests += 1
        self.waiting.appendleft(last)

    def _finish(self, generation: Generation, reason: str) -> None:
        if generation.lease is not None:
            generation.lease.finish(reason == "stop")
            generation.lease = None
        generation.finish_reason = reason
        if not generation.internal:
            counters = self.counters
            counters.answered_requests += 1
            counters.answered_prompt_tokens += generation.prompt_tokens
            counters.answered_hit_tokens += generation.hit_tokens
            counters.answered_external_hit_tokens += generation.external_hit_tokens
            counters.answered_output_tokens += len(generation.output)
            counters.prompt_lengths[generation.prompt_tokens] += 1
            counters.finish_reasons[reason] += 1
        if generation.on_finish is not None:
            generation.on_finish(generation)


class OffloadTier:
    """A second cache of endless size, which a reset of the first one does not empty.

    >>> tier = OffloadTier(block_tokens=16)
    >>> prompt = Prompt(tuple(range(100)))
    >>> tier.look_up(prompt, hit_tokens=0), tier.look_up(prompt, hit_tokens=32)
    (0, 64)
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._seen: list[Prompt] = []

    def look_up(self, prompt: Prompt, hit_tokens: int) -> int:
        """Tokens found here beyond those found before; the prompt is kept."""
        shared = max(
            (common_prefix(prompt.tokens, old.tokens) for old in self._seen if old.salt == prompt.salt), default=0
        )
        self._seen.append(prompt)
        found = min(shared, len(prompt.tokens) - 1) // self._block_tokens * self._block_tokens
        return max(0, found - hit_tokens)
