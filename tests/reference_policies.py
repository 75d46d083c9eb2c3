"""The policies again, word for word from their rules, on ordered dictionaries: slow, and independent of the kernels.

Each class has `resident(block)`, `access(block)` and `len()`, the number of resident blocks.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol


class Reference(Protocol):
    def __len__(self) -> int: ...

    def resident(self, block: Hashable) -> bool: ...

    def access(self, block: Hashable) -> None: ...


class S3Fifo:
    """The listing of the trace-replay rules. Front of a dictionary: head of the queue. Value: freq."""

    def __init__(self, capacity: int, small_ratio: float = 0.1, max_freq: int = 3) -> None:
        self.small_cap = round(capacity * small_ratio)
        self.main_cap = capacity - self.small_cap
        self.ghost_cap = self.main_cap
        self.max_freq = max_freq
        self.small: OrderedDict[Hashable, int] = OrderedDict()
        self.main: OrderedDict[Hashable, int] = OrderedDict()
        self.ghost: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.small) + len(self.main)

    def resident(self, block: Hashable) -> bool:
        return block in self.small or block in self.main

    def access(self, block: Hashable) -> None:
        if block in self.small:
            self.small[block] = min(self.small[block] + 1, self.max_freq)
        elif block in self.main:
            self.main[block] = min(self.main[block] + 1, self.max_freq)
        elif block in self.ghost:
            del self.ghost[block]
            self.admit_to_main(block, 0)
        else:
            self.admit_to_small(block)

    def admit_to_small(self, block: Hashable) -> None:
        while len(self.small) >= self.small_cap:
            victim, freq = self.small.popitem(last=False)
            if freq >= 1:
                self.admit_to_main(victim, freq)
            else:
                self.insert_to_ghost(victim)
        self.small[block] = 0

    def admit_to_main(self, block: Hashable, freq: int) -> None:
        while len(self.main) >= self.main_cap:
            victim, victim_freq = self.main.popitem(last=False)
            if victim_freq >= 1:
                self.main[victim] = victim_freq - 1
                continue
            self.insert_to_ghost(victim)
            break
        self.main[block] = freq

    def insert_to_ghost(self, block: Hashable) -> None:
        if block in self.ghost:
            del self.ghost[block]
        elif len(self.ghost) >= self.ghost_cap:
            self.ghost.popitem(last=False)
        self.ghost[block] = None


class Lru:
    """Front: least recently used."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.blocks)

    def resident(self, block: Hashable) -> bool:
        return block in self.blocks

    def access(self, block: Hashable) -> None:
        if block in self.blocks:
            self.blocks.move_to_end(block)
            return
        if len(self.blocks) == self.capacity:
            self.blocks.popitem(last=False)
        self.blocks[block] = None


class Fifo(Lru):
    """Front: first in."""

    def access(self, block: Hashable) -> None:
        if block not in self.blocks:
            super().access(block)


class Lfu:
    """Blocks by last use, least recent in front, with their use counts; the first of the lowest count goes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self.uses)

    def resident(self, block: Hashable) -> bool:
        return block in self.uses

    def access(self, block: Hashable) -> None:
        if block not in self.uses and len(self.uses) == self.capacity:
            del self.uses[min(self.uses, key=lambda each: self.uses[each])]  # min() takes the first of equals
        self.uses[block] = self.uses.get(block, 0) + 1
        self.uses.move_to_end(block)


REFERENCES: dict[str, Any] = {"s3fifo": S3Fifo, "lru": Lru, "fifo": Fifo, "lfu": Lfu}


def hit_tokens(requests: Iterable[tuple[int, Sequence[Hashable]]], block_tokens: int, policy: Reference) -> list[int]:
    """Per request, min(leading resident blocks x block size, prompt tokens), counted before it is accessed."""
    found = []
    for prompt_tokens, hash_ids in requests:
        leading = 0
        while leading < len(hash_ids) and policy.resident(hash_ids[leading]):
            leading += 1
        for block in hash_ids:
            policy.access(block)
        found.append(min(leading * block_tokens, prompt_tokens))
    return found
