"""Result files: their names, and that they are read back as they were written."""

from pathlib import Path

import msgspec
from helpers import kept_result

from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.results import store
from hitlab.results.run_result import Result


def result(source: str = "real", complete: bool = True) -> Result:
    return kept_result(Experiment(SharedPrefix(64, 1000, 200), "capacity"), source, complete=complete)


def test_result_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = store.save(result(), tmp_path)
    assert path.name == "20261129T230143-vllm-capacity.json"
    assert msgspec.json.decode(path.read_bytes(), type=Result) == result()


def test_second_result_of_the_same_second_gets_its_own_file(tmp_path: Path) -> None:
    first, second = store.save(result(), tmp_path), store.save(result(), tmp_path)
    assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([first.name, second.name])


def test_emulated_and_incomplete_runs_say_so_in_their_name(tmp_path: Path) -> None:
    path = store.save(result("emulated", complete=False), tmp_path)
    assert path.name == "20261129T230143-vllm-capacity-EMULATED-incomplete.json"
