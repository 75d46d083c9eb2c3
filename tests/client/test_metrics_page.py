"""Reading /metrics: real bodies, and every way a page has misled somebody (field problems A)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitlab.client.counters import Counters
from hitlab.client.dialect import load_engine
from hitlab.client.metrics_page import read_page, tokens
from hitlab.errors import MetricsError
from hitlab.tokens import Tally

VLLM = load_engine("vllm")
SGLANG = load_engine("sglang")

BOTH_NAMES = """\
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="a b"} 600.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="a b"} 144.0
vllm:prefix_cache_queries_total{engine="0",model_name="a b"} 400.0
vllm:prefix_cache_queries_total{engine="1",model_name="a b"} 200.0
vllm:prefix_cache_queries_created{engine="0",model_name="a b"} 1.79e+09
vllm:prefix_cache_hits_total{engine="0",model_name="a b"} 96.0
vllm:prefix_cache_hits_total{engine="1",model_name="a b"} 48.0
vllm:prefix_cache_hits_created{engine="0",model_name="a b"} 1.79e+09
vllm:external_prefix_cache_queries_total{engine="0",model_name="a b"} 304.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="a b"} 160.0
vllm:mm_cache_queries_total{engine="0",model_name="a b"} 7.0
"""
RANKS = """\
sglang:prefill_effective_tokens_total{mode="input",dp_rank="0",tp_rank="0"} 60
sglang:prefill_effective_tokens_total{mode="input",dp_rank="0",tp_rank="1"} 60
sglang:prefill_effective_tokens_total{mode="device_hit",dp_rank="0",tp_rank="0"} 40
sglang:prefill_effective_tokens_total{mode="device_hit",dp_rank="0",tp_rank="1"} 40
sglang:prefill_effective_tokens_total{mode="input",dp_rank="1",tp_rank="0"} 100
"""
NEW_PAIR = "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 96\n"


def counters(engine: object, text: str, model: str | None = None) -> Counters:
    return engine.read_counters(read_page(text), model)  # type: ignore[attr-defined,no-any-return]


def only_tally(found: Counters) -> Tally:
    return found.since(Counters({}))[0]


@pytest.mark.parametrize(
    ("engine", "body", "tally"),
    [
        (VLLM, "vllm/bs32_fresh.prom", Tally(0, 0)),
        (VLLM, "vllm/bs32tok_after.prom", Tally(856_125, 579_360)),
        (VLLM, "vllm/dp2.prom", Tally(537_600, 446_784)),
        (VLLM, "vllm/pcoff.prom", Tally(0, 0)),
        (SGLANG, "sglang/p1_fresh.prom", Tally(4, 0)),
        (SGLANG, "sglang/p1_a_after.prom", Tally(174_344, 135_819)),
    ],
)
def test_real_pages_give_the_tokens_they_hold(data: Path, engine: object, body: str, tally: Tally) -> None:
    assert only_tally(counters(engine, (data / "golden" / body).read_text())) == tally


def test_real_sglang_page_of_two_ranks_is_their_sum(data: Path) -> None:
    page = read_page((data / "golden/sglang/dp2_p1_after.prom").read_text())
    by_rank = [
        sum(tokens(page.named("sglang:prefill_effective_tokens_total"), dp_rank=rank, mode=mode) or 0
            for mode in ("input", "device_hit"))
        for rank in ("0", "1")
    ]  # fmt: skip
    assert all(by_rank)
    assert only_tally(SGLANG.read_counters(page, None)).queried_tokens == sum(by_rank)


def test_page_without_stats_names_the_flag(data: Path) -> None:
    body = (data / "golden/vllm/nostats.prom").read_text().removesuffix("200\n").removesuffix("200")  # its status
    with pytest.raises(MetricsError, match="--disable-log-stats"):
        counters(VLLM, body)


def test_new_pair_wins_and_look_alikes_are_left_alone() -> None:
    found = counters(VLLM, BOTH_NAMES)
    assert only_tally(found) == Tally(600, 144)
    assert found.external == Tally(304, 160)
    assert not any("_created" in series for series in found.raw)


def test_mm_cache_is_kept_apart_and_reported() -> None:
    assert [value for series, value in counters(VLLM, BOTH_NAMES).raw.items() if "mm_cache" in series] == [7.0]


def test_value_of_a_look_alike_that_is_no_number_is_left_out() -> None:
    found = counters(VLLM, NEW_PAIR + "vllm:mm_cache_queries_total NaN\n")
    assert len(found.raw) == 2
    assert found.raw == counters(VLLM, NEW_PAIR).raw


def test_old_pair_serves_where_the_new_one_is_absent() -> None:
    old = "".join(line + "\n" for line in BOTH_NAMES.splitlines() if "gpu_" in line)
    assert only_tally(counters(VLLM, old)) == Tally(600, 144)


def test_half_a_pair_is_never_completed_from_the_other() -> None:
    half = "\n".join(line for line in BOTH_NAMES.splitlines() if not line.startswith("vllm:prefix_cache_hits_total"))
    with pytest.raises(MetricsError, match="only one of"):
        counters(VLLM, half)


def test_absent_pair_is_an_error_not_zero() -> None:
    with pytest.raises(MetricsError, match="prefix_cache_queries_total"):
        counters(VLLM, "vllm:num_requests_running 0\n")


def test_openmetrics_spelling_with_exemplars_reads_the_same() -> None:
    text = (
        "# TYPE vllm:prefix_cache_hits counter\n"
        'vllm_prefix_cache_hits_total{engine="0"} 96.0\n'
        'vllm_prefix_cache_hits_created{engine="0"} 1.79e+09\n'
        "# TYPE vllm:prefix_cache_queries counter\n"
        'vllm_prefix_cache_queries_total{engine="0"} 100.0 # {trace_id="q"} 1 2.0\n'
        "# EOF\n"
    )
    assert only_tally(counters(VLLM, text)) == Tally(100, 96)


def test_label_values_may_hold_braces_quotes_and_commas() -> None:
    page = read_page('vllm:prefix_cache_hits_total{model_name="org/My \\"M\\" {v1}, x"} 1.1397472e+07 1700000000000\n')
    (sample,) = page.named("vllm:prefix_cache_hits_total")
    assert sample.labels["model_name"] == 'org/My "M" {v1}, x'
    assert tokens([sample]) == 11_397_472


def test_byte_order_mark_is_dropped() -> None:
    assert only_tally(counters(VLLM, "\ufeff" + NEW_PAIR)) == Tally(100, 96)


@pytest.mark.parametrize("body", ["<html>login</html>", '{"detail":"Not Found"}', "Not Found"])
def test_what_is_no_metrics_page_is_refused(body: str) -> None:
    with pytest.raises(MetricsError, match="not a metrics page"):
        read_page(body)


def test_series_that_stands_twice_is_refused_not_added() -> None:
    with pytest.raises(MetricsError, match="twice"):
        read_page(NEW_PAIR + "vllm:prefix_cache_hits_total 96\n")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_value_that_no_counter_can_have_is_refused(value: str) -> None:
    with pytest.raises(MetricsError, match="prefix_cache_hits_total"):
        counters(VLLM, f"vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total {value}\n")


def test_dp_ranks_are_summed_and_tp_ranks_are_not() -> None:
    assert only_tally(counters(SGLANG, RANKS)) == Tally(200, 40)


@given(st.permutations(RANKS.splitlines()))
def test_order_of_lines_does_not_matter(lines: list[str]) -> None:
    assert only_tally(counters(SGLANG, "\n".join(lines) + "\n")) == Tally(200, 40)


def test_one_model_of_several_is_counted_alone() -> None:
    two = "".join(
        f'vllm:prefix_cache_{what}_total{{model_name="{model}"}} {value}\n'
        for model, queries, hits in (("a", 100, 50), ("b", 1000, 0))
        for what, value in (("queries", queries), ("hits", hits))
    )
    assert only_tally(counters(VLLM, two, model="a")) == Tally(100, 50)


def test_sglang_baseline_may_be_empty_and_its_first_tokens_count() -> None:
    before = counters(SGLANG, "")
    after = counters(
        SGLANG,
        'sglang:prefill_effective_tokens_total{mode="input"} 55\n'
        'sglang:prefill_effective_tokens_total{mode="device_hit"} 45\n',
    )
    assert after.since(before)[0] == Tally(100, 45)


def test_sglang_hit_tiers_all_count_and_the_outer_ones_are_external() -> None:
    found = counters(
        SGLANG,
        "".join(
            f'sglang:prefill_effective_tokens_total{{mode="{mode}"}} {value}\n'
            for mode, value in (("input", 10), ("device_hit", 20), ("host_hit", 30), ("storage_hit", 40))
        ),
    )
    assert only_tally(found) == Tally(100, 90)
    assert found.external.hit_tokens == 70


def test_sglang_hits_without_any_input_are_an_error() -> None:
    with pytest.raises(MetricsError, match="input"):
        counters(SGLANG, 'sglang:prefill_effective_tokens_total{mode="device_hit"} 45\n')


def test_older_sglang_is_read_from_prompt_and_cached_tokens() -> None:
    text = 'sglang:prompt_tokens_total{is_streaming="false"} 60\nsglang:prompt_tokens_total{is_streaming="true"} 40\n'
    assert only_tally(counters(SGLANG, text)) == Tally(100, 0)  # no sample before the first hit
    text += 'sglang:cached_tokens_total{cache_source="device"} 20\nsglang:cached_tokens_total{cache_source="host"} 5\n'
    assert only_tally(counters(SGLANG, text)) == Tally(100, 25)


def test_effective_tokens_win_over_those_that_count_retractions_again() -> None:
    text = (
        'sglang:prefill_effective_tokens_total{mode="input"} 100\n'
        'sglang:realtime_tokens_total{mode="prefill_compute"} 11\n'
        'sglang:realtime_tokens_total{mode="prefill_cache"} 89\n'
    )
    assert only_tally(counters(SGLANG, text)) == Tally(100, 0)


def test_sglang_page_of_something_else_names_enable_metrics() -> None:
    with pytest.raises(MetricsError, match="--enable-metrics"):
        counters(SGLANG, "http_requests_total 4\n")


def test_counter_that_falls_or_vanishes_is_noticed() -> None:
    before = counters(VLLM, "vllm:prefix_cache_queries_total 400\nvllm:prefix_cache_hits_total 96\n")
    fell = counters(VLLM, "vllm:prefix_cache_queries_total 120\nvllm:prefix_cache_hits_total 96\n")
    gone = counters(VLLM, NEW_PAIR.replace("total", 'total{engine="1"}'))
    assert "queries_total{} fell" in fell.restarted_since(before)
    assert "queries_total{} fell" in gone.restarted_since(before)
    assert before.restarted_since(before) == ""


def test_counter_made_anew_is_a_restart_even_when_it_has_passed_its_old_value() -> None:
    old, new = (NEW_PAIR + f"vllm:prefix_cache_queries_created {moment}\n" for moment in (1.7e9, 1.8e9))
    assert "made anew" in counters(VLLM, new).restarted_since(counters(VLLM, old))


def test_rates_of_an_interval_are_ratios_of_sums() -> None:
    assert (Tally(10, 0) + Tally(1000, 900)).hit_rate == pytest.approx(0.8911, abs=5e-5)


def test_replicas_are_added_source_by_source() -> None:
    assert only_tally(counters(VLLM, NEW_PAIR) + counters(VLLM, BOTH_NAMES)) == Tally(700, 240)
