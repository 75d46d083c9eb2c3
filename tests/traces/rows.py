"""Rows of traces as tests write and read them."""

import json

from hitlab.traces.trace import Trace

ROW = b'{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}\n'


ROWS = ROW + b'{"input_length": 40, "hash_ids": [2]}\n'


def rows(trace: Trace) -> list[tuple[int, list[int]]]:
    bounds = zip(trace.prompt_tokens, trace.starts[:-1], trace.starts[1:], strict=True)
    return [(int(tokens), trace.blocks[start:end].tolist()) for tokens, start, end in bounds]


def line(input_length: object, hash_ids: object) -> bytes:
    return json.dumps({"timestamp": 0, "input_length": input_length, "hash_ids": hash_ids}).encode() + b"\n"


# A coding agent's session with sub-agents
SESSION = {
    "id": "trace_1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 3, "hash_ids": [1, 2]},
        {
            "t": 10.5,
            "type": "subagent",
            "requests": [
                {"t": 0.0, "type": "n", "in": 70, "out": 3, "hash_ids": [3]},
                {"t": 2.0, "type": "subagent", "requests": [{"t": 1.5, "type": "s", "in": 64, "hash_ids": [1]}]},
            ],
        },
        {"t": 11.0, "type": "s", "in": 192, "out": 3, "hash_ids": [1, 2, 4]},
    ],
}
