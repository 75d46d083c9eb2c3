"""What a /metrics page says, by exact sample names.

prometheus_client parses; this module decides what may be believed. A page is refused when it is not a metrics
page (HTML, JSON), or carries one series twice. `_created` samples, and families whose names merely contain the
wanted one, are never touched, because nothing here searches by prefix.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from hitlab.errors import MetricsError

# Tensor, pipeline and expert ranks of one replica all report the same tokens (field reports; SGLang with
# --enable-metrics-for-all-schedulers), so they are never added up.
SAME_TOKENS_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page: a series and its value."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def series(self) -> str:
        """Name and labels as one string, labels sorted."""
        labels = ",".join(f'{label}="{value}"' for label, value in sorted(self.labels.items()))
        return f"{self.name}{{{labels}}}"


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one scrape, by name; `:` and `_` after the engine's prefix are one spelling."""

    by_name: dict[str, list[Sample]] = field(default_factory=dict)

    def named(self, name: str) -> list[Sample]:
        """Samples called exactly `name`, given as `vllm:x`; also those spelt `vllm_x`."""
        return self.by_name.get(name.replace(":", "_", 1), [])

    def has(self, prefix: str) -> bool:
        """Whether any sample's name begins so; the prefix is given as `vllm:`."""
        return any(name.startswith(prefix.replace(":", "_", 1)) for name in self.by_name)

    def __iter__(self) -> Iterator[Sample]:
        return (sample for samples in self.by_name.values() for sample in samples)


def read_page(text: str) -> Page:
    r"""Parse a classic or OpenMetrics page.

    >>> page = read_page('vllm_prefix_cache_hits_total{engine="0"} 96.0 # {trace_id="q"} 1 2.0\n# EOF\n')
    >>> tokens(page.named("vllm:prefix_cache_hits_total"))
    96

    Raises MetricsError for a page that is no metrics page or that has one series twice.
    """
    page = Page()
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    try:
        # The classic parser reads OpenMetrics too; the OpenMetrics one refuses most classic pages.
        for family in text_string_to_metric_families(text.removeprefix("\ufeff")):
            for raw in family.samples:
                sample = Sample(raw.name, raw.labels, raw.value)
                series = raw.name, frozenset(raw.labels.items())
                if series in seen:
                    raise MetricsError(f"the series {sample.series} stands twice on the page")
                seen.add(series)
                page.by_name.setdefault(raw.name.replace(":", "_", 1), []).append(sample)
    except ValueError:
        start = " ".join(text.split())[:60]
        raise MetricsError(f"not a metrics page, it starts {start!r}") from None
    return page


def readings(page: Page, names: Iterable[str]) -> dict[str, float]:
    """Every series of these names and its value. NaN is left out, because it is never equal to itself."""
    return {sample.series: sample.value for name in names for sample in page.named(name) if math.isfinite(sample.value)}


def tokens(samples: Iterable[Sample], **only: str) -> int | None:
    """Sum a counter over its series with these label values; of ranks that report the same tokens only one counts.

    None when there is no such series. Raises MetricsError for a value no counter can have.
    """
    replicas: dict[tuple[tuple[str, str], ...], int] = {}
    for sample in samples:
        if any(sample.labels.get(label) != value for label, value in only.items()):
            continue
        if not math.isfinite(sample.value) or sample.value < 0:
            raise MetricsError(f"the counter {sample.series} is {sample.value}")
        replica = tuple(
            (label, value) for label, value in sorted(sample.labels.items()) if label not in SAME_TOKENS_LABELS
        )
        replicas[replica] = max(replicas.get(replica, 0), round(sample.value))
    return sum(replicas.values()) if replicas else None
