"""What the user says of a server before it is asked."""

from dataclasses import dataclass

from hitlab.cache.sizes import CacheSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(CacheSizes):
    """What the user believes of the server, the sizes of its cache among it; None leaves it to the server.

    For a server that hitlab starts itself these are the sizes it is given.
    """

    auto_flood: bool = False  # size the flood by the server's pool
    vocab_range: tuple[int, int] | None = None  # first and last token id to send
    vocab_tokens: int | None = None  # the size of the model's vocabulary
