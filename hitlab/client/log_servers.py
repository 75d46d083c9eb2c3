"""Whose lines a log holds: of one server or of several, of ranks with caches of their own or that repeat each other."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hitlab.client.dialect import LogEntry
from hitlab.client.log_interval import in_time_order
from hitlab.client.log_prefixes import Source
from hitlab.client.log_times import Moment
from hitlab.tokens import NOTHING, Tally

UNNAMED = "without a prefix"


@dataclass(frozen=True, slots=True)
class RankLog:
    """What the log says of one data-parallel rank of one server.

    A `rank` of None is all ranks of the server. A `server` of None is the only one, or all of them together.
    Window rates of several ranks are not combined: nothing says how many tokens each is of.
    """

    rank: int | None
    entries: int
    tally: Tally | None  # None where no line counts tokens
    last_window_hit_rate: float | None
    min_window_hit_rate: float | None
    max_window_hit_rate: float | None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Servers:
    """The entries of a log by the server that wrote them, and what had to be assumed to tell the servers apart."""

    entries: Mapping[str, Sequence[LogEntry]]
    notes: tuple[str, ...]

    @property
    def tally(self) -> Tally:
        """Tokens of all servers."""
        return sum((tally_of(entries) for entries in self.entries.values()), NOTHING)

    def ranks(self) -> list[RankLog]:
        """For each server what each rank says that names itself, and all its ranks; last, everything."""
        rows = [row for server, entries in self.entries.items() for row in _ranks(server, entries)]
        if len(self.entries) == 1:
            return [replace(row, server=None) for row in rows]
        everything = [entry for entries in self.entries.values() for entry in entries]
        counted = any(entry.tally is not None for entry in everything)
        return [*rows, RankLog(None, len(everything), self.tally if counted else None, None, None, None)]


def servers_of(entries: Sequence[LogEntry]) -> Servers:
    """Tell the servers of a log apart: by what stands before their lines, else by what can't be of one server."""
    sources: dict[Source, list[LogEntry]] = {}
    for entry in entries:
        sources.setdefault(entry.source, []).append(entry)
    groups = [[source] for source in sorted(sources)]
    notes: list[str] = []
    if len(groups) > 1:
        groups = _nodes_joined(groups, sources)
    names = _names(list(sources))
    found: dict[str, Sequence[LogEntry]] = {}
    for group in groups:
        name = " + ".join(names[source] for source in group)
        if len(group) > 1:
            notes.append(f"{name} repeat each other's tokens, as nodes of one server do, and count as one")
        found.update(_by_process(name, [entry for entry in entries if entry.source in group]))
    found = found or {"": []}
    mixed = [name for name, each in found.items() if any(map(_contradicts, _by_rank(each).values()))]
    if mixed:
        of = "" if len(found) == 1 else f" of {', '.join(mixed)}"
        notes.append(
            f"lines{of} give one engine several hit rates at the same moment, as if several servers wrote them, "
            "and nothing in them says which: their rates are not shown"
        )
    return Servers(dict(sorted(found.items())), tuple(notes))


def tally_of(entries: Iterable[LogEntry]) -> Tally:
    """Tokens added up over the ranks; of replicas that report the same tokens, only the one that reports most."""
    sums: dict[int | None, dict[str, Tally]] = {}
    for entry in entries:
        replicas = sums.setdefault(entry.rank, {})
        replicas[entry.replica] = replicas.get(entry.replica, NOTHING) + (entry.tally or NOTHING)
    most = (
        max(each.values(), key=lambda tally: (tally.queried_tokens, tally.hit_tokens), default=NOTHING)
        for each in sums.values()
    )
    return sum(most, NOTHING)


def _ranks(server: str, entries: Sequence[LogEntry]) -> list[RankLog]:
    by_rank = _by_rank(entries)
    named = [_row(server, rank, each) for rank, each in by_rank.items() if rank is not None]
    # A line without a rank is of all of them together.
    common = by_rank.get(None, [] if len(named) > 1 else entries)
    return [*named, replace(_row(server, None, common), entries=len(entries), tally=_row(server, None, entries).tally)]


def _row(server: str, rank: int | None, entries: Sequence[LogEntry]) -> RankLog:
    rates = [entry.window_hit_rate for entry in in_time_order(entries) if entry.window_hit_rate is not None]
    everywhere = [entry.window_hit_rate for entry in entries if entry.window_hit_rate is not None]
    if _contradicts(entries):
        rates = everywhere = []
    return RankLog(
        rank=rank,
        entries=len(entries),
        tally=tally_of(entries) if any(entry.tally is not None for entry in entries) else None,
        last_window_hit_rate=rates[-1] if rates else None,
        min_window_hit_rate=min(everywhere, default=None),
        max_window_hit_rate=max(everywhere, default=None),
        server=server,
    )


def _by_rank(entries: Sequence[LogEntry]) -> dict[int | None, list[LogEntry]]:
    ranks: dict[int | None, list[LogEntry]] = {}
    for entry in sorted(entries, key=lambda entry: -1 if entry.rank is None else entry.rank):
        ranks.setdefault(entry.rank, []).append(entry)
    return ranks


def _contradicts(entries: Sequence[LogEntry]) -> bool:
    """Whether these lines of one rank, every 10 s in a server's log, give several rates for the same second."""
    rates: dict[Moment, float] = {}
    return any(
        rates.setdefault(entry.moment, entry.window_hit_rate) != entry.window_hit_rate
        for entry in entries
        if entry.moment is not None and entry.window_hit_rate is not None
    )


def _by_process(name: str, entries: Sequence[LogEntry]) -> dict[str, Sequence[LogEntry]]:
    """Split by process where two write window rates of one rank by turns; one after the other is a restart."""
    for each in _by_rank([entry for entry in entries if entry.window_hit_rate is not None and entry.process]).values():
        turns = [process for process, _ in groupby(entry.process for entry in each)]
        if len(turns) > len(set(turns)):
            processes: dict[str, list[LogEntry]] = {}
            for entry in entries:
                processes.setdefault(f"{name} {entry.process or '(no process)'}".strip(), []).append(entry)
            return dict(processes)
    return {name: entries}


def _nodes_joined(groups: list[list[Source]], sources: Mapping[Source, Sequence[LogEntry]]) -> list[list[Source]]:
    """Put sources that have only later ranks of a server to the source that has its first ones.

    Such are the nodes of a server that is spread over several machines: each rank repeats the same tokens.
    """
    replicas = {source: {entry.replica for entry in entries} for source, entries in sources.items()}
    leaders = [group for group in groups if any(not re.search(r"[1-9]", each) for each in replicas[group[0]])]
    for group in groups:
        follower = group[0]
        if group in leaders:
            continue
        fitting = [
            leader
            for leader in leaders
            if not replicas[leader[0]] & replicas[follower] and "" not in replicas[leader[0]]
        ]
        if not fitting:
            leaders.append(group)
            continue
        tokens = tally_of(sources[follower]).queried_tokens
        nearest = min(fitting, key=lambda leader: abs(tally_of(sources[leader[0]]).queried_tokens - tokens))
        nearest.append(follower)
    return leaders


def _names(sources: Sequence[Source]) -> dict[Source, str]:
    """A name for each source: the parts in which they differ."""
    if len(sources) == 1:
        return {sources[0]: "/".join(value for _, value in sources[0])}
    parts = list(dict.fromkeys(part for source in sources for part, _ in source))
    differing = {part for part in parts if len({dict(source).get(part) for source in sources}) > 1}
    names = {source: "/".join(value for part, value in source if part in differing) or UNNAMED for source in sources}
    if len(set(names.values())) < len(sources):
        names = {source: "/".join(f"{part} {value}" for part, value in source) or UNNAMED for source in sources}
    return names
