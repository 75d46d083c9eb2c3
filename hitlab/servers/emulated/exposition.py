"""/metrics pages of emulated engines, written by the library that real engines use.

Families are made at scrape time from the scheduler's counters, so serving a request costs nothing here.
"""

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from hitlab.servers.emulated.config import Faults
from hitlab.servers.emulated.dialect import Call, Response
from hitlab.servers.emulated.scheduler import RankCounters

Samples = Iterable[tuple[Mapping[str, str], float]]
#: What a series shows of a rank.
Value = Callable[[RankCounters], float]
#: The ranks of a server, each with the labels of its series.
RankSamples = Sequence[tuple[Mapping[str, str], RankCounters]]


def of_ranks(ranks: RankSamples, value: Value) -> Samples:
    """One sample of each rank."""
    return [(labels, value(counters)) for labels, counters in ranks]


def split_of_ranks(ranks: RankSamples, label: str, values: Mapping[str, Value]) -> Samples:
    """As many samples of each rank as there are values, told apart by a label of this name."""
    return [({**labels, label: name}, value(counters)) for labels, counters in ranks for name, value in values.items()]


def counter(name: str, about: str, samples: Samples, created: float | None = None) -> Metric:
    """A counter; `name` is its samples' name, which ends in _total. With a time, `_created` samples too."""
    return _family(name.removesuffix("_total"), "counter", "_total", about, samples, created)


def gauge(name: str, about: str, samples: Samples) -> Metric:
    """A gauge."""
    return _family(name, "gauge", "", about, samples, None)


def histogram(
    name: str,
    about: str,
    observed: Iterable[tuple[Mapping[str, str], Mapping[int, int]]],
    bounds: Sequence[int],
    created: float | None = None,
) -> Metric:
    """A histogram of {value: how often}; `bounds` are its buckets' upper ends without +Inf."""
    metric = Metric(name, about, "histogram")
    for labels, times in observed:
        for bound in bounds:
            within = sum(count for value, count in times.items() if value <= bound)
            end: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            metric.add_sample(f"{name}_bucket", {**labels, "le": end}, within)
        metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, sum(times.values()))
        metric.add_sample(f"{name}_count", dict(labels), sum(times.values()))
        metric.add_sample(f"{name}_sum", dict(labels), sum(value * count for value, count in times.items()))
        if created is not None:
            metric.add_sample(f"{name}_created", dict(labels), created)
    return metric


def metrics_response(families: Iterable[Metric], call: Call, faults: Faults, *, negotiate: bool) -> Response:
    """A /metrics page by prometheus_client; with `negotiate`, in the form that the call accepts."""
    if faults.metrics == "html":
        return Response(200, b"<!DOCTYPE html><html><body>Please log in.</body></html>", "text/html; charset=utf-8")
    if faults.metrics == "redirect" and not call.path.endswith("/"):
        return Response(307, headers={"location": f"{call.path}/"})
    page, headers = _Page(families), {}
    if negotiate:
        encode, content_type = choose_encoder(call.headers.get("accept", ""))
        body = encode(page)
    else:
        body, content_type = generate_latest(page), CONTENT_TYPE_LATEST
    if faults.metrics == "twice":
        body *= 2
    if negotiate and gzip_accepted(call.headers.get("accept-encoding", "")):
        body, headers = gzip.compress(body), {"content-encoding": "gzip"}
    return Response(200, body, content_type, headers)


class _Page(Collector):
    """Families that were made for one scrape, as prometheus_client takes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(name: str, kind: str, suffix: str, about: str, samples: Samples, created: float | None) -> Metric:
    metric = Metric(name, about, kind)
    for labels, value in samples:
        metric.add_sample(name + suffix, dict(labels), value)
        if created is not None:
            metric.add_sample(f"{name}_created", dict(labels), created)
    return metric
