"""The command that runs a result again: parsed back, it asks for the very same experiment."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Hitlab, kept_result
from hypothesis import given
from hypothesis import strategies as st

from hitlab import families
from hitlab.cli import _target, build_app, measure
from hitlab.experiment.plan import Experiment, plan
from hitlab.experiment.shape import BreakOptions, SharedPrefix
from hitlab.experiment.steps import load_break, load_workload
from hitlab.experiment.vocabulary import DEFAULT_RANGE, safe_range
from hitlab.flags import FLAGS
from hitlab.measurement.asked import Asked
from hitlab.results import store
from hitlab.results.reproduce import LAB_ONLY, experiment_fields, measure_command
from hitlab.results.run_result import Result, ServerAsked


def result_of(experiment: Experiment, server: ServerAsked | None) -> Result:
    """A kept result of this experiment, of whose measured part nothing matters here."""
    started = server is not None and server.start == "emulate"
    return kept_result(experiment, "emulated" if started else "real", server=server)


def parsed(command: str) -> tuple[_target.Target, Experiment, Asked, Path | None]:
    """What the command line makes of a `hitlab measure` command."""
    found: list[Any] = []

    def instead(where: Any, experiment: Any, asked: Any, log: Any, out: Any, as_json: Any) -> None:
        found.extend((where, experiment, asked, log))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_measure", instead)
        build_app(("measure",))(shlex.split(command)[1:], standalone_mode=False)
    where, experiment, asked, log = found
    return where, experiment, asked, log


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Every workload, break and option that `measure` has, as a run would keep it: fitted by its plan."""
    workload = draw(st.sampled_from(families.names("workloads")))
    file = load_workload(workload)
    groups = draw(st.integers(1, 3))
    shape = SharedPrefix(groups * draw(st.integers(1, 9)), draw(st.integers(1, 90)), draw(st.integers(1, 40)), groups)
    mode = draw(st.sampled_from(families.names("workloads.breaks"))) if file.BREAKABLE else "none"
    takes = load_break(mode).TAKES
    options = BreakOptions(
        draw(st.integers(0, shape.prefix_tokens - 1)) if "at" in takes else 0,
        draw(st.booleans()) if "fixed" in takes else False,
    )
    first = draw(st.integers(0, 40_000))
    experiment = Experiment(
        shape,
        mode,
        options,
        seed=draw(st.integers(0, 2**31)),
        vocab_range=(first, first + draw(st.integers(1, 100_000))),
        concurrency=1 if file.SEQUENTIAL else draw(st.integers(1, 64)),
        flood_requests=draw(st.integers(1, 9000)) if mode == "capacity" else 400,
        flood_tokens=draw(st.integers(1, 9000)) if mode == "capacity" else 4096,
        cold_by=draw(st.sampled_from(["reset", "fresh-prefix"])),
        workload=workload,
        output_tokens=draw(st.integers(2, 50) if file.SEQUENTIAL else st.integers(1, 50)),
    )
    return plan(experiment, 1).experiment


def meant(experiment: Experiment, asked: Asked) -> Experiment:
    """The experiment that would be sent: its vocabulary range is asked for apart and checked against the server."""
    return plan(replace(experiment, vocab_range=asked.vocab_range or DEFAULT_RANGE), 1).experiment


@given(experiments())
def test_command_parses_back_to_the_same_experiment(experiment: Experiment) -> None:
    _, again, asked, _ = parsed(measure_command(result_of(experiment, ServerAsked())))
    assert meant(again, asked) == experiment
    assert not asked.auto_flood
    safe_range(asked.vocab_range, asked.vocab_tokens)  # and a server that does not say its vocabulary takes it


SERVERS = st.builds(
    ServerAsked,
    start=st.sampled_from(["", "cpu"]),
    block_tokens=st.none() | st.integers(1, 512),
    capacity_blocks=st.none() | st.integers(2, 9000),
    ranks=st.none() | st.integers(1, 8),
    timeout_s=st.sampled_from([120.0, 7.5, 600.0]),
    api_key_env=st.none() | st.just("USER_KEY"),
    admin_key_env=st.none() | st.just("ADMIN_KEY"),
)


@given(SERVERS)
def test_command_leads_to_a_server_asked_for_in_the_same_way(server: ServerAsked) -> None:
    where, _, _, _ = parsed(measure_command(result_of(Experiment(SharedPrefix(64, 1000, 200)), server)))
    again = where.as_asked()
    if server.start:  # it gets the sizes that it had, whatever the defaults are by then
        server = msgspec.structs.replace(server, block_tokens=16, capacity_blocks=2047, ranks=None)
    assert again == server
    assert where.base_url == (None if server.start else "http://h:8000")


def test_faults_logs_and_replicas_are_asked_for_again() -> None:
    experiment = Experiment(SharedPrefix(64, 1000, 200))
    faulty = ServerAsked(start="emulate", block_tokens=64, faults=("reset=lies", "lag-scrapes=2"))
    assert parsed(measure_command(result_of(experiment, faulty)))[0].as_asked() == faulty
    urls = ("http://h:8001/metrics", "http://h:8002/metrics")
    replicas = ServerAsked(metrics_urls=urls, log="/var/log/the engine's.log")
    where, _, _, log = parsed(measure_command(result_of(experiment, replicas)))
    assert (where.metrics_urls, str(log)) == (urls, "/var/log/the engine's.log")


def test_every_field_of_an_experiment_has_a_flag_or_is_said_to_be_a_labs_own() -> None:
    fields = set(experiment_fields(Experiment(SharedPrefix(1, 1, 1))))
    assert fields - FLAGS.keys() == LAB_ONLY
    assert set(ServerAsked.__struct_fields__) - FLAGS.keys() == {"start"}


@pytest.mark.parametrize(
    "asked",
    [
        ["--workload", "multi-turn", "--groups", 2, "--per-group", 3, "--output-len", 5],
        ["--workload", "prefix-repetition", "--requests", 10, "--groups", 3],
        ["--workload", "tenants", "--groups", 4, "--requests", 8, "--break-mode", "token", "--break-at", 7],
        ["--break-mode", "capacity", "--flood-requests", "auto", "--capacity-blocks", 600],
        ["--output-len", 3, "--concurrency", 4, "--break-mode", "salt", "--break-fixed"],
        ["--cold-by", "fresh-prefix", "--break-mode", "burst"],
        ["--vocab-range", "2000:30000", "--dp", 2, "--block-size", 32],
    ],
)
def test_command_sends_the_very_same_prompts_again(hitlab: Hitlab, tmp_path: Path, asked: list[Any]) -> None:
    first = hitlab("measure", "--engine", "vllm", "--emulate", "--out", tmp_path, "--json", *asked)
    assert first.status == 0
    result = msgspec.json.decode(first.out, type=Result)
    again = hitlab(*shlex.split(measure_command(result))[1:], "--out", tmp_path, "--json")
    assert again.status == 0
    repeated = msgspec.json.decode(again.out, type=Result)
    assert repeated.experiment == result.experiment
    assert [each.prompts_sha256 for each in repeated.phases] == [each.prompts_sha256 for each in result.phases]


def test_kept_results_of_before_are_read_and_their_commands_parse(root: Path) -> None:
    paths = store.kept(root / "results" / "reference")
    assert len(paths) == 12
    for path in paths:
        result = store.load(path)
        _, again, asked, _ = parsed(measure_command(result))
        assert meant(again, asked) == result.experiment
        assert all(phase.role is not None for phase in result.phases)
    labs = [store.load_lab(path) for path in store.kept_labs(root / "results" / "reference")]
    assert sum(len(lab.trials) for lab in labs) > 50
