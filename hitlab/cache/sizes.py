"""The sizes of a server's prefix cache, as far as they are known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """Sizes of a server's prefix cache, of each data-parallel rank; None is unknown, or left to the server.

    `capacity_blocks` is the pool as the engine's own option counts it, `capacity_tokens` what requests can store
    in it. How one follows from the other is for the engine's file to say: one block of vLLM's is the null block,
    which holds nothing, and SGLang counts its pool in tokens, of which the last may not fill a page.
    """

    block_tokens: int | None = None
    capacity_blocks: int | None = None
    capacity_tokens: int | None = None
    ranks: int | None = None

    def filled(self, block_tokens: int, pool_tokens: int) -> tuple[int, int, int]:
        """(tokens a block, blocks a rank, ranks) to start a server with; the arguments are its defaults.

        A pool that is left open has `pool_tokens`, in blocks of whichever size, and at least two of them.

        >>> CacheSizes(block_tokens=64).filled(block_tokens=16, pool_tokens=4096)
        (64, 64, 1)
        """
        block = block_tokens if self.block_tokens is None else self.block_tokens
        blocks = max(2, pool_tokens // max(1, block)) if self.capacity_blocks is None else self.capacity_blocks
        return block, blocks, 1 if self.ranks is None else self.ranks


UNKNOWN = CacheSizes()
