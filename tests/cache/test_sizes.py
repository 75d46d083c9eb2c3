"""Sizes of a cache, as far as they are known."""

import pytest

from hitlab.cache.sizes import UNKNOWN, CacheSizes


@pytest.mark.parametrize(
    ("asked", "started_with"),
    [
        (UNKNOWN, (16, 100, 1)),
        (CacheSizes(block_tokens=32), (32, 50, 1)),  # the same 1,600 tokens
        (CacheSizes(block_tokens=48), (48, 33, 1)),  # 33.3 blocks
        (CacheSizes(block_tokens=1600), (1600, 2, 1)),  # a server with one block has none to give
        (CacheSizes(block_tokens=32, capacity_blocks=7, ranks=2), (32, 7, 2)),
        (CacheSizes(block_tokens=0, capacity_blocks=0, ranks=0), (0, 0, 0)),  # 0 is not unknown: the server refuses it
    ],
)
def test_what_is_left_open_is_filled_with_defaults(asked: CacheSizes, started_with: tuple[int, int, int]) -> None:
    assert asked.filled(block_tokens=16, pool_tokens=1600) == started_with
