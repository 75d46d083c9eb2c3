"""Runs a sweep in this process, on several cores or on a cluster (joblib), and resumes one that was stopped.

Each finished point is written at once as a line of a partial file, which is removed when the sweep is complete. The
file's name is a hash of the trace, the code of the policies and all options that change a point's numbers: the same
sweep finds the points of the one that was stopped, and a sweep with a changed policy does not.
"""

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from hitlab import __version__
from hitlab.errors import InputError
from hitlab.simulation import hit_curve, kernels, replay, sweep
from hitlab.simulation.hit_curve import Curves
from hitlab.simulation.policy import Choice, load_policy
from hitlab.simulation.replay import Replay
from hitlab.simulation.sweep import Point
from hitlab.simulation.workers import Workers, results
from hitlab.traces import mapped
from hitlab.traces.trace import Trace

SMALL_REFERENCES = 200_000_000  # with fewer in all points together, starting workers costs more than they save

OnProgress = Callable[[int, int], None]
Job = tuple[Choice, int]


@dataclass(slots=True)
class Sweep:
    """The points to make and those that are made."""

    trace: Trace
    choices: Sequence[Choice]
    capacities: Sequence[int]
    first_steady: int
    engine_cap: bool
    points: dict[tuple[str, int], Point]

    @property
    def size(self) -> int:
        """How many points there are to make."""
        return len(self.choices) * len(self.capacities)

    def missing(self) -> list[Job]:
        """Points not made yet."""
        jobs = ((choice, capacity) for choice in self.choices for capacity in self.capacities)
        return [job for job in jobs if (job[0].label, job[1]) not in self.points]

    def ordered(self) -> list[Point]:
        """The points made so far, policy by policy, each by capacity."""
        jobs = [(choice.label, capacity) for choice in self.choices for capacity in self.capacities]
        return [self.points[job] for job in jobs if job in self.points]


def check(choices: Sequence[Choice], capacities: Sequence[int]) -> None:
    """Raise UsageError for a policy, an option or a capacity that cannot be replayed."""
    for choice in choices:
        for capacity in (capacities[0], capacities[-1]):
            choice.check(capacity)


def run(wanted: Sweep, curves: Curves, workers: Workers, partial: Path, on_progress: OnProgress) -> None:
    """Make the missing points. Each is in `wanted` and in the partial file as soon as it is finished.

    The partial file stays, also of a sweep that is complete: remove it once its points are written elsewhere.
    """
    wanted.points |= _kept(partial)
    try:
        with _keeping(partial) as keep:
            for done in _from_curves(wanted, curves):
                keep(done)
                wanted.points[done.policy, done.capacity_blocks] = done
            with closing(_replayed(wanted, wanted.missing(), workers)) as replayed:
                for done in replayed:
                    keep(done)
                    wanted.points[done.policy, done.capacity_blocks] = done
                    on_progress(len(wanted.points), wanted.size)
    except KeyboardInterrupt:
        wanted.points |= _kept(partial)  # it may come between the two lines that a point takes
        raise


def partial_file(folder: Path, wanted: Sweep) -> Path:
    """The name of the partial file of such a sweep."""
    hashed = blake2b(mapped.digest(wanted.trace).encode(), digest_size=8)
    hashed.update(f"{__version__} {wanted.first_steady} {wanted.engine_cap}".encode())
    for name in sorted({choice.policy for choice in wanted.choices}):
        for source in kernels.sources(load_policy(name)):
            hashed.update(Path(source).read_bytes())
    hashed.update(Path(hit_curve.__file__).read_bytes())
    return folder / f"sweep-{hashed.hexdigest()}.partial.jsonl"


def _from_curves(wanted: Sweep, curves: Curves) -> Iterator[Point]:
    """Points of policies with a hit-ratio curve of their own, which need no replay."""
    missing = wanted.missing()
    for choice in wanted.choices:
        builder = choice.load().CURVE
        capacities = [capacity for other, capacity in missing if other.label == choice.label]
        if builder is not None and not choice.options and capacities:
            yield from sweep.curve_points(choice, curves.of(builder), wanted.trace, capacities, wanted.first_steady)


def _replayed(wanted: Sweep, jobs: list[Job], workers: Workers) -> Generator[Point]:
    """Points made by replays, one by one as they are finished, in any order."""
    if not jobs:
        return
    for name in {choice.policy for choice, _ in jobs}:  # compiled here once, not in every worker
        policy = load_policy(name)
        replay.replay(Trace.of([], wanted.trace.block_tokens), policy, 1000, kernel=kernels.kernel(policy))
    small = len(jobs) * wanted.trace.blocks.size < SMALL_REFERENCES
    if workers.backend == "loky" and (workers.jobs == 1 or (workers.jobs is None and small)):
        for choice, capacity in jobs:
            yield _point(wanted.trace, choice, capacity, wanted.engine_cap, wanted.first_steady)
        return
    import joblib

    with _folder(workers.folder) as folder:
        mapped.save(wanted.trace, Path(folder))
        task = joblib.delayed(_mapped_point)
        tasks = (task(folder, choice, capacity, wanted.engine_cap, wanted.first_steady) for choice, capacity in jobs)
        yield from results(workers, tasks)


def _mapped_point(folder: str, choice: Choice, capacity: int, engine_cap: bool, first_steady: int) -> Point:
    return _point(mapped.load(folder), choice, capacity, engine_cap, first_steady)


def _point(trace: Trace, choice: Choice, capacity: int, engine_cap: bool, first_steady: int) -> Point:
    return sweep.point(choice, _replay(trace, choice, capacity, engine_cap), first_steady)


def _replay(trace: Trace, choice: Choice, capacity: int, engine_cap: bool) -> Replay:
    policy = choice.load()
    kernel = kernels.kernel(policy)
    return replay.replay(trace, policy, capacity, choice.options, kernel=kernel, engine_cap=engine_cap)


def replays(wanted: Sweep) -> Iterator[tuple[str, Replay]]:
    """The replay of each point with its policy's label, made again in this process, for output of every request."""
    for choice in wanted.choices:
        for capacity in wanted.capacities:
            yield choice.label, _replay(wanted.trace, choice, capacity, wanted.engine_cap)


@contextmanager
def _folder(chosen: Path | None) -> Iterator[str]:
    try:
        temporary = tempfile.TemporaryDirectory(prefix="hitlab-", dir=chosen)
    except OSError as error:
        raise InputError(f"no place for the trace: {error.strerror}", where=str(chosen)) from None
    with temporary as folder:
        yield folder


def _kept(partial: Path) -> dict[tuple[str, int], Point]:
    """The points of a partial file, by label and capacity; a last line that was cut short is left out."""
    found: dict[tuple[str, int], Point] = {}
    decode = msgspec.json.Decoder(Point).decode
    if partial.exists():
        for line in partial.read_bytes().splitlines():
            try:
                done = decode(line)
            except msgspec.MsgspecError:
                continue
            found[done.policy, done.capacity_blocks] = done
    return found


@contextmanager
def _keeping(partial: Path) -> Iterator[Callable[[Point], None]]:
    encode = msgspec.json.Encoder().encode
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("ab")
    except OSError as error:
        raise InputError(
            f"finished points can't be kept: {error.strerror}", where=str(partial), todo="name another `out`"
        ) from None

    def keep(done: Point) -> None:
        file.write(b"\n" + encode(done))
        file.flush()

    with file:
        yield keep
