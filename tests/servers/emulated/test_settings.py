"""Settings of emulated engines."""

from collections.abc import Sequence

import pytest

from hitlab.cache.sizes import CacheSizes
from hitlab.errors import UsageError
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.dialect import load_emulated_engine


def test_settings_that_no_server_has_are_refused() -> None:
    for sizes in ({"block_tokens": 0}, {"capacity_blocks": 1}, {"ranks": 0}):
        with pytest.raises(UsageError, match=next(iter(sizes))):
            emulate.settings("vllm", CacheSizes(**sizes))
    with pytest.raises(UsageError, match="choose from sglang, vllm"):
        emulate.settings("nosuch")


def test_sizes_are_counted_as_the_engines_own_options_count_them() -> None:
    sizes: Sequence[tuple[str, int, int]] = (("vllm", 16, 99 * 16), ("sglang", 16, 100 * 16))
    for name, block_tokens, usable in sizes:
        config = emulate.settings(name, CacheSizes(block_tokens=block_tokens, capacity_blocks=100))
        assert load_emulated_engine(name).build_cache(config).capacity_tokens == usable
