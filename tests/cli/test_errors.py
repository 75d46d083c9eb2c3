"""What commands print names flags of the command line, and never the fields that Python knows."""

import re
from pathlib import Path

import pytest
from helpers import Hitlab

from hitlab.cli import COMMANDS
from hitlab.flags import FLAGS

VLLM = "--engine vllm --emulate"
CLOSED = "--engine vllm --base-url http://127.0.0.1:9"

# Each goes wrong, or is warned of, in words that the core says of fields: the command, and a flag that it names.
SAID = [
    ("predict --requests 0", "--requests"),
    ("predict --per-group 0", "--per-group"),
    ("predict --prefix-len 0 --suffix-len 0", "--prefix-len"),
    ("predict --break-mode token --break-at 1000", "--break-at"),
    ("predict --workload multi-turn", "--output-len"),
    ("predict --workload multi-turn --output-len 2 --break-mode salt", "--break-mode"),
    (f"measure {VLLM} --dp 0", "--dp"),
    (f"measure {VLLM} --flood-requests x", "--flood-requests"),
    (f"measure {VLLM} --cold-by x", "--cold-by"),
    (f"measure {VLLM} --vocab-range 5:5", "--vocab-range"),
    (f"measure {VLLM} --vocab-size 2", "--vocab-range"),
    (f"measure {VLLM} --prefix-len 50000", "--prefix-len"),
    (f"measure {VLLM} --fault reset=busy", "--cold-by"),
    (f"measure {VLLM} --capacity-blocks 100000 --dry-run --break-mode capacity --flood-requests 3", "--flood-requests"),
    (f"measure {CLOSED}", "--base-url"),
    (f"measure {VLLM} --out FILE", "--out"),
    (f"serve {VLLM} --engine-arg=-x", "--engine-arg"),
    (f"preflight {CLOSED}", "--base-url"),
    (f"watch {CLOSED}", "--base-url"),
    ("log FILE --engine sglang --since x", "--since"),
    (f"record {VLLM} -o x.json --capacity-blocks 4", ""),
    (f"record {VLLM} -o x.json --max-len 100000", "--max-len"),
    ("model FILE", ""),
    ("results list --folder nowhere", "--folder"),
    ("results show nothing --folder .", "--folder"),
    ("report . -o FILE", "--force"),
    (f"lab run recovery {VLLM} --out FILE", "--out"),
    (f"lab run recovery {CLOSED}", "--base-url"),
    ("check --x", "--x"),
    ("replay CHATS --capacity 9 --block-size 7", ""),
    ("replay FILE --capacity 9", ""),
    ("replay ROWS --capacity 9", "--skip-malformed"),
    ("sweep CHATS --model x", "--bytes-per-token"),
    ("sweep CHATS --capacity 9 --csv FILE", "--force"),
    ("trace info ROWS", "--skip-malformed"),
]


def test_every_command_is_among_them() -> None:
    assert {said.split()[0] for said, _ in SAID} == set(COMMANDS)


@pytest.mark.parametrize(("said", "flag"), SAID)
def test_what_is_printed_names_no_field(
    hitlab: Hitlab, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("hello\n")
    (tmp_path / "ROWS").write_text('{"timestamp": 1, "input_length": 5, "hash_ids": [1]}\n{"input_length": 5}\n')
    arguments = said.replace("CHATS", str(root / "examples" / "chats.jsonl.gz")).split()
    ran = hitlab(*arguments)
    printed = ran.out + ran.err
    assert {name for name in re.findall(r"`(\w+)`", printed) if name in FLAGS} == set()
    assert flag in printed
