"""What the user says of a server before it is asked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user believes of the server, or leaves to it: None leaves it.

    For a server that hitlab starts itself these are the sizes it is given.
    """

    block_tokens: int | None = None
    capacity_blocks: int | None = None  # of one data-parallel rank
    ranks: int | None = None
    auto_flood: bool = False  # size the flood by the server's pool
    vocab_range: tuple[int, int] | None = None  # first and last token id to send
    vocab_tokens: int | None = None  # the size of the model's vocabulary
