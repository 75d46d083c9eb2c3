"""What `hitlab sweep` prints, writes and refuses."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers import Hitlab
from rich.console import Console
from simulation.points import points_of

from hitlab import families


def test_the_tables_fit_80_columns_and_name_their_rates(hitlab: Hitlab, chats: Path, here: Path) -> None:
    one = hitlab("sweep", chats, "--policy", "lru", "--capacity", "60,400", "--model", "llama-3.1-8b")
    every = hitlab("sweep", chats, "--policy", "all", "--capacity", "60,400", "--bytes-per-token", "1000")
    for ran in (one, every):
        assert ran.status == 0
        assert max(map(len, ran.out.splitlines())) <= 80
        assert "cold" in ran.out and "steady" in ran.out and "GiB" in ran.out
        assert "min(k*B, L)" in ran.out
    assert "requests" in one.out
    assert "token-weighted" in every.out
    assert all(name in every.out for name in families.names("policies"))
    capped = hitlab("sweep", chats, "--policy", "lru", "--capacity", "60", "--engine-cap")
    assert "floor((L-1)/B)*B" in capped.out


def test_memory_for_blocks_smaller_than_512_tokens_is_enough(hitlab: Hitlab, here: Path) -> None:
    Path("small").write_text('{"chat_id":1,"input_length":33,"hash_ids":[5,6,7]}\n')
    ran = hitlab("sweep", "small", "--policy", "lru", "--memory", "32MiB", "--model", "llama-3.1-8b", "--json")
    assert [capacity for _, capacity in points_of(ran.out)] == [16]


def test_no_name_and_no_number_is_folded(hitlab: Hitlab, chats: Path, here: Path) -> None:
    name = "s3fifo:max_freq=1:small_ratio=0.2" + 70 * "0" + "1"
    lists = ("all", f"lru,{name},fifo")
    for policies in lists:
        command = ("sweep", chats, "--policy", policies, "--capacity", "60,1000000000000", "--warmup", "0")
        ran = hitlab(*command, "--model", "llama-3.1-8b")
        assert ran.status == 0, ran.err
        lines = ran.out.splitlines()
        headings = [line.split() for line in lines if line.startswith("  ") and "blocks" in line]
        shown = [label for heading in headings for label in heading[2:]]
        assert shown == (families.names("policies") if policies == "all" else policies.split(","))
        for heading in headings:
            at = next(number for number, line in enumerate(lines) if line.split() == heading)
            rows = [line.split() for line in lines[at + 2 : at + 4]]
            assert [row[0] for row in rows] == ["60", "1,000,000,000,000"]
            assert all(len(row) == len(heading) for row in rows)
            assert all(cell[-3] == "." for row in rows for cell in row[2:])
    assert max(map(len, ran.out.splitlines())) > 80  # that name alone is as wide


def test_a_narrower_terminal_cuts_no_number(
    hitlab: Hitlab, chats: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = hitlab("sweep", chats, "--policy", "lru,fifo,arc,sieve", "--capacity", "60,400", "--warmup", "0")
    monkeypatch.setattr("hitlab.cli._options.console", lambda: Console(width=30, highlight=False, markup=False))
    narrow = hitlab("sweep", chats, "--policy", "lru,fifo,arc,sieve", "--capacity", "60,400", "--warmup", "0")
    row = next(line for line in wide.out.splitlines() if line.split()[:1] == ["400"])
    assert row in narrow.out


def test_who_wins_everywhere_is_said_for_each_policy_and_table(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--capacity", "60,100", "--json")
    points = points_of(hitlab(*command, "--policy", "lru,belady,fifo").out)
    for phase in ("cold", "steady"):
        rates = {key: each[f"{phase}_token_hit_rate"] for key, each in points.items()}
        assert all(rates["belady", size] > rates["lru", size] > rates["fifo", size] for size in (60, 100))
    ran = hitlab(*command[:-1], "--policy", "belady,lru,fifo,unbounded")
    for said in ("belady beats lru at every capacity here", "lru beats fifo at every capacity here"):
        assert ran.out.splitlines().count(said) == 2
    assert "unbounded beats" not in ran.out
    without_lru = hitlab(*command[:-1], "--policy", "fifo,belady", "--warmup", "0")
    assert "belady beats fifo at every capacity here" in without_lru.out


def test_files_are_named_once_they_are_written(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--policy", "lru,fifo", "--capacity", "60,400", "--json")
    ran = hitlab(*command, "--plot", "a.svg", "--csv", "a.csv", "--requests-out", "a.jsonl")
    assert all(
        f"{what}: {file}\n" in ran.err for what, file in (("plot", "a.svg"), ("csv", "a.csv"), ("requests", "a.jsonl"))
    )
    assert "plot: " not in hitlab(*command, "--plot", here / "missing" / "a.svg").err


def test_where_a_policy_and_lru_change_places_is_said(hitlab: Hitlab, shared: Path, here: Path) -> None:
    trace = shared / "traces" / "conversation_trace.jsonl"
    ran = hitlab("sweep", trace, "--policy", "s3fifo,lru", "--capacity", "6000:7400:lin8", "--warmup", "0")
    assert "s3fifo beats lru up to 6,600 blocks and loses to it from 6,800" in ran.out
    assert "steady" not in ran.out


def test_csv_has_every_field_of_every_point(hitlab: Hitlab, chats: Path, here: Path) -> None:
    command = ("sweep", chats, "--policy", "lru,fifo", "--capacity", "60,400", "--bytes-per-token", "10")
    ran = hitlab(*command, "--csv", here / "points.csv", "--json")
    rows = list(csv.DictReader(io.StringIO((here / "points.csv").read_text())))
    assert [row.pop("memory_bytes") for row in rows] == [str(blocks * 512 * 10) for blocks in (60, 400, 60, 400)]
    assert [{key: str(value) for key, value in each.items()} for each in json.loads(ran.out)["points"]] == rows


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_each_point_s_requests_add_up_to_it(hitlab: Hitlab, chats: Path, here: Path, ending: str) -> None:
    file = here / f"requests.{ending}"
    command = ("sweep", chats, "--policy", "lru,sieve", "--capacity", "60,400", "--json", "--requests-out", file)
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    points = points_of(hitlab(*command).out)
    if ending == "parquet":
        rows = parquet.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 4 * 3068
    sums = dict.fromkeys(points, 0)
    for row in rows:
        sums[row["policy"], row["capacity_blocks"]] += row["hit_tokens"]
    assert sums == {key: each["cold_hit_tokens"] for key, each in points.items()}


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot_names_each_line_and_both_axes(hitlab: Hitlab, chats: Path, here: Path, ending: str) -> None:
    file = here / f"curves.{ending}"
    command = ("sweep", chats, "--policy", "s3fifo,lru,belady", "--capacity", "60:900:log5", "--model", "qwen3-8b")
    assert hitlab(*command, "--plot", file).status == 0
    content = file.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    else:
        for text in (b"s3fifo", b"lru", b"belady", b"cache capacity (blocks)", b"KV memory (GiB)", b"token-weighted"):
            assert text in content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "60", "--memory", "1GiB"), "both --capacity and --memory"),
        (("--memory", "1GiB"), "--memory needs to know"),
        (("--model", "qwen3-8b", "--bytes-per-token", "4"), "both --bytes-per-token and --model"),
        (("--bytes-per-token", "0"), "--bytes-per-token is 0; give 1 to"),
        (("--bytes-per-token", 10**400, "--capacity", "60"), "--bytes-per-token is 1000"),
        (("--memory", "1GiB:2GiB:log3", "--kv-bytes", "0", "--model", "llama-3.1-8b"), "--kv-bytes is 0; give 1 to"),
        (("--memory", "1GiB:2GiB:log3", "--kv-bytes", "-2", "--model", "llama-3.1-8b"), "--kv-bytes is -2; give 1 to"),
        (("--memory", f"1GiB:{'9' * 400}TB", "--model", "llama-3.1-8b"), "of memory; choose up to"),
        (("--model", ""), "no model named ''"),
        (("--capacity", "1:9999999999999999999999:log3"), "a capacity of 9999999999999999999999 blocks; choose 1 to"),
        (("--capacity", "9007199254740993"), "a capacity of 9007199254740993 blocks; choose 1 to"),
        (("--capacity", ""), "'' is no number of blocks"),
        (("--jobs", "0"), "--jobs is 0; give 1 or more"),
        (("--jobs", "-5"), "--jobs is -5; give 1 or more"),
        (("--policy", "lru, LRU"), "--policy has lru twice"),
        (("--policy", "s3fifo:max_freq=1,s3fifo,s3fifo:max-freq=1"), "--policy has s3fifo:max-freq=1 twice"),
        (
            ("--plot", "a.png", "--policy", ",".join(f"s3fifo:max_freq={n}" for n in range(1, 42))),
            "a plot of 41 policies; plot up to 40",
        ),
        (("--warmup", "1"), "a warm-up of 1.0"),
        (("--weight", "block"), "no weight named 'block'"),
        (("--policy", "nobody"), "no policy named 'nobody'"),
        (("--policy", "s3fifo:depth=1"), "has no option depth"),
        (("--policy", "s3fifo:max_freq=1.5"), "S3FIFO's max_freq is 1.5; give a whole number"),
        (("--policy", "s3fifo,lirs", "--capacity", "1,100"), "leave the small queue empty"),
    ],
)
def test_wrong_usage_is_one_line_before_the_trace_is_opened(
    hitlab: Hitlab, here: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = hitlab("sweep", here / "missing", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err


def test_a_trace_without_requests_has_no_rates(hitlab: Hitlab, here: Path) -> None:
    (here / "empty").touch()
    ran = hitlab("sweep", "empty", "--policy", "lru,s3fifo", "--json")
    assert ran.status == 0
    assert ran.err == "no requests in the trace empty\n"
    assert {each["cold_token_hit_rate"] for each in points_of(ran.out).values()} == {None}
    assert hitlab("sweep", "empty", "--plot", "empty.svg").status == 0
