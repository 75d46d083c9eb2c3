"""A cache model's rules left out one by one: a mutant overrides the method of one rule in a subclass.

Most mutants fail a recording of the engine (`recorded`). What only overlapping requests or sizes never recorded
would show is held by a case worked out by hand (`worked_out`). A case is given the whole cache, with the mutant in
it or without.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest

from hitlab.cache.model import PoolFullError

Cache = TypeVar("Cache")
Part = TypeVar("Part", bound=type)


class Mutants(Generic[Cache]):
    """The mutants of one engine's cache, as parameters of two tests."""

    def __init__(self, cache: type[Cache], **parts: type) -> None:
        """`parts` are the classes that a cache is made of, under the names of the attributes that hold them."""
        self._cache = cache
        self._parts = parts
        self.recorded_rules: list[Any] = []
        self.worked_out_rules: list[Any] = []

    def recorded(self, rule: str) -> Callable[[Part], Part]:
        """A recording of the engine is answered differently without the rule."""

        def add(mutant: Part) -> Part:
            self.recorded_rules.append(pytest.param(self._with(mutant), id=rule))
            return mutant

        return add

    def worked_out(self, rule: str, case: Callable[[type[Cache]], Any], right: Any) -> Callable[[Part], Part]:
        """The case gives the right value with the rule, and another one without it."""

        def add(mutant: Part) -> Part:
            self.worked_out_rules.append(pytest.param(self._with(mutant), case, right, id=rule))
            return mutant

        return add

    def _with(self, mutant: type) -> type[Cache]:
        """The cache that has the mutant in it."""
        if issubclass(mutant, self._cache):
            return mutant
        (name,) = (name for name, part in self._parts.items() if issubclass(mutant, part))
        return type(f"CacheOf{mutant.__name__}", (self._cache,), {name: mutant})


def outcome(begin: Callable[[], Any]) -> str:
    """Whether there was room."""
    try:
        begin()
    except PoolFullError:
        return "full"
    return "begun"
