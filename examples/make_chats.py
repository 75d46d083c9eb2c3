"""Make chats.jsonl.gz, a small trace in Mooncake's form: python examples/make_chats.py

Sessions of a few chat applications. Each application has a long prompt of its own in front of every request;
each turn of a session sends the whole conversation again, so what its last turn left in the cache can be hit
if it is still there. The same file comes out everywhere: only random() is drawn from, with a fixed seed.
"""

import gzip
import heapq
import json
import random
from collections.abc import Iterator
from pathlib import Path

BLOCK_TOKENS = 512
SESSIONS = 700
PROMPTS = (6_300, 2_900, 1_400, 9_700)  # tokens of each application's own prompt, most used first


def requests() -> Iterator[dict[str, object]]:
    """Rows of the trace, by arrival."""
    draw = random.Random(1).random
    numbers: dict[tuple[object, ...], int] = {}

    def number(*content: object) -> int:
        return numbers.setdefault(content, len(numbers))

    # (arrival in ms, session, its application, tokens so far, turns left)
    turns = [
        (int(draw() * 3_600_000), session, int(draw() ** 2 * len(PROMPTS)), 0, 1 + int(draw() ** 2 * 12))
        for session in range(SESSIONS)
    ]
    heapq.heapify(turns)
    while turns:
        arrival, session, app, history, left = heapq.heappop(turns)
        history = history or PROMPTS[app]
        prompt = history + 30 + int(draw() ** 3 * 2_500)
        answer = 20 + int(draw() ** 2 * 900)
        full, rest = divmod(prompt, BLOCK_TOKENS)
        shared = PROMPTS[app] // BLOCK_TOKENS
        ids = [number("prompt", app, i) if i < shared else number(session, i) for i in range(full)]
        if rest:
            ids.append(number(session, full, rest))  # a block that is not full yet is another block when it is
        yield {"timestamp": arrival, "input_length": prompt, "output_length": answer, "hash_ids": ids}
        if left > 1:
            pause = 5_000 + int(draw() ** 3 * 300_000)
            heapq.heappush(turns, (arrival + pause, session, app, prompt + answer, left - 1))


def main() -> None:
    """Write the trace beside this script."""
    text = "".join(json.dumps(row) + "\n" for row in requests())
    path = Path(__file__).with_name("chats.jsonl.gz")
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
