"""Record what a live engine answers to random sequences, strictly one request after another.

Every request is held against the engine's own counters at once: what another client sent, or a request computed
twice, would make a recording that no model of the cache could explain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hitlab.client.counters import Counters
from hitlab.client.dialect import ServerFacts
from hitlab.client.http import EngineClient
from hitlab.client.ledger import CounterLedger
from hitlab.client.model_files import vocabulary_tokens
from hitlab.errors import ResetRefusedError, ServerError, UsageError
from hitlab.experiment.vocabulary import safe_range
from hitlab.files import replace
from hitlab.measurement.asked import Asked
from hitlab.recordings.recording import RecordedRequest, RecordedSequence, Recording, recording_bytes
from hitlab.recordings.sequences import Planned, RandomSequence, Shape
from hitlab.tokens import Prompt

DEFAULT_PROMPT_TOKENS = 600  # the longest prompt, where the pool has room for it
GIVE_UP_AFTER = 3  # sequences in a row that could not be trusted


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to record; None leaves the longest prompt to the pool's size."""

    sequences: int
    requests: int  # of each sequence
    seed: int
    max_prompt_tokens: int | None
    max_output_tokens: int


def prepare(facts: ServerFacts, asked: Asked, wanted: Wanted) -> Shape:
    """Fit the requests to the server. Raises UsageError for what does not fit, ServerError for what it lacks."""
    if facts.caching is False:
        raise ServerError("prefix caching is off", todo="start the server with it on: there is nothing to record")
    if facts.ranks > 1:
        raise ServerError(
            f"{facts.ranks} data-parallel ranks take requests in turn, and a recording is of one cache",
            todo="start the server with one rank",
        )
    if facts.block_tokens is None or facts.capacity_tokens is None:
        raise ServerError(
            "the server does not say its block and pool size, and without them a recording says nothing",
            todo="see preflight",
        )
    for option, believed, said in (
        ("`block_tokens`", asked.block_tokens, facts.block_tokens),
        ("`capacity_blocks`", asked.capacity_blocks, facts.capacity_blocks),
    ):
        if believed not in (None, said):
            raise UsageError(f"{option} is {believed:,} and the server says {said:,}", todo="leave it out")
    # Beside a prompt lie its output, the rest of a page, and the page that SGLang asks for ahead.
    beside = wanted.max_output_tokens + 2 * facts.block_tokens
    limit = min(facts.capacity_tokens, facts.max_model_tokens or facts.capacity_tokens) - beside
    longest = wanted.max_prompt_tokens
    if longest is None:
        longest = min(DEFAULT_PROMPT_TOKENS, facts.capacity_tokens // 3, limit)
    if not 2 <= longest <= limit:
        raise UsageError(
            f"a prompt of {longest:,} tokens and an output of {wanted.max_output_tokens:,} do not fit this server, "
            f"whose pool holds {facts.capacity_tokens:,} in blocks of {facts.block_tokens:,}",
            todo=f"give `max_prompt_tokens` from 2 to {limit:,}"
            if limit > 1
            else "give it more room, or less `max_output_tokens`",
        )
    vocab_tokens = asked.vocab_tokens or vocabulary_tokens(facts.model_path)
    return Shape(longest, wanted.max_output_tokens, facts.block_tokens, safe_range(asked.vocab_range, vocab_tokens))


async def prepare_recorder(client: EngineClient, asked: Asked, wanted: Wanted) -> "Recorder":
    """A recorder whose requests fit the server. Raises UsageError for what does not fit, ServerError."""
    facts = await client.facts()
    return Recorder(client, facts, prepare(facts, asked, wanted), wanted)


class _UntrustedError(Exception):
    """A sequence that says nothing of the cache, and why."""


class Recorder:
    """One recording under way: `walk` it, then ask for the `recording`, also when it was cut short."""

    def __init__(self, client: EngineClient, facts: ServerFacts, shape: Shape, wanted: Wanted) -> None:
        self._client, self._facts, self._shape, self._wanted = client, facts, shape, wanted
        self._ledger = CounterLedger(client)
        self._gives_ids = False
        self.sequences: list[RecordedSequence] = []
        self.dropped: list[str] = []

    @property
    def emulated(self) -> bool:
        """Whether a model of the engine answers."""
        return self._facts.emulated

    async def walk(self, answered: Callable[[int, int], None]) -> None:
        """Every sequence in turn; `answered` is told how many requests of how many were.

        Raises ServerError; what is in `sequences` by then is good.
        """
        await self._ledger.begin()
        await self._try_out()
        in_a_row = 0
        for index in range(self._wanted.sequences):
            try:
                self.sequences.append(await self._sequence(index, answered))
                in_a_row = 0
            except _UntrustedError as reason:
                self.dropped.append(f"sequence {index}: {reason}")
                in_a_row += 1
                if in_a_row == GIVE_UP_AFTER:
                    return

    def recording(self) -> Recording:
        """The sequences that were finished and can be trusted."""
        return Recording(
            engine=self._client.engine.NAME,
            version=self._facts.version or "unknown",
            sequences=tuple(self.sequences),
            source="emulated" if self._facts.emulated else "real",
            **self._client.engine.recording_sizes(self._facts),
        )

    async def _try_out(self) -> None:
        """Learn whether token ids come back, and that a reset empties what answers."""
        shape = self._shape
        first, last = shape.token_ids
        tokens = Random(f"{self._wanted.seed} try").choices(range(first, last + 1), k=shape.max_prompt_tokens)
        canary = Planned(Prompt(tuple(tokens)), min(2, shape.max_output_tokens))
        self._ledger.sent(len(tokens))
        output = (await self._client.complete(canary.prompt, canary.max_tokens)).completion.output
        self._gives_ids = bool(output)
        await self._client.reset()
        # Whatever else was counted by now, as a server's own warm-up is, is held against nobody.
        self._ledger.rebase(await self._ledger.read())
        try:
            again = await self._request(Planned(canary.prompt, 1))
        except _UntrustedError as reason:
            raise ServerError(str(reason), where=self._client.base_url, todo="stop other traffic") from None
        if again.cached:
            raise ResetRefusedError(
                f"a prompt still hit {again.cached:,} tokens after the reset", where=self._client.base_url
            )

    async def _sequence(self, index: int, answered: Callable[[int, int], None]) -> RecordedSequence:
        await self._client.reset()
        self._ledger.rebase(self._ledger.last)  # what the last sequence left unaccounted is not waited for
        start = await self._ledger.read()
        source = RandomSequence(self._shape, self._wanted.seed, index)
        recorded: list[RecordedRequest] = []
        for number in range(self._wanted.requests):
            planned = source.next()
            request = await self._request(planned, start)
            if not recorded and request.cached:
                raise _UntrustedError(f"its first request hit {request.cached:,} tokens: the reset left something")
            source.generated(planned, request.output)
            recorded.append(request)
            answered(index * self._wanted.requests + number + 1, self._wanted.sequences * self._wanted.requests)
        moved, _ = self._ledger.last.since(start)
        evicted = None if self._ledger.last.evicted_tokens is None else recorded[-1].evicted_total
        return RecordedSequence(tuple(recorded), moved.queried_tokens, moved.hit_tokens, evicted)

    async def _request(self, planned: Planned, start: Counters | None = None) -> RecordedRequest:
        """Send one request and hold its answer against the counters. Raises _UntrustedError, ServerError."""
        sent = len(planned.prompt.tokens)
        max_tokens = planned.max_tokens if self._gives_ids else 1
        before = self._ledger.last
        self._ledger.rebase(before)
        self._ledger.sent(sent)
        completion = (await self._client.complete(planned.prompt, max_tokens)).completion
        if completion.prompt_tokens not in (None, sent):
            raise ServerError(f"the server changed a prompt: {sent:,} ids sent, {completion.prompt_tokens:,} counted")
        after = await self._ledger.read()
        moved, _ = after.since(before)
        cached = moved.hit_tokens if completion.cached_tokens is None else completion.cached_tokens
        if after.preemptions != before.preemptions:
            raise _UntrustedError("a request was preempted and counted again")
        if moved.queried_tokens != sent:
            raise _UntrustedError(
                f"{sent:,} tokens were sent and {moved.queried_tokens:,} counted: another client is using the server"
                if moved.queried_tokens > sent
                else f"{sent - moved.queried_tokens:,} of {sent:,} tokens were not counted in time"
            )
        if moved.hit_tokens != cached or after.external != before.external:
            raise _UntrustedError(
                f"the response says {cached:,} cached tokens, the counters {moved.hit_tokens:,}: a tier behind the "
                "cache, or another client"
            )
        if max_tokens > 1 and not completion.output:
            raise _UntrustedError("a response of several tokens came without their ids")
        return RecordedRequest(
            prompt=planned.prompt.tokens,
            cached=cached,
            salt=planned.prompt.salt,
            max_tokens=max_tokens,
            output=completion.output or (),
            finish="stop" if completion.stopped else "length",
            evicted_total=(after.evicted_tokens or 0) - ((start or before).evicted_tokens or 0),
        )


def check_name(path: Path) -> None:
    """Raises UsageError for a file that `model` would not know as a recording."""
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{path} is no name of a recording", todo="end it in .json or .json.gz")


def save(recording: Recording, path: Path) -> None:
    """Write the file whole or not at all, gzipped if its name says so. Raises InputError."""
    replace(path, recording_bytes(recording, gzipped=path.suffix == ".gz"))
