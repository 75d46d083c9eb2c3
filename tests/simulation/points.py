"""The points of a sweep as tests read them."""

import json
from typing import Any


def points_of(document: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(each["policy"], each["capacity_blocks"]): each for each in json.loads(document)["points"]}
