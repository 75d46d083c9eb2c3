"""CPU of `hitlab predict` beside that of importing typer and rich: python -m benchmarks.startup"""

import sys
from statistics import median

from benchmarks.common import HITLAB, arguments, command_cpu_seconds, in_turn, leave, ratio, target


def main() -> None:
    rounds = arguments(__doc__, 21).rounds
    taken = in_turn(
        {
            "predict": lambda: command_cpu_seconds(*HITLAB, "predict"),
            "import typer, rich": lambda: command_cpu_seconds(sys.executable, "-c", "import typer, rich"),
        },
        rounds,
    )
    for name, seconds in taken.items():
        print(f"{name:<34}{1000 * median(seconds):>8.1f} ms CPU, median of {rounds}")
    print()
    leave([target("predict / import typer, rich", ratio(taken, "predict", "import typer, rich"), at_most=1.4)])


if __name__ == "__main__":
    main()
