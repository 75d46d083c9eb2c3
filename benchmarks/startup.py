"""CPU of `predict` beside that of importing typer and rich, run in turn: python benchmarks/startup.py"""

import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

ROUNDS = 21
RUN = Path(__file__).resolve().parent.parent / "run.py"


def cpu_seconds(*arguments: str) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    predict, imports = [], []
    for _ in range(ROUNDS + 1):  # the first round warms the disk cache
        predict.append(cpu_seconds(str(RUN), "predict"))
        imports.append(cpu_seconds("-c", "import typer, rich"))
    ratios = [ours / theirs for ours, theirs in zip(predict[1:], imports[1:], strict=True)]
    print(f"predict           {1000 * median(predict[1:]):6.1f} ms CPU, median of {ROUNDS}")
    print(f"import typer, rich{1000 * median(imports[1:]):6.1f} ms CPU")
    print(f"ratio             {median(ratios):6.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
