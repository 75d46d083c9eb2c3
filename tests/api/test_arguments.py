"""Whatever a caller hands over is computed exactly or refused in one line that names the field."""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hitlab as hl
from hitlab.client.dialect import load_engine
from hitlab.errors import UsageError
from hitlab.servers.emulated import server as emulate
from hitlab.traces.trace import Trace

TRACE = Trace.of([(64, [1, 2, 3, 4]), (64, [1, 2, 5, 6]), (48, [1, 2, 3])], 16)
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]

# No whole number, each of them: what a form, a division, a file or a forgotten bracket hands over.
NOT_WHOLE = [64.0, 64.5, np.float64(64), float("nan"), Fraction(64), "64", "", b"64", True, [64], (64, 2), {}, object()]
NO_NUMBER = ["0.5", b"0.5", True, [0.5], {}, object(), float("nan"), float("inf"), 10**400, 1j]
NO_TEXT = [5, 1.5, b"lru", True, ["lru"], {}, object()]
NO_FLAG = [0, 1, "no", "True", [], object()]

measured = ("block_tokens", "capacity_blocks", "ranks", "vocab_tokens", "flood_requests")
shape = ("requests", "prefix_tokens", "suffix_tokens", "groups", "output_tokens", "break_at")


def measure(**settings: Any) -> Any:
    return asyncio.run(hl.measure_async(**{"engine": "vllm", "emulate": True, **settings}))


def replay(**settings: Any) -> Any:
    return hl.replay(**{"trace": TRACE, "policy": "lru", "capacity_blocks": 4, **settings})


def s3fifo(**options: Any) -> Any:
    return hl.replay(TRACE, "s3fifo", 10, **options)


def sweep(**settings: Any) -> Any:
    return hl.sweep(**{"trace": TRACE, "policies": "lru", "capacities": [4], **settings})


def curve(**settings: Any) -> Any:
    return hl.hit_curve(**{"trace": TRACE, **settings})


def read(**settings: Any) -> Any:
    return hl.read_trace(**{"path": "no such file", **settings})


def hit_rate(**settings: Any) -> Any:
    return curve().hit_rate(**settings)


def share(**settings: Any) -> Any:
    return curve().capacity_blocks(**settings)


Case = tuple[Callable[..., Any], str, Any]


def cases() -> list[Case]:
    """Every field of every function with everything that it is not."""
    found: list[Case] = []

    def refuse(function: Callable[..., Any], names: Any, values: list[Any]) -> None:
        found.extend((function, name, value) for name in names for value in values)

    refuse(hl.predict, (*shape, "block_tokens", "ranks"), [*NOT_WHOLE, None])
    refuse(measure, (*shape, "concurrency", "flood_tokens", "seed"), [*NOT_WHOLE, None])
    refuse(measure, measured, [*NOT_WHOLE, -1])
    refuse(measure, ("concurrency", "flood_tokens", "output_tokens"), [0, -1])
    refuse(replay, ("capacity_blocks",), [*NOT_WHOLE, None, 100.5])
    refuse(hit_rate, ("capacity_blocks",), [*NOT_WHOLE, None, -5, "5"])
    refuse(s3fifo, ("max_freq",), [*NOT_WHOLE, None, 1.5])
    refuse(sweep, ("jobs",), [*NOT_WHOLE, 0, -1])
    refuse(sweep, ("capacities",), [None, 100, ["100"], [100.7], [4, None], [True], b"100", {4: 5}, object()])
    refuse(read, ("block_tokens",), [*NOT_WHOLE, 0, "16"])

    refuse(sweep, ("warmup",), [*NO_NUMBER, None, -0.1, 1, 2])
    refuse(share, ("share",), [*NO_NUMBER, None, 2, -0.1])
    refuse(s3fifo, ("small_ratio",), [*NO_NUMBER, None])
    refuse(measure, ("timeout_s",), [*NO_NUMBER, None, 0, -1])

    refuse(hl.predict, ("workload", "break_mode"), [*NO_TEXT, None])
    refuse(measure, ("engine", "workload", "break_mode", "cold_by"), [*NO_TEXT, None])
    refuse(replay, ("policy",), [*NO_TEXT, None])
    refuse(curve, ("policy",), [*NO_TEXT, None])
    refuse(sweep, ("policies",), [5, None, True, b"lru", {"lru": 1}, [None], ["lru", 5]])
    refuse(sweep, ("policies",), [["lru", "LRU"], "lru,fifo, lru"])  # their points could not be told apart
    refuse(read, ("format",), NO_TEXT)

    refuse(hl.predict, ("break_fixed",), [*NO_FLAG, None])
    refuse(measure, ("break_fixed", "emulate"), [*NO_FLAG, None])
    for function in (replay, sweep, curve):
        refuse(function, ("engine_cap",), [*NO_FLAG, None])
        refuse(function, ("trace",), [None, "trace.jsonl", Path("trace.jsonl"), [(64, [1])], 5])
    refuse(read, ("skip_malformed",), [*NO_FLAG, None])

    for reads in (read, hl.read_result):
        refuse(reads, ("path",), [None, 5, b"trace.jsonl", ["trace.jsonl"], "", " ", "a\0b"])
    refuse(measure, ("base_url",), [*NO_TEXT, "", " ", "\n"])
    refuse(measure, ("metrics_urls",), [5, None, b"http://h", {"http://h": 1}, "", [""], ["http://h", None]])
    refuse(measure, ("vocab_range",), [5, "1000:2000", (5, 1), (5, 5), (-1, 5), (5,), (), (1, 2, 3), (5.0, 9), {1: 2}])
    refuse(measure, ("api_key", "admin_key"), [5, b"key", ["key"], "", "k\u00e9y", "key\n", " key", "k\0y"])
    return found


def named(number: int, case: Case) -> Any:
    return pytest.param(*case, id=f"{case[0].__name__} {case[1]} {number}")


@pytest.mark.parametrize(("function", "name", "value"), [named(*each) for each in enumerate(cases())])
def test_what_a_field_is_not_is_refused_in_one_line_that_names_it(
    function: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(UsageError) as refused:
        function(**{name: value})
    assert f"`{name}`" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.todo


@pytest.mark.parametrize("url", ["", " ", "\t\n"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_address_that_was_not_set_reaches_no_server(engine: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulate.start(engine) as server:
        monkeypatch.setattr(load_engine(engine), "DEFAULT_BASE_URL", server.base_url)
        with pytest.raises(UsageError, match="`base_url` is empty; give an address"):
            hl.measure(engine, url, requests=4)
        with pytest.raises(UsageError, match="`metrics_urls` is empty"):
            hl.measure(engine, metrics_urls=[url], requests=4)
        assert not server.engine.received
        assert hl.measure(engine, requests=4).agrees  # a name that is left out is the default, as before
        assert server.engine.received


def test_one_address_of_counters_needs_no_list() -> None:
    with emulate.start("vllm") as server:
        assert hl.measure("vllm", server.base_url, metrics_urls=server.base_url, requests=4).agrees


LEAST = {"requests": 1, "prefix_tokens": 0, "suffix_tokens": 1, "block_tokens": 1, "groups": 1}


@given(st.data())
def test_numpys_numbers_count_as_pythons_however_few_bits_they_have(data: st.DataObject) -> None:
    plain: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name, least in LEAST.items():
        kind: Any = data.draw(st.sampled_from(INTEGERS))
        plain[name] = data.draw(st.integers(least, int(np.iinfo(kind).max)))
        theirs[name] = kind(plain[name])
    expected, found = hl.predict(**plain), hl.predict(**theirs)
    assert found == expected
    assert found.prompt_tokens == plain["requests"] * (plain["prefix_tokens"] + plain["suffix_tokens"])
    assert type(found.hit_tokens) is type(found.prompt_tokens) is int


def test_a_prediction_does_not_overflow() -> None:
    found = hl.predict(
        requests=np.int32(64_000),  # type: ignore[arg-type]
        prefix_tokens=np.int32(100_000),  # type: ignore[arg-type]
        suffix_tokens=np.int32(100),  # type: ignore[arg-type]
    )
    assert found.prompt_tokens == 64_000 * 100_100 == 6_406_400_000
    assert found.hit_tokens == 63_999 * 100_000  # 100,000 is a multiple of 16


@pytest.mark.parametrize("kind", INTEGERS)
def test_numpys_numbers_are_capacities_and_options(kind: Any) -> None:
    assert replay(capacity_blocks=kind(3)).hit_tokens.tolist() == replay(capacity_blocks=3).hit_tokens.tolist()
    assert type(replay(capacity_blocks=kind(3)).capacity_blocks) is int
    assert sweep(capacities=np.array([3, 5, 3], kind)) == sweep(capacities=[3, 5])
    assert hit_rate(capacity_blocks=kind(3)) == hit_rate(capacity_blocks=3)
    assert s3fifo(max_freq=kind(2)).options == s3fifo(max_freq=2).options


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, Fraction])
def test_shares_are_any_real_number(kind: Any) -> None:
    assert sweep(warmup=kind(0.5)) == sweep(warmup=0.5)
    assert share(share=kind(0.5)) == share(share=0.5)
    assert s3fifo(small_ratio=kind(0.25)).options == {"small_ratio": 0.25, "max_freq": 3}


def test_options_within_a_policys_name_are_held_to_the_same_kinds() -> None:
    for ask in (replay, sweep):
        field = "policy" if ask is replay else "policies"
        with pytest.raises(UsageError, match=r"`max_freq` is 1\.5; give a whole number"):
            ask(**{field: "s3fifo:max_freq=1.5"})


def test_capacities_and_policies_may_be_anything_that_can_be_walked() -> None:
    expected = sweep(policies=["lru", "fifo"], capacities=[2, 3, 4])
    assert sweep(policies=(name for name in ("lru", "fifo")), capacities=range(2, 5)) == expected
    assert sweep(policies="lru, fifo", capacities={4, 3, 2}) == expected
    assert len(expected) == 6


def test_no_cache_is_larger_than_all_that_can_be_hit() -> None:
    assert curve().hit_tokens(2**80) == curve().hit_tokens(6) == 32 + 48
    assert curve().hit_tokens(0) == 0


@given(st.integers(4097, 20_000), st.booleans())
def test_numbers_that_python_refuses_to_print_are_refused(bits: int, negative: bool) -> None:
    value = -(1 << bits) if negative else 1 << bits
    asked: list[tuple[Callable[..., Any], str]] = [
        (hl.predict, "prefix_tokens"),
        (replay, "capacity_blocks"),
        (hit_rate, "capacity_blocks"),
    ]
    for ask, name in asked:
        with pytest.raises(UsageError, match=f"`{name}` is a number of [0-9,]+ bits; give a smaller one"):
            ask(**{name: value})
    with pytest.raises(UsageError, match="`capacities`"):
        sweep(capacities=[value])
