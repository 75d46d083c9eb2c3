"""A recording small enough to write down."""

import json
from typing import Any


def tape_of(**changes: Any) -> bytes:
    """Two requests of 5 tokens to a vLLM with blocks of 4, with changes to the second one's answer."""
    request = {"prompt": [1, 2, 3, 4, 5], "salt": None, "max_tokens": 1, "output": [9], "cached": 0}
    sequence = {
        "requests": [request, request | {"cached": 4} | changes],
        "queries_delta": 10,
        "hits_delta": 4,
    }
    head = {"engine": "vllm", "version": "0.32.0", "block_size": 4, "num_gpu_blocks": 9, "note": "ignored"}
    return json.dumps(head | {"sequences": [sequence]}).encode()
