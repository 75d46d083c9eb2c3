"""Writes the JSON schema of result files from the code that reads and writes them.

python docs/schema.py           # rewrite docs/result.schema.json
python docs/schema.py --check   # exit status 1 when it is out of date
"""

import json
import sys
from pathlib import Path

import msgspec

from hitlab.result import SCHEMA_VERSION, Result

FILE = Path(__file__).resolve().parent / "result.schema.json"


def schema() -> str:
    """The schema as a file has it."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hitlab result, schema_version {SCHEMA_VERSION}",
        **msgspec.json.schema(Result),
    }
    return json.dumps(document, indent=2) + "\n"


def main() -> None:
    """Write the schema, or check it."""
    if "--check" in sys.argv[1:]:
        sys.exit(not FILE.is_file() or FILE.read_text() != schema())
    FILE.write_text(schema())


if __name__ == "__main__":
    main()
