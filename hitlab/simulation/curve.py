"""A hit-ratio curve: the hit tokens of a cache at every capacity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A hit-ratio curve: what is hit, piece by piece, each with the smallest capacity at which it is.

    A piece is some consecutive blocks of one request that are hit from the same capacity on.
    """

    needed_blocks: NDArray[np.uint32]  # [pieces], the smallest capacity at which it is hit; sorted
    hit_tokens: NDArray[np.int64]  # [pieces]
    request: NDArray[np.uint32]  # [pieces]
    distinct_blocks: int
    resident_blocks: int  # after the whole trace, in a cache that never gets full
    bounded: bool  # whether the capacity limits what is resident

    def at(
        self, capacities: Sequence[int] | NDArray[np.int64], weights: NDArray[np.float64] | None = None, first: int = 0
    ) -> NDArray[Any]:
        """Hit tokens at each capacity, of requests from number `first` on, each times the weight of its request.

        >>> pieces = np.array([2, 5], np.uint32), np.array([8, 4]), np.array([1, 1], np.uint32)
        >>> Curve(*pieces, distinct_blocks=6, resident_blocks=6, bounded=True).at([1, 2, 100]).tolist()
        [0, 8, 12]
        """
        kept = self.request >= first
        worth: NDArray[Any] = self.hit_tokens[kept]
        if weights is not None:
            worth = worth * weights[self.request[kept]]
        sums = np.concatenate((np.zeros(1, worth.dtype), np.cumsum(worth)))
        found: NDArray[Any] = sums[np.searchsorted(self.needed_blocks[kept], capacities, side="right")]
        return found

    def final_blocks(self, capacity_blocks: int) -> int:
        """Blocks resident after the whole trace in a cache of so many blocks."""
        return min(capacity_blocks, self.resident_blocks) if self.bounded else self.resident_blocks

    def capacity_for(self, share: float) -> int:
        """The smallest capacity at which this share, 0 to 1, of all possible hit tokens is hit; 0 if there are none."""
        sums = np.cumsum(self.hit_tokens)
        if not sums.size:
            return 0
        return int(self.needed_blocks[int(np.searchsorted(sums, share * sums[-1]))])
