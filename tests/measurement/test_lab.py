"""Labs: data that fits any server, and runs that score what real engines scored."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Hitlab, Ran

from hitlab import families
from hitlab.client.dialect import Completion, Reply, load_engine
from hitlab.client.engine_log import FollowedLog
from hitlab.client.http import EngineClient
from hitlab.errors import InputError, UnreachableError
from hitlab.experiment.lab import Lab, Reading, Server, Trial, load_lab
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import SharedPrefix
from hitlab.measurement import lab as labrun
from hitlab.measurement.asked import Asked
from hitlab.measurement.run import Run, prepare_run
from hitlab.report import lab_plot
from hitlab.results import store
from hitlab.results.lab_result import LabResult, rate
from hitlab.servers.emulated import server as emulate

NAMES = families.names("labs")
SERVERS = [
    Server(block_tokens=1),
    Server(block_tokens=16, capacity_tokens=32_752, max_model_tokens=16_384),
    Server(block_tokens=128, capacity_tokens=16_256, ranks=2, max_model_tokens=4096),
]


def lab_of(name: str) -> Lab:
    return load_lab(name)


@pytest.fixture
def run(hitlab: Hitlab, tmp_path: Path) -> Hitlab:
    """`hitlab lab run ARGUMENTS` on an emulated engine, with the points that matter only."""

    def command(name: str, engine: str, *arguments: object) -> Ran:
        return hitlab("lab", "run", name, "--engine", engine, "--emulate", "--quick", "--out", tmp_path, *arguments)

    return command


def kept(folder: Path) -> LabResult:
    (path,) = store.kept_labs(folder)
    return store.load_lab(path)


def hits(result: LabResult, series: str = "", block_tokens: int | None = None) -> dict[Any, int]:
    return {
        point.x: point.hit_tokens
        for part in result.parts
        if block_tokens in (None, part.engine.block_tokens)
        for trial in part.trials
        for point in trial.points
        if point.series == series
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_lab_says_what_it_asks_and_what_to_predict_before_running(name: str) -> None:
    lab = lab_of(name)
    assert lab.question.endswith("?")
    assert all(len(text) > 60 for text in (lab.predict, lab.picture))
    assert lab.title and lab.source and lab.axis.label


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: f"B={server.block_tokens}")
@pytest.mark.parametrize("name", NAMES)
def test_every_lab_has_trials_for_any_server_and_reads_phases_that_they_have(name: str, server: Server) -> None:
    lab = lab_of(name)
    trials = lab.trials(server)
    assert any(not trial.dense for trial in trials)
    for trial in [*trials, *(lab.line(server) if lab.line else [])]:
        phases = {phase.name for phase in plan(trial.experiment, server.ranks).phases}
        for reading in trial.readings:
            assert phases & set(reading.phases)
            tally = labrun.closed_form(trial.experiment, reading.phases, server)
            assert 0 <= tally.hit_tokens <= tally.queried_tokens > 0


def test_hit_rate_reaches_the_worked_case(run: Hitlab, tmp_path: Path) -> None:
    assert run("hit-rate", "sglang").status == 0
    assert hits(kept(tmp_path), block_tokens=1) == {1: 0, 8: 7000, 64: 63_000}
    assert hits(kept(tmp_path), block_tokens=16) == {1: 0, 8: 6944, 64: 62_496}


def test_granularity_steps_at_block_boundaries_and_solves_both_exercises(run: Hitlab, tmp_path: Path) -> None:
    assert run("granularity", "vllm").status == 0
    found = hits(kept(tmp_path))
    assert [found[prefix] for prefix in (15, 16, 17, 31, 32)] == [0, 240, 240, 240, 480]
    assert (found[4096], found[12]) == (99 * 4096, 0)


def test_break_staircase_is_a_line_at_page_1_and_a_staircase_at_16(run: Hitlab, tmp_path: Path) -> None:
    assert run("break-staircase", "sglang").status == 0
    line = {0: 0, 16: 1008, 32: 2016, 400: 25_200, 992: 62_496, 999: 62_937}
    assert hits(kept(tmp_path), block_tokens=1) == line
    assert hits(kept(tmp_path), block_tokens=16) == {**line, 999: 62_496}


def test_break_staircase_predicts_every_index_between_the_points() -> None:
    lab, server = lab_of("break-staircase"), SERVERS[2]
    assert lab.line
    tallies = [labrun.closed_form(trial.experiment, ("break",), server) for trial in lab.line(server)]
    assert [tally.hit_tokens // 62 for tally in tallies] == [128 * (index // 128) for index in range(1000)]


def test_recovery_brings_back_what_was_evicted_and_never_what_is_salted(run: Hitlab, tmp_path: Path) -> None:
    assert run("recovery", "vllm").status == 0
    assert list(hits(kept(tmp_path), "salt").values()) == [62_496, 0, 0, 62_496]
    assert list(hits(kept(tmp_path), "capacity").values()) == [62_496, 0, 62_496, 62_496]


def shares(result: LabResult) -> dict[float, float]:
    return {
        float(point.x): rate(point, point.hit_tokens, True) or 0.0 for trial in result.trials for point in trial.points
    }


@pytest.mark.parametrize(("engine", "just_above"), [("vllm", (0.5, 0.9)), ("sglang", (-0.1, 0.1))])
def test_capacity_cliff_is_a_slope_on_vllm_and_a_wall_on_sglang(
    run: Hitlab, tmp_path: Path, engine: str, just_above: tuple[float, float]
) -> None:
    assert run("capacity-cliff", engine).status == 0
    found = shares(kept(tmp_path))
    assert [share for footprint, share in found.items() if footprint < 1] == [1, 1]
    assert all(just_above[0] < share < just_above[1] for footprint, share in found.items() if 1 < footprint < 1.05)
    assert [share for footprint, share in found.items() if footprint > 1.15] == [0]


def test_concurrency_costs_sglang_what_a_real_one_lost(run: Hitlab, tmp_path: Path) -> None:
    ran = run("concurrency", "sglang")
    assert ran.status == 3
    assert "of 5 points differ from the model, the worst by -" in ran.out  # connections may, on a busy machine
    assert hits(kept(tmp_path), "in one POST") == {8: 60_000, 64: 60_000}  # 78.125 %


def test_concurrency_costs_vllm_nothing(run: Hitlab, tmp_path: Path) -> None:
    assert run("concurrency", "vllm").status == 0
    assert hits(kept(tmp_path), "in one POST") == {8: 62_496, 64: 62_496}


def test_each_tenant_with_a_salt_is_cold_once(run: Hitlab, tmp_path: Path) -> None:
    assert run("tenants", "sglang").status == 0
    assert hits(kept(tmp_path), "a salt for each tenant") == {1: 63_000, 8: 56_000, 64: 0}
    assert hits(kept(tmp_path), "no salts") == {1: 63_000, 64: 63_000}


def test_lab_leaves_points_and_both_pictures_and_says_emulated_in_all(run: Hitlab, tmp_path: Path) -> None:
    ran = run("hit-rate", "vllm", "--seed", 5)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert [Path(name).suffix for name in files] == [".json", ".png", ".svg"]
    assert all("-lab-hit-rate-vllm-EMULATED." in name for name in files)
    (svg,) = tmp_path.glob("*.svg")
    assert "EMULATED vLLM 0.32.0" in svg.read_text()
    assert "EMULATED vLLM 0.32.0" in ran.out
    assert ran.err.startswith("EMULATED")
    (png,) = tmp_path.glob("*.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert kept(tmp_path).command == "hitlab lab run hit-rate --engine vllm --emulate --quick --seed 5"
    seeds = [trial.experiment.seed for trial in kept(tmp_path).trials]
    assert seeds == [5, 6, 7]


def test_picture_is_the_same_for_the_same_result(run: Hitlab, tmp_path: Path) -> None:
    run("hit-rate", "vllm")
    assert lab_plot.svg(kept(tmp_path)) == lab_plot.svg(kept(tmp_path))


def test_results_list_is_not_troubled_by_labs(run: Hitlab, hitlab: Hitlab, tmp_path: Path) -> None:
    run("hit-rate", "vllm")
    ran = hitlab("results", "list", "--folder", tmp_path, "--json")
    assert (json.loads(ran.out), ran.err) == ([], "")


def test_run_that_can_not_be_trusted_makes_the_lab_so(run: Hitlab, tmp_path: Path) -> None:
    ran = run("hit-rate", "vllm", "--fault", "foreign-every=7")
    assert ran.status == 4
    assert "can't be trusted" in ran.out
    assert "check failed, queries add up" in ran.out
    (svg,) = tmp_path.glob("*.svg")
    assert "not to be trusted" in svg.read_text()


def test_error_shows_in_the_table_and_the_status(run: Hitlab) -> None:
    ran = run("hit-rate", "vllm", "--fault", "announced-block-tokens=128", "--block-size", 16)
    assert ran.status in (3, 4)
    assert "points differ" in ran.out or "can't be trusted" in ran.out


def test_interrupted_lab_keeps_the_points_it_has(run: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def interrupted(client: EngineClient, asked: Asked, experiment: Experiment) -> Run:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return await prepare_run(client, asked, experiment)

    monkeypatch.setattr("hitlab.measurement.lab.prepare_run", interrupted)
    ran = run("hit-rate", "vllm")
    assert ran.status == 130
    result = kept(tmp_path)
    assert (len(result.trials), result.complete, result.valid) == (2, False, False)
    assert [path.suffix for path in tmp_path.glob("*incomplete*")]


def test_lab_whose_server_fails_keeps_the_points_it_has(
    run: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def failing(client: EngineClient, asked: Asked, experiment: Experiment) -> Run:
        calls.append(1)
        if len(calls) == 3:
            raise UnreachableError("connection refused", where="http://h:8000", todo="is the server up?")
        return await prepare_run(client, asked, experiment)

    monkeypatch.setattr("hitlab.measurement.lab.prepare_run", failing)
    ran = run("hit-rate", "vllm")
    assert (ran.status, ran.err.splitlines()[-1]) == (1, "hitlab: http://h:8000: connection refused; is the server up?")
    assert len(kept(tmp_path).trials) == 2


def test_newer_lab_file_is_refused_by_name(run: Hitlab, tmp_path: Path) -> None:
    run("hit-rate", "vllm")
    (path,) = store.kept_labs(tmp_path)
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 9', 1))
    with pytest.raises(InputError, match="newer hitlab"):
        store.load_lab(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-lab", "--engine", "vllm"], "no lab named"),
        (["hit-rate", "--engine", "vllm", "--emulate", "--block-size", "16,x"], "--block-size"),
        (
            ["hit-rate", "--engine", "vllm", "--base-url", "http://127.0.0.1:1", "--block-size", "1,16"],
            "one block size",
        ),
        (["hit-rate", "--engine", "vllm", "--emulate", "--cold-by", "luck"], "fresh-prefix"),
    ],
)
def test_what_can_not_be_run_is_refused_in_one_line(hitlab: Hitlab, arguments: list[str], says: str) -> None:
    ran = hitlab("lab", "run", *arguments)
    assert ran.status == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_list_and_show_explain_without_giving_the_answer_first(hitlab: Hitlab) -> None:
    listed = hitlab("lab", "list").out
    assert all(name in listed for name in NAMES)
    shown = hitlab("lab", "show", "break-staircase").out
    assert shown.index("Predict before you run it") < shown.index("The picture, once you have")
    assert json.loads(hitlab("lab", "show", "tenants", "--json").out)["title"].startswith("Tenants")


def test_log_is_read_after_each_step_beside_the_counters(
    hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that gets one line of 17,000 cached and 4,096 new tokens whenever a step is over."""
    log = tmp_path / "sglang.log"
    log.write_text("started\n")
    line = (
        "[2026-11-29 21:14:36] Prefill batch, #new-seq: 18, #new-token: 4096, #cached-token: 17000, token usage: 0.01, "
        "#running-req: 0, #queue-req: 43, \n"
    )
    read = FollowedLog.read

    def written_meanwhile(self: FollowedLog) -> Any:
        with log.open("a") as file:
            file.write(line)
        return read(self)

    monkeypatch.setattr(FollowedLog, "read", written_meanwhile)
    with emulate.start("sglang") as server:
        target = ("--engine", "sglang", "--base-url", server.base_url, "--out", tmp_path, "--log", log)
        ran = hitlab("lab", "run", "counters-and-log", *target)
    assert ran.status == 0
    (trial,) = kept(tmp_path).trials
    steps = ["reset", "cold", "warm", "reset", "break", "repeat"]
    assert [(said.after, said.hit_tokens, said.queried_tokens) for said in trial.log] == [
        (step, 17_000 * number, 21_096 * number) for number, step in enumerate(steps, 1)
    ]
    assert "102,000" in ran.out
    assert "eyeballing" in ran.out


def test_counters_as_they_stand_smear_the_collapse_that_differences_show(run: Hitlab, tmp_path: Path) -> None:
    assert run("counters-and-log", "vllm").status == 0
    assert list(hits(kept(tmp_path), "differences of scrapes").values()) == [62_496, 25_200, 25_600]
    assert list(hits(kept(tmp_path), "counters as they stand").values()) == [62_496, 87_696, 113_296]


def test_reply_to_several_prompts_is_added_up_or_unknown() -> None:
    vllm, sglang = load_engine("vllm"), load_engine("sglang")
    one = {"meta_info": {"prompt_tokens": 1200, "cached_tokens": 0}}
    two = {"meta_info": {"prompt_tokens": 1200, "cached_tokens": 1000}}
    assert sglang.read_completions(Reply(200, json.dumps([one, two]).encode())) == Completion(2400, 1000)
    assert sglang.read_completions(Reply(200, json.dumps([one, {}]).encode())) == Completion(None, None)
    usage = {"usage": {"prompt_tokens": 2400, "prompt_tokens_details": {"cached_tokens": 992}}}  # the last prompt's
    assert vllm.read_completions(Reply(200, json.dumps(usage).encode())) == Completion(2400, None)


def test_salts_are_never_dropped_to_fit_one_post(run: Hitlab, monkeypatch: pytest.MonkeyPatch) -> None:
    def salted(server: Server) -> list[Trial]:
        return [Trial(Experiment(SharedPrefix(8, 64, 8), "salt", prompts_per_post=4), (Reading(1, ("break",)),))]

    changed = replace(lab_of("tenants"), trials=salted)
    monkeypatch.setattr(families.load("labs", "tenants"), "LAB", changed)
    ran = run("tenants", "vllm")
    assert ran.status == 2
    assert "one salt for all" in ran.err


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_rank_is_cold_once_in_a_lab_too(run: Hitlab, tmp_path: Path, engine: str) -> None:
    assert run("hit-rate", engine, "--dp", 2, "--block-size", 16).status == 0
    assert hits(kept(tmp_path)) == {1: 0, 8: 6 * 992, 64: 62 * 992}
