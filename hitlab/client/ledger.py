"""What was sent to a server, held against what its counters moved by."""

from typing import Protocol

from hitlab.client import counters
from hitlab.client.counters import Counters, wait_for_counters
from hitlab.errors import CountersFellError


class CounterSource(Protocol):
    """Where counters come from: a server's metrics, or its log."""

    async def scrape(self) -> Counters:
        """The counters now. Raises MetricsError."""


class CounterLedger:
    """Prompt tokens sent since a baseline, beside the tokens that the counters moved by.

    `patience_s` is how long `read` waits for counters that lag behind; None is the usual time.
    """

    def __init__(self, source: CounterSource, patience_s: float | None = None) -> None:
        self._source = source
        self._patience_s = patience_s
        self.sent_tokens = 0
        self.baseline = self.last = Counters()

    async def begin(self) -> Counters:
        """Read the counters and take them as the baseline. Raises MetricsError."""
        now = await self._source.scrape()
        self.rebase(now)
        return now

    def rebase(self, baseline: Counters) -> None:
        """Count from these counters on; what was sent before is settled."""
        self.baseline = self.last = baseline
        self.sent_tokens = 0

    def sent(self, tokens: int) -> None:
        """Prompt tokens were sent."""
        self.sent_tokens += tokens

    async def read(self, *, twice: bool = True) -> Counters:
        """The counters once they hold everything sent, or as they are when that takes too long.

        `twice` waits for a second reading like the first, so that nothing that is still moving is missed.

        Raises MetricsError, and CountersFellError where they are lower than they were.
        """
        patience_s = counters.SETTLE_S if self._patience_s is None else self._patience_s
        now = await wait_for_counters(
            self._source.scrape, self.baseline, self.sent_tokens, self.last, patience_s, twice=twice
        )
        fallen = now.restarted_since(self.last)
        if fallen:
            raise CountersFellError(f"{fallen}: the server restarted, or another one answered")
        self.last = now
        return now

    @property
    def counted_tokens(self) -> int:
        """Prompt tokens that the counters moved by since the baseline, at the last reading."""
        return self.last.since(self.baseline)[0].queried_tokens

    @property
    def off_tokens(self) -> int:
        """Counted minus sent: above 0 are tokens of others or counted twice, below 0 tokens that were not counted."""
        return self.counted_tokens - self.sent_tokens

    @property
    def preemptions(self) -> int:
        """Requests that were computed again since the baseline."""
        return self.last.preemptions - self.baseline.preemptions

    def settle(self) -> None:
        """Take what was counted for what was sent, so that a difference is told once."""
        self.sent_tokens = self.counted_tokens
