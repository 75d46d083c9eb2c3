"""hitlab for notebooks and scripts: what `import hitlab` offers. Everything else is private by its place.

Defaults are the command line's. Names say their units; unknown is None and never 0. Each function imports what it
needs when it is called, so that `import hitlab` stays light. What callers hand over goes through arguments.py first.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, overload

from hitlab import arguments
from hitlab.arguments import flag, number, text, whole, whole_or_none
from hitlab.errors import UsageError
from hitlab.experiment.plan import Experiment
from hitlab.experiment.prediction import Prediction
from hitlab.experiment.shape import BreakOptions, SharedPrefix

if TYPE_CHECKING:
    from hitlab.results.lab_result import LabResult
    from hitlab.results.run_result import Result
    from hitlab.simulation.curve import Curve
    from hitlab.simulation.policy import Choice, Option, Policy
    from hitlab.simulation.replay import Replay
    from hitlab.simulation.sweep import Point
    from hitlab.traces.trace import Trace

DEFAULT_BLOCK_TOKENS = 16
_SMALLEST_AUTO = 10  # blocks; every policy works with so many at its default options


def predict(
    *,
    requests: int = 64,
    prefix_tokens: int = 1000,
    suffix_tokens: int = 200,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    groups: int = 1,
    ranks: int = 1,
    workload: str = "shared-prefix",
    output_tokens: int = 1,
    break_mode: str = "none",
    break_at: int = 0,
    break_fixed: bool = False,
) -> Prediction:
    """The hit rate of a workload by arithmetic: N `requests` in G `groups` that share P `prefix_tokens` each.

    `ranks` are data-parallel ranks, each with a cache of its own. See `hitlab predict --help` for the rest.

    >>> predict(prefix_tokens=1000, block_tokens=16).hit_tokens
    62496

    Raises UsageError where the numbers describe no workload.
    """
    from hitlab.experiment import prediction

    experiment = Experiment(
        _shape(requests, prefix_tokens, suffix_tokens, groups),
        text("break_mode", break_mode),
        BreakOptions(whole("break_at", break_at), flag("break_fixed", break_fixed)),
        workload=text("workload", workload),
        output_tokens=whole("output_tokens", output_tokens),
    )
    return prediction.predict(experiment, whole("block_tokens", block_tokens), whole("ranks", ranks))


def _shape(requests: int, prefix_tokens: int, suffix_tokens: int, groups: int) -> SharedPrefix:
    return SharedPrefix(
        whole("requests", requests),
        whole("prefix_tokens", prefix_tokens),
        whole("suffix_tokens", suffix_tokens),
        whole("groups", groups),
    )


def read_trace(
    path: Path | str, *, block_tokens: int | None = None, format: str | None = None, skip_malformed: bool = False
) -> "Trace":
    """A trace of requests, from a file or a folder of sessions; plain, gzipped or zstandard-compressed.

    Format and block size are detected where they are not given. Raises TraceError with the line that can't be read.
    """
    from hitlab.traces import reader

    return reader.read_trace(
        arguments.path("path", path),
        whole_or_none("block_tokens", block_tokens, 1),
        format_name=arguments.text_or_none("format", format),
        skip_malformed=flag("skip_malformed", skip_malformed),
    )


def replay(
    trace: "Trace",
    policy: str = "s3fifo",
    capacity_blocks: int = 4096,
    *,
    engine_cap: bool = False,
    **options: "Option",
) -> "Replay":
    """Replay a trace through a cache of so many blocks: what each request hits, longest prefix only.

    `policy` is a file of policies/, with options as "s3fifo:small_ratio=0.2" or as keywords. `engine_cap` counts at
    most floor((L-1)/B)*B of a request's L tokens, as engines do. The first use of a policy compiles it.

    Raises UsageError for an unknown policy or option, or a capacity that the policy can't work with.
    """
    from hitlab.simulation import kernels
    from hitlab.simulation.policy import Choice
    from hitlab.simulation.replay import replay

    requests, capacity = _trace(trace), whole("capacity_blocks", capacity_blocks)
    choice = Choice.of(text("policy", policy))
    loaded = choice.load()
    effective = _options(loaded, {**choice.options, **options})
    kernel = kernels.kernel(loaded)
    found = replay(requests, loaded, capacity, effective, kernel=kernel, engine_cap=flag("engine_cap", engine_cap))
    found.hit_tokens.flags.writeable = False
    return found


def _trace(trace: "Trace") -> "Trace":
    from hitlab.traces.trace import Trace

    return arguments.instance("trace", trace, Trace, "give what read_trace returns")


def _options(policy: "Policy", given: Mapping[str, Any]) -> dict[str, "Option"]:
    """The options as numbers, whole where the policy's default is whole; `replay` refuses names it does not know."""
    from hitlab.simulation.policy import options_of

    known = options_of(policy)
    return {
        name: whole(name, value) if isinstance(known.get(name), int) else number(name, value)
        for name, value in given.items()
    }


@dataclass(frozen=True, slots=True)
class Points(Sequence["Point"]):
    """The points of a sweep, policy by policy, each by capacity."""

    points: tuple["Point", ...]

    @overload
    def __getitem__(self, index: int) -> "Point": ...

    @overload
    def __getitem__(self, index: slice) -> "Points": ...

    def __getitem__(self, index: int | slice) -> "Point | Points":
        """A point, or some of them."""
        return Points(self.points[index]) if isinstance(index, slice) else self.points[index]

    def __len__(self) -> int:
        return len(self.points)

    def rows(self) -> list[dict[str, Any]]:
        """Each point as a dictionary, by the names of its fields."""
        import msgspec

        return [msgspec.structs.asdict(point) for point in self.points]

    def to_pandas(self) -> Any:
        """A pandas DataFrame, a row a point. Raises UsageError where pandas is not installed."""
        return _installed("pandas").DataFrame(self.rows(), columns=self._columns())

    def to_arrow(self) -> Any:
        """A pyarrow Table, a row a point. Raises UsageError where pyarrow is not installed."""
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in self._columns()}
        return _installed("pyarrow").table(columns)

    @staticmethod
    def _columns() -> list[str]:
        from hitlab.simulation.sweep import Point

        return list(Point.__struct_fields__)


def sweep(
    trace: "Trace",
    policies: str | Iterable[str] = ("s3fifo", "lru", "unbounded"),
    capacities: str | Iterable[int] = "auto",
    *,
    warmup: float = 0.5,
    engine_cap: bool = False,
    jobs: int | None = None,
) -> Points:
    """Replay a trace through every policy at every capacity.

    `capacities` are blocks: numbers, or a range as the command line takes it, "1000:100000:log30" or "auto". Steady
    rates leave out the first `warmup` share of the requests. `jobs` worker processes, by default as many as pay.

    Raises UsageError as `replay` does.
    """
    from hitlab.simulation import sweep as points
    from hitlab.simulation import sweep_runner
    from hitlab.simulation.hit_curve import Curves, lru_curve
    from hitlab.simulation.replay import first_warm
    from hitlab.simulation.workers import Workers

    requests, engine_cap = _trace(trace), flag("engine_cap", engine_cap)
    first = first_warm(
        requests.requests, number("warmup", warmup, lambda share: 0 <= share < 1, "give a share from 0 to below 1")
    )
    workers = Workers(whole_or_none("jobs", jobs, 1))
    choices = _choices(policies)
    if isinstance(capacities, str):
        sizes = points.capacities(capacities)
    else:
        todo = 'give numbers of blocks, or a range as "1000:100000:log30" or "auto"'
        sizes = sorted(set(arguments.several("capacities", capacities, whole, todo)))
    curves = Curves(requests, engine_cap=engine_cap)
    if sizes is None:
        sizes = points.auto_capacities(curves.of(lru_curve), _SMALLEST_AUTO)
    if not (choices and sizes):
        return Points(())
    sweep_runner.check(choices, sizes)
    wanted = sweep_runner.Sweep(requests, choices, sizes, first, engine_cap, {})
    with TemporaryDirectory(prefix="hitlab-") as folder:
        partial = sweep_runner.partial_file(Path(folder), wanted)
        sweep_runner.run(wanted, curves, workers, partial, lambda done, total: None)
    return Points(tuple(wanted.ordered()))


def _choices(policies: str | Iterable[str]) -> "list[Choice]":
    """The policies by their names. Raises UsageError for one that is named twice, whose points could not be told."""
    from hitlab.simulation.policy import Choice

    todo = 'give names of policies, as "s3fifo,lru" or a list'
    names = policies.split(",") if isinstance(policies, str) else arguments.several("policies", policies, text, todo)
    choices: dict[str, Choice] = {}
    for name in names:
        choice = Choice.of(name.strip())
        if choice.label in choices:
            raise UsageError(f"`policies` has {choice.label} twice", todo="name each policy once")
        _options(choice.load(), choice.options)
        choices[choice.label] = choice
    return list(choices.values())


@dataclass(frozen=True, slots=True)
class HitCurve:
    """What a policy hits of a trace at every capacity, from one pass over it."""

    curve: "Curve"
    prompt_tokens: int  # of all requests

    def hit_tokens(self, capacity_blocks: int) -> int:
        """Hit tokens of a cache of so many blocks. Raises UsageError for what is no number of blocks."""
        capacity = min(whole("capacity_blocks", capacity_blocks, 0), self.curve.distinct_blocks)  # more hit no more
        return int(self.curve.at([capacity])[0])

    def hit_rate(self, capacity_blocks: int) -> float | None:
        """Hit tokens over prompt tokens, 0 to 1; None of a trace without tokens."""
        return self.hit_tokens(capacity_blocks) / self.prompt_tokens if self.prompt_tokens else None

    def capacity_blocks(self, share: float) -> int:
        """The smallest cache that hits this share, 0 to 1, of what an unbounded one hits. Raises UsageError."""
        return self.curve.capacity_for(
            number("share", share, lambda share: 0 <= share <= 1, "give a share from 0 to 1, as 0.9 for 90 %")
        )


def hit_curve(trace: "Trace", policy: str = "lru", *, engine_cap: bool = False) -> HitCurve:
    """The hit-ratio curve of a policy that has one: a cache of every size at once.

    Raises UsageError for a policy that takes a replay at each capacity: sweep it.
    """
    from hitlab.simulation.policy import load_policy

    requests = _trace(trace)
    builder = load_policy(text("policy", policy)).CURVE
    if builder is None:
        raise UsageError(f"{policy} has no hit-ratio curve of its own", todo="replay it at each capacity with sweep")
    curve = builder(requests, engine_cap=flag("engine_cap", engine_cap))
    for column in (curve.needed_blocks, curve.hit_tokens, curve.request):
        column.flags.writeable = False
    return HitCurve(curve, int(requests.prompt_tokens.sum()))


async def measure_async(
    engine: str,
    base_url: str | None = None,
    *,
    emulate: bool = False,
    requests: int = 64,
    prefix_tokens: int = 1000,
    suffix_tokens: int = 200,
    groups: int = 1,
    workload: str = "shared-prefix",
    output_tokens: int = 1,
    break_mode: str = "none",
    break_at: int = 0,
    break_fixed: bool = False,
    flood_requests: int | None = None,
    flood_tokens: int = 4096,
    concurrency: int = 1,
    cold_by: str = "reset",
    seed: int = 0,
    block_tokens: int | None = None,
    capacity_blocks: int | None = None,
    ranks: int | None = None,
    vocab_range: tuple[int, int] | None = None,
    vocab_tokens: int | None = None,
    metrics_urls: str | Iterable[str] = (),
    api_key: str | None = None,
    admin_key: str | None = None,
    timeout_s: float = 120.0,
) -> "Result":
    """Measure a server's hit rate and compare it with the prediction, to the token; writes no file.

    `base_url` defaults to the engine's usual port on this machine; `emulate` starts a model of the engine instead.
    `block_tokens`, `capacity_blocks` and `ranks` are what you believe of the server, or what an emulated one gets.
    `flood_requests` None sizes the flood by the server's pool. The result says whether it can be trusted (`valid`)
    and whether it `agrees`; a disagreement is no error.

    Raises UsageError for what can't be sent, ServerError for a server that can't be measured.
    """
    from hitlab.client.dialect import load_engine
    from hitlab.client.http import EngineClient, Keys
    from hitlab.measurement.asked import Asked
    from hitlab.measurement.run import Unwatched, prepare_run
    from hitlab.servers.start import emulated

    experiment = Experiment(
        _shape(requests, prefix_tokens, suffix_tokens, groups),
        text("break_mode", break_mode),
        BreakOptions(whole("break_at", break_at), flag("break_fixed", break_fixed)),
        whole("seed", seed),
        concurrency=whole("concurrency", concurrency, 1),
        flood_requests=whole_or_none("flood_requests", flood_requests, 0) or 0,
        flood_tokens=whole("flood_tokens", flood_tokens, 1),
        cold_by=text("cold_by", cold_by),
        workload=text("workload", workload),
        output_tokens=whole("output_tokens", output_tokens, 1),
    )
    asked = Asked(
        block_tokens=whole_or_none("block_tokens", block_tokens, 1),
        capacity_blocks=whole_or_none("capacity_blocks", capacity_blocks, 1),
        ranks=whole_or_none("ranks", ranks, 1),
        auto_flood=flood_requests is None and break_mode == "capacity",
        vocab_range=None if vocab_range is None else arguments.span("vocab_range", vocab_range),
        vocab_tokens=whole_or_none("vocab_tokens", vocab_tokens, 2),
    )
    api = load_engine(text("engine", engine))
    url = None if base_url is None else arguments.address("base_url", base_url)
    if flag("emulate", emulate) and url is not None:
        raise UsageError("`base_url` names a server and `emulate` starts one", todo="give one of them")
    named = [metrics_urls] if isinstance(metrics_urls, str) else metrics_urls
    pages = arguments.several("metrics_urls", named, arguments.address, "give a list of addresses")
    keys = Keys(api_key, admin_key)
    timeout = number("timeout_s", timeout_s, lambda seconds: seconds > 0, "give a number of seconds above 0")
    with emulated(api.NAME, asked) if emulate else nullcontext() as started:
        url = started.base_url if started else api.DEFAULT_BASE_URL if url is None else url
        async with EngineClient(api, url, pages, keys, timeout, experiment.concurrency) as client:
            run = await prepare_run(client, asked, experiment)
            await run.walk(Unwatched())
            return run.result()


def measure(engine: str, base_url: str | None = None, **settings: Any) -> "Result":
    """`measure_async` for plain code, with the same arguments; also where an event loop runs already, as in a notebook.

    >>> measure("vllm", emulate=True, requests=8).verdict
    'healthy'

    Ctrl-C ends the run and the server that it has started, and is a KeyboardInterrupt as anywhere else.
    """
    from hitlab.interruptible import in_a_thread

    return in_a_thread(lambda: measure_async(engine, base_url, **settings))


def read_result(path: Path | str) -> "Result | LabResult":
    """A file that `measure` or `lab run` has written. Raises InputError for any other."""
    from hitlab.results import store

    file = arguments.path("path", path)
    return store.load_lab(file) if store.is_lab(file) else store.load(file)


def _installed(module: str) -> Any:
    """An optional package. Raises UsageError where it is missing."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise UsageError(f"{module} is not installed", todo=f"pip install {module}, or use rows()") from None
