"""One prefix, used by G tenants in turn, each with a cache salt of its own: what isolation costs.

A salt is part of the first block's key and through the chain of all others, so tenants share as little as if their
prefixes differed: the closed form is that of G groups.
"""

from dataclasses import replace

from hitlab.experiment.plan import unbroken
from hitlab.experiment.prompts import GroupedPrompts
from hitlab.experiment.shape import Phase, SharedPrefix
from hitlab.tokens import Prompt

SUMMARY = "one prefix for all G tenants, and a cache salt for each"
BREAKABLE = True


def fit(shape: SharedPrefix) -> SharedPrefix:
    """Any shape can be sent."""
    return shape


def phases(shape: SharedPrefix, output_tokens: int, ranks: int) -> list[Phase]:
    """Cold, then warm; each tenant is cold once."""
    return unbroken(shape)


class _TenantPrompts(GroupedPrompts):
    """Grouped prompts whose groups differ in their salt alone."""

    def fresh_prefixes(self) -> None:
        """Another prefix, again one for all."""
        super().fresh_prefixes()
        self._prefixes = self._prefixes[:1] * self.shape.groups

    def prompts(self, requests: int) -> list[Prompt]:
        """The next requests, tenants in turn."""
        plain = super().prompts(requests)
        return [
            replace(prompt, salt=f"hitlab-tenant-{group}")
            for prompt, group in zip(plain, self._sent_groups, strict=True)
        ]


def build(shape: SharedPrefix, seed: int, vocab_range: tuple[int, int], output_tokens: int) -> _TenantPrompts:
    """The prompts."""
    return _TenantPrompts(shape, seed, vocab_range)
