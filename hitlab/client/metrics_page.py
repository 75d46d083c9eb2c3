"""What a /metrics page says, by exact sample names.

A page may hold many megabytes that nobody asked for, so only lines that begin with a wanted name are read:
prometheus_client parses those, and this module decides what may be believed. A wanted line that is malformed, or that
stands twice, spoils its own name and no other. `_created` samples, and families whose names merely contain a wanted
one, are never touched, because nothing here searches by prefix.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hitlab.errors import MetricsError

# Tensor, pipeline and expert ranks of one replica all report the same tokens (field reports; SGLang with
# --enable-metrics-for-all-schedulers), so they are never added up.
SAME_TOKENS_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
# Labels that split the tokens of one server, so that its series are added up over them. Every other label (pod,
# instance, version, Ray's ReplicaId) tells servers apart.
_SHARE_LABELS = SAME_TOKENS_LABELS | {
    *("engine", "engine_id", "dp_rank", "rank", "pid"),
    *("mode", "source", "cache_source", "cache_type", "is_streaming", "priority", "lora_name", "le"),
}
_MODEL_LABELS = ("model_name", "model")
_ROLE_LABELS = ("engine_type", "role", "disaggregation_mode")
_NO_ROLES = frozenset({"", "unified", "null", "none"})  # one server prefills and decodes

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LIKE_METRICS = re.compile(rb"#|[a-zA-Z_:][\w:]*(?:\{.*\})?[ \t]+[-+]?(?:[0-9.]|nan|inf)", re.IGNORECASE)
_SHOWN_CHARACTERS = 60  # of a line or a page, in a message


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


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Whose tokens a series counts: of which model, in which role (prefill or decode), and where.

    "" is a model or role that the series does not name. `place` are the labels that tell servers apart.
    """

    model: str = ""
    role: str = ""
    place: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, sample: Sample) -> "Owner":
        """Decided by a series' own labels, so that no other line of the page can change it."""
        labels = sample.labels
        role = next((labels[label] for label in _ROLE_LABELS if label in labels), "")
        named = {*_SHARE_LABELS, *_MODEL_LABELS, *_ROLE_LABELS}
        return cls(
            model=next((labels[label] for label in _MODEL_LABELS if label in labels), ""),
            role="" if role.lower() in _NO_ROLES else role,
            place=tuple(sorted((label, value) for label, value in labels.items() if label not in named)),
        )


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted samples of one scrape, by name.

    `vllm:x` stands for `vllm_x`, `ray_vllm:x` and `ray_vllm_x` too: OpenMetrics takes no colon, and Ray's exporter puts
    its own name in front. Of several spellings on one page, which count the same tokens, the first of these is read.
    """

    body: bytes = b""
    by_name: dict[str, list[Sample]] = field(default_factory=dict)
    spoilt: dict[str, str] = field(default_factory=dict)  # why samples of this name can't be used
    declared: frozenset[str] = frozenset()  # names that have a TYPE or HELP line, with samples or without

    def named(self, name: str) -> list[Sample]:
        """Samples called exactly `name`, given as `vllm:x`.

        Raises MetricsError for a name that has a malformed line, or a series that stands twice.
        """
        key = _key(name)
        if key in self.spoilt:
            raise MetricsError(self.spoilt[key])
        return self.by_name.get(key, [])

    def look(self, name: str) -> list[Sample]:
        """As `named`, for what is only told and never added up: lines that can't be used are left out."""
        return self.by_name.get(_key(name), [])

    def told(self, names: Iterable[str]) -> str:
        """The first sample of each of these names in words, as "cache_hit_rate 0.62"; "" where there is none."""
        firsts = ((name, samples[0].value) for name in names if (samples := self.look(name)))
        return ", ".join(f"{name.partition(':')[2]} {value:g}" for name, value in firsts)

    def starts_at_zero(self, name: str) -> bool:
        """Whether a counter without samples is 0 by this page's own word.

        It is when a TYPE or HELP line names it; and on a page of Ray's, which leaves out every counter that is 0.
        """
        return _key(name) in self.declared or any(
            sample.name.startswith("ray_") for samples in self.by_name.values() for sample in samples
        )

    def has(self, prefix: str) -> bool:
        """Whether any sample's name begins so; the prefix is given as `vllm:`."""
        return bool(self.examples(prefix, 1))

    def examples(self, prefix: str, most: int = 3) -> list[str]:
        """The first names on the page that begin so, as they are spelt there, each once."""
        found: dict[str, None] = {}
        begin = 0
        pattern = _beginning(prefix)
        while len(found) < most and (match := pattern.search(self.body, begin)):
            found[match[1].decode(errors="replace")] = None
            begin = match.end()
        return list(found)

    @property
    def empty(self) -> bool:
        """Whether there is no sample at all, of whatever name."""
        return not self.by_name and all(line.startswith(b"#") for line in _filled_lines(self.body))


def read_page(body: bytes | str, names: Iterable[str]) -> Page:
    r"""Read the samples of these names off a classic or OpenMetrics page; names are given as `vllm:x`.

    >>> hits = "vllm:prefix_cache_hits_total"
    >>> page = read_page('vllm_prefix_cache_hits_total{engine="0"} 96.0 # {trace_id="q"} 1 2.0\n# EOF\n', [hits])
    >>> tokens(page.named(hits))
    96

    Raises MetricsError for what is no metrics page.
    """
    raw = body.encode() if isinstance(body, str) else body
    page = _read(raw, tuple(names))
    if not page.by_name and not page.spoilt and not page.declared:
        first = next(_filled_lines(raw), b"")
        if first and not any(_LIKE_METRICS.match(line) for line in _some_lines(raw)):
            kind = "an HTML page" if first[:1] == b"<" else "JSON" if first[:1] in b"{[" else "text"
            raise MetricsError(f"not a metrics page but {kind}, it starts {_shown(first)!r}")
    return page


def readings(page: Page, names: Iterable[str], model: str | None = None) -> dict[str, float]:
    """Every series of these names and its value, of one model if given. NaN is left out: it never equals itself."""
    return {
        sample.series: sample.value
        for name in names
        for sample in of_model(page.look(name), model)
        if math.isfinite(sample.value)
    }


def of_model(samples: Iterable[Sample], model: str | None) -> list[Sample]:
    """The samples of this model, and those that name none; None stands for every model."""
    return [sample for sample in samples if model is None or Owner.of(sample).model in ("", model)]


def in_words(owner: Owner) -> str:
    """The labels that tell an owner's place, as "pod=a, version=0.8.5"; "" where there are none."""
    return ", ".join(f"{label}={value}" for label, value in owner.place)


def by_owner(page: Page, names: Iterable[str], *, strict: bool = True) -> dict[Owner, dict[str, list[Sample]]]:
    """Samples of these names, apart for each owner, in an order that the page's lines do not decide.

    Raises MetricsError for a name that can't be used; unless `strict` its lines that can't are left out.
    """
    found: dict[Owner, dict[str, list[Sample]]] = {}
    for name in names:
        for sample in page.named(name) if strict else page.look(name):
            found.setdefault(Owner.of(sample), {}).setdefault(name, []).append(sample)
    return dict(sorted(found.items()))


def chosen_model(models: Iterable[str], served: str | None) -> tuple[str | None, str]:
    """Which of a page's models to read (None: all of them), and what has to be said of that.

    `served` is the name that the server gives its model; None where it does not say.

    >>> chosen_model(["org/Real-8B"], "house-chat")
    (None, 'the page calls its only model org/Real-8B, the server house-chat')

    Raises MetricsError where the page has several models and `served` is none of them.
    """
    names = sorted({*models} - {""})
    if served is None or not names or names == [served]:
        return None, ""
    if served in names:
        others = ", ".join(name for name in names if name != served)
        return served, f"the page has other models too, which are not counted: {others}"
    if len(names) == 1:
        return None, f"the page calls its only model {names[0]}, the server {served}"
    raise MetricsError(
        f"no counters of the model {served} on the page; it has {', '.join(names)}",
        todo="name the address of one model's own /metrics with `metrics_urls`",
    )


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


def _read(body: bytes, names: tuple[str, ...]) -> Page:
    lines: dict[str, dict[int, list[str]]] = {}
    declared: set[str] = set()
    for comment, ray, name, rest in _wanted_lines(body, _pattern(names)):
        key = name.replace(":", "_", 1)
        if comment:
            declared |= {key, f"{key.removesuffix('_total')}_total"}
        elif key in _keys(names):
            spelling = 2 * bool(ray) + (":" not in name)
            lines.setdefault(key, {}).setdefault(spelling, []).append(ray + name + rest)
    by_name: dict[str, list[Sample]] = {}
    spoilt: dict[str, str] = {}
    for key, spellings in lines.items():
        samples, why = _parsed(spellings[min(spellings)])
        if samples:
            by_name[key] = samples
        if why:
            spoilt[key] = why
    return Page(body, by_name, spoilt, frozenset(declared))


def _wanted_lines(body: bytes, pattern: tuple[re.Pattern[bytes], re.Pattern[bytes]]) -> Iterator[tuple[str, ...]]:
    """Each wanted line as "# TYPE " or "", "ray_" or "", the name, and the rest."""
    first, later = pattern
    begin = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    if match := first.match(body, begin):
        yield tuple(part.decode(errors="replace").rstrip("\r") for part in match.groups(b""))
    for match in later.finditer(body, begin):
        yield tuple(part.decode(errors="replace").rstrip("\r") for part in match.groups(b""))


@lru_cache(maxsize=16)
def _pattern(names: tuple[str, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Two patterns: a wanted line where a page begins, and any later one, which is found by the line end before it."""
    by_prefix: dict[str, list[str]] = {}
    for name in names:
        prefix, _, own = name.partition(":")
        stem = own.removesuffix("_total")
        by_prefix.setdefault(prefix, []).append(re.escape(stem) + ("(?:_total)?" if stem != own else ""))
    either = "|".join(f"{re.escape(prefix)}[:_](?:{'|'.join(own)})" for prefix, own in by_prefix.items())
    line = rf"(# (?:HELP|TYPE) )?(ray_)?({either})(?![\w:])([^\n]*)".encode()
    return re.compile(line), re.compile(rb"\n" + line)


@lru_cache(maxsize=16)
def _keys(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(_key, names))


@lru_cache(maxsize=16)
def _beginning(prefix: str) -> re.Pattern[bytes]:
    stem = re.escape(prefix.removesuffix(":").encode())
    return re.compile(rb"(?:\A|\n)((?:ray_)?" + stem + rb"[:_][\w:]*)")


def _key(name: str) -> str:
    return name.replace(":", "_", 1)


def _parsed(lines: Sequence[str]) -> tuple[list[Sample], str]:
    """The samples of lines of one name, each series once, and why they can't be used; "" when they can."""
    why = ""
    samples: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample, line in _samples(lines):
        if sample is None:
            why = why or f"a malformed line on the page: {_shown(line.encode())}"
            continue
        series = sample.name, frozenset(sample.labels.items())
        if series in samples:
            why = why or f"the series {sample.series} stands twice on the page"
        samples.setdefault(series, sample)
    return list(samples.values()), why


def _samples(lines: Sequence[str]) -> Iterator[tuple[Sample | None, str]]:
    """The sample of each line; None for a malformed one. All lines at once, and one by one where that fails."""
    together = _by_library("\n".join(lines))
    if len(together) == len(lines):
        yield from zip(together, lines, strict=True)
        return
    for line in lines:
        alone = _by_library(line)
        yield alone[0] if len(alone) == 1 else None, line


def _by_library(text: str) -> list[Sample]:
    """Nothing where a line is malformed."""
    from prometheus_client.parser import text_string_to_metric_families  # slow, and `predict` reads no page

    try:
        # The classic parser reads OpenMetrics too; the OpenMetrics one refuses most classic pages.
        return [
            Sample(raw.name, raw.labels, raw.value)
            for family in text_string_to_metric_families(text)
            for raw in family.samples
        ]
    except (ValueError, IndexError, KeyError):
        return []


def _filled_lines(body: bytes) -> Iterator[bytes]:
    """Lines that are not blank, one after another, without splitting the whole page."""
    begin = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    while begin < len(body):
        end = body.find(b"\n", begin)
        end = len(body) if end < 0 else end
        if line := body[begin:end].strip():
            yield line
        begin = end + 1


def _some_lines(body: bytes) -> Iterator[bytes]:
    for _, line in zip(range(50), _filled_lines(body), strict=False):
        yield line


def _shown(line: bytes) -> str:
    return " ".join(line[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").split())[:_SHOWN_CHARACTERS]
