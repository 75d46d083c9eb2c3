"""Where `hitlab`, `python -m hitlab` and run.py begin: so small that Ctrl-C finds it ready while the rest loads."""

import sys


def main() -> None:
    """The command line, from its imports on."""
    try:
        try:
            from hitlab.cli import main as run
        except ModuleNotFoundError as error:
            if not error.name or error.name.partition(".")[0] == "hitlab":
                raise
            todo = "use the environment it was installed in, as .venv/bin/python run.py"
            print(f"hitlab: {error.name} is missing here; {todo}", file=sys.stderr)
            sys.exit(1)
        run()
    except KeyboardInterrupt:
        print("hitlab: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
