"""Metrics pages as they are met in the field (tests/data/field-2): right values by hand, kinds by property."""

import re

import pytest
from client.field_pages import page
from hypothesis import given
from hypothesis import strategies as st

from hitlab.client.counters import Counters, Move, Part, Tiers
from hitlab.client.dialect import EngineApi, load_engine
from hitlab.client.metrics_page import read_page
from hitlab.errors import MetricsError
from hitlab.tokens import Tally

VLLM, SGLANG = load_engine("vllm"), load_engine("sglang")


def read(engine: EngineApi, text: str, model: str | None = None, version: str | None = None) -> Counters:
    return engine.read_counters(read_page(text, engine.METRICS), model, version)


def interval(engine: EngineApi, name: str, version: str | None = None) -> list[Move]:
    """What each part of a page of the field counts between two scrapes."""
    first, second = (read(engine, page(name, number), version=version) for number in (1, 2))
    return second.moves(first)


# -- 1. missing is not zero --------------------------------------------------------------------------------------


def test_prompts_of_a_version_without_cached_tokens_have_no_hit_rate() -> None:
    (move,) = interval(SGLANG, "N01", "0.4.3.post2")
    assert (move.queried_tokens, move.hit_tokens, move.hit_rate, move.computed_tokens) == (80_000, None, None, None)
    assert move.part.lacks == (
        "cached tokens are not counted by this version (0.4.3.post2); only the gauge cache_hit_rate 0.81"
    )


def test_page_of_gauges_alone_names_the_gauge() -> None:
    with pytest.raises(MetricsError, match=r"no token counters \(a gauge cache_hit_rate 0\.62\)"):
        read(SGLANG, page("N11", 1))
    with pytest.raises(MetricsError, match=r"0\.6\.6 has a gauge \(gpu_prefix_cache_hit_rate 0\.64\) and no counters"):
        read(VLLM, page("N12", 1), version="0.6.6")


@pytest.mark.parametrize(
    ("version", "more", "hits"),
    [
        ("0.5.5", "", 0),  # shows the counter with its first hit
        ("0.4.4", "", 0),
        ("0.4.3.post2", "", None),  # has no such counter
        (None, "", None),
        (None, "# TYPE sglang:cached_tokens_total counter\n", 0),
        (None, "# HELP sglang:cached_tokens_total Number of cached prompt tokens.\n", 0),
        ("0.5.5", "sglang:cache_hit_rate 0.0\n", 0),
        ("0.5.5", "sglang:cache_hit_rate 0.4\n", None),  # there were hits, and they are filtered out
        (None, "# TYPE sglang:cached_tokens_total counter\nsglang:cache_hit_rate 0.4\n", None),
    ],
)
def test_cached_tokens_without_a_sample_are_0_only_where_that_is_proven(
    version: str | None, more: str, hits: int | None
) -> None:
    found = read(SGLANG, "sglang:prompt_tokens_total 100\n" + more, version=version)
    assert found.move(Counters()).hit_tokens == hits
    assert bool(found.lacks) == (hits is None)


def test_hits_that_come_late_count_from_nothing() -> None:
    before = read(SGLANG, "sglang:prompt_tokens_total 100\n")
    after = read(SGLANG, "sglang:prompt_tokens_total 300\nsglang:cached_tokens_total 50\n")
    assert after.since(before)[0] == Tally(200, 50)


def test_half_a_pair_of_vllm_is_zero_where_its_type_is_declared_and_refused_elsewhere() -> None:
    half = "vllm:prefix_cache_queries_total 100\n"
    with pytest.raises(MetricsError, match="queries_total, and no vllm:prefix_cache_hits_total"):
        read(VLLM, half)
    declared = read(VLLM, half + "# TYPE vllm:prefix_cache_hits_total counter\n")
    assert declared.since(Counters())[0] == Tally(100, 0)


def test_one_model_without_hits_on_a_page_has_no_rate_and_the_other_has_its_own() -> None:
    text = (
        'vllm:prefix_cache_queries_total{model_name="a"} 100\nvllm:prefix_cache_hits_total{model_name="a"} 40\n'
        'vllm:prefix_cache_queries_total{model_name="b"} 100\n'
    )
    rates = {move.part.model: move.hit_rate for move in read(VLLM, text).moves(Counters())}
    assert rates == {"a": 0.4, "b": None}


HALVES = {
    "vllm": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
}


@given(st.sampled_from(sorted(HALVES)), st.integers(1, 10**9), st.sampled_from((0, 1)), st.booleans())
def test_a_missing_half_is_never_taken_for_0(engine: str, tokens: int, missing: int, labelled: bool) -> None:
    labels = '{model_name="m"}' if labelled else ""
    try:
        found = read(load_engine(engine), f"{HALVES[engine][1 - missing]}{labels} {tokens}\n")
    except MetricsError:
        return
    assert [move.hit_rate for move in found.moves(Counters())] in ([], [None])


# -- 2. sums with one meaning ------------------------------------------------------------------------------------


def test_replicas_of_two_versions_are_read_each_by_its_own_names() -> None:
    def both(scrapes: int, *order: str) -> Counters:
        found = [read(VLLM, page(name, scrapes)).at(name) for name in order]
        return found[0] + found[1]

    for order in (("N05a", "N05b"), ("N05b", "N05a")):
        moved = both(2, *order).move(both(1, *order))
        assert (moved.tally, moved.hit_rate) == (Tally(4000, 2800), 0.7)
        assert [move.hit_rate for move in both(2, *order).moves(both(1, *order))] == [0.1, 0.9]


def test_models_of_one_page_have_rates_of_their_own_and_none_together() -> None:
    moves = interval(VLLM, "N09")
    assert [(move.part.model, move.hit_rate) for move in moves] == [("chat-32b", 0.8), ("code-7b", 0.0)]
    assert read(VLLM, page("N09", 1)).mixed == "counters of 2 models: chat-32b, code-7b"


def test_prefill_and_decode_are_never_added() -> None:
    text = "".join(
        f'sglang:{name}{{engine_type="{role}",model_name="m"}} {count}\n'
        for role, prompts, cached in (("prefill", 100, 60), ("decode", 100, 95))
        for name, count in (("prompt_tokens_total", prompts), ("cached_tokens_total", cached))
    )
    found = read(SGLANG, text)
    assert [(move.part.role, move.hit_rate) for move in found.moves(Counters())] == [("decode", 0.95), ("prefill", 0.6)]
    assert found.mixed == "counters of 2 roles: decode, prefill"


def test_pods_on_one_page_are_rows_whose_sum_means_something() -> None:
    text = "".join(
        f'vllm:{family}_queries_total{{pod="{pod}"}} {queries}\nvllm:{family}_hits_total{{pod="{pod}"}} {hits}\n'
        for pod, family, queries, hits in (("a", "prefix_cache", 100, 10), ("b", "gpu_prefix_cache", 300, 270))
    )
    found = read(VLLM, text)
    assert [move.part.place for move in found.moves(Counters())] == ["pod=a", "pod=b"]
    assert (found.mixed, found.since(Counters())[0]) == ("", Tally(400, 280))


@pytest.mark.parametrize(
    ("served", "counted", "note"),
    [
        ("house-chat", 1, "the page calls its only model org/Real-8B, the server house-chat"),
        ("org/Real-8B", 1, ""),
        (None, 1, ""),
    ],
)
def test_the_only_model_of_a_page_is_read_under_whatever_name(served: str | None, counted: int, note: str) -> None:
    found = read(VLLM, page("N08", 1), model=served)
    assert (len(found.parts), "".join(found.notes)) == (counted, note)
    assert found.since(Counters())[0] == Tally(1200, 992)


def test_of_several_models_those_there_are_listed() -> None:
    with pytest.raises(MetricsError, match="no counters of the model x on the page; it has chat-32b, code-7b"):
        read(VLLM, page("N09", 1), model="x")
    assert read(VLLM, page("N09", 1), model="chat-32b").notes == (
        "the page has other models too, which are not counted: code-7b",
    )


def test_spellings_of_one_counter_are_not_added() -> None:
    text = "".join(
        f"{name}_queries_total{labels} 100\n{name}_hits_total{labels} 40\n"
        for name, labels in (
            ("ray_vllm_prefix_cache", '{WorkerId="w1"}'),
            ("vllm_prefix_cache", '{exporter="other"}'),
            ("vllm:prefix_cache", ""),
            ("ray_vllm:prefix_cache", '{WorkerId="w2"}'),
        )
    )
    assert read(VLLM, text).since(Counters())[0] == Tally(100, 40)


@pytest.mark.parametrize("name", ["N07", "N07b"])
def test_rays_names_are_read(name: str) -> None:
    (move,) = interval(VLLM, name)
    assert (move.tally, move.hit_rate) == (Tally(400, 100), 0.25)


def test_ray_leaves_out_counters_that_are_0() -> None:
    labels = '{ReplicaId="r1",WorkerId="w1"}'
    fresh = read(VLLM, f"ray_vllm_num_requests_running{labels} 1\n")
    cold = read(VLLM, f"ray_vllm_prefix_cache_queries_total{labels} 400\n")
    assert cold.since(fresh)[0] == Tally(400, 0)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["prefill", "decode", "unified"]),
        st.sampled_from(["0", "1"]),
        st.sampled_from(["pod-1", "pod-2"]),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row[:4],
)


@given(ROWS, st.sampled_from(sorted(HALVES)), st.randoms(use_true_random=False))
def test_the_order_of_lines_labels_and_addresses_changes_nothing(
    rows: list[tuple[str, str, str, str, int, int]], engine: str, random: object
) -> None:
    def text(order: list[tuple[str, str, str, str, int, int]], turned: bool) -> str:
        lines: list[str] = []
        for model, role, rank, pod, queried, hit in order:
            labels = [f'model_name="{model}"', f'engine_type="{role}"', f'engine="{rank}"', f'pod="{pod}"']
            joined = ",".join(reversed(labels) if turned else labels)
            pair = [f"{HALVES[engine][0]}{{{joined}}} {queried}", f"{HALVES[engine][1]}{{{joined}}} {hit}"]
            lines += reversed(pair) if turned else pair
        return "\n".join(lines) + "\n"

    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    api = load_engine(engine)
    one, other = read(api, text(rows, turned=False)), read(api, text(shuffled, turned=True))
    assert (one.parts, one.mixed) == (other.parts, other.mixed)
    assert one.at("x") + other.at("y") == other.at("y") + one.at("x")


# -- 3. contradictions -------------------------------------------------------------------------------------------


def test_more_hits_than_prompts_is_said_and_has_no_rate() -> None:
    (move,) = interval(SGLANG, "N02")
    assert (move.hit_rate, move.overall_hit_rate, move.computed_tokens) == (None, None, None)
    assert move.contradiction == "2,800 cached of 1,500 prompt tokens: these counters contradict each other"


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_a_rate_is_between_0_and_1_or_there_is_none(queried: int, hit: int, apart: int, looked_up: int) -> None:
    move = Move(Part(), queried, hit, apart, Tally(looked_up, apart))
    rates = [rate for rate in (move.hit_rate, move.overall_hit_rate) if rate is not None]
    assert all(0 <= rate <= 1 for rate in rates)
    assert not (rates and move.contradiction)
    assert move.contradiction or not queried or len(rates) == 2
    good = Move(Part(), 10**6, 0)
    assert (good + move).contradiction == move.contradiction  # a sum never hides it


# -- 4. tiers ----------------------------------------------------------------------------------------------------


def test_hits_of_a_connector_count_overall_and_not_locally() -> None:
    (move,) = interval(VLLM, "N15")
    assert (move.hit_rate, move.overall_hit_rate, move.computed_tokens) == (0.0, 0.9, 1000)
    assert move.tiers == Tiers(local=0, external=9000)


def test_hits_of_a_connector_count_though_its_series_has_a_label_more() -> None:
    text = (
        "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 10\n"
        'vllm:external_prefix_cache_queries_total{connector="c"} 90\n'
        'vllm:external_prefix_cache_hits_total{connector="c"} 50\n'
    )
    assert read(VLLM, text).move(Counters()).computed_tokens == 40


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        (
            "".join(
                f'sglang:prefill_effective_tokens_total{{mode="{mode}"}} {count}\n'
                for mode, count in (("input", 10), ("device_hit", 20), ("host_hit", 30), ("storage_hit", 40))
            ),
            Tiers(local=20, host=30, storage=40),
        ),
        (
            "sglang:prompt_tokens_total 100\n"
            + "".join(
                f'sglang:cached_tokens_total{{cache_source="{source}"}} {count}\n'
                for source, count in (("device", 20), ("host", 30), ("storage_file", 40), ("total", 90))
            ),
            Tiers(local=20, host=30, storage=40),
        ),
        ('sglang:prompt_tokens_total 100\nsglang:cached_tokens_total{cache_source="total"} 90\n', Tiers()),
        (
            'sglang:realtime_tokens_total{mode="prefill_compute"} 10\n'
            'sglang:realtime_tokens_total{mode="prefill_cache"} 90\n',
            Tiers(),
        ),
    ],
)
def test_sglangs_tiers_are_told_apart_where_its_counters_do(text: str, tiers: Tiers) -> None:
    move = read(SGLANG, text).move(Counters())
    assert (move.tally, move.computed_tokens, move.tiers) == (Tally(100, 90), 10, tiers)


@given(*(st.integers(0, 10**9) for _ in range(4)))
def test_computed_tokens_are_the_prompt_minus_all_hits(computed: int, local: int, host: int, storage: int) -> None:
    prompt = computed + local + host + storage
    sglang = "".join(
        f'sglang:prefill_effective_tokens_total{{mode="{mode}"}} {count}\n'
        for mode, count in (("input", computed), ("device_hit", local), ("host_hit", host), ("storage_hit", storage))
    )
    vllm = (
        f"vllm:prefix_cache_queries_total {prompt}\nvllm:prefix_cache_hits_total {local}\n"
        f"vllm:external_prefix_cache_queries_total {prompt - local}\n"
        f"vllm:external_prefix_cache_hits_total {host + storage}\n"
    )
    moves = [read(SGLANG, sglang).move(Counters()), read(VLLM, vllm).move(Counters())]
    assert [move.computed_tokens for move in moves] == [computed, computed]
    assert moves[0].overall_hit_rate == moves[1].overall_hit_rate  # the engines are comparable


# -- 5. only the needed lines decide -----------------------------------------------------------------------------

GOOD = 'vllm:prefix_cache_queries_total{engine="0"} 400\nvllm:prefix_cache_hits_total{engine="0"} 96\n'


def test_an_unrelated_series_twice_refuses_nothing() -> None:
    (move,) = interval(VLLM, "N06")
    assert move.tally == Tally(1200, 992)
    facts = VLLM.read_facts({}, read_page(page("N06", 1), VLLM.METRICS))
    assert (facts.block_tokens, facts.caching) == (16, True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('vllm:prefix_cache_hits_total{engine="0"} 96\n', 'prefix_cache_hits_total{engine="0"} stands twice'),
        ('vllm:prefix_cache_hits_total{engine="1" 96\n', 'a malformed line on the page: vllm:prefix_cache_hits_tot'),
        ('vllm:prefix_cache_queries_total{engine="1"} many\n', "malformed line on the page: vllm:prefix_cache_queries"),
    ],
)  # fmt: skip
def test_a_needed_line_twice_or_malformed_refuses_and_is_named(more: str, says: str) -> None:
    with pytest.raises(MetricsError, match=re.escape(says)):
        read(VLLM, GOOD + more)


OTHERS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40).map(lambda rest: f"other{rest}")


@given(st.lists(OTHERS, max_size=6), st.permutations(range(8)))
def test_lines_of_other_names_change_nothing(others: list[str], places: list[int]) -> None:
    lines = GOOD.splitlines()
    for place, other in zip(places, others, strict=False):
        lines[min(place, len(lines)) : min(place, len(lines))] = [other, other]
    assert read(VLLM, "\n".join(lines)) == read(VLLM, GOOD)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_change_nothing(end: str, mark: str) -> None:
    assert read(VLLM, mark + end.join(GOOD.splitlines())) == read(VLLM, GOOD)
