"""CPU of reading a metrics page beside that of splitting it into lines: python -m benchmarks.metrics_page

One page is of the usual size, 54 kB; two are of 20 MB, as servers of many models or adapters show them: one of many
lines, one of three endless labels.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.common import arguments, cpu_seconds, in_turn, leave, ratio, target
from hitlab.client.dialect import load_engine
from hitlab.client.metrics_page import read_page

BIG_BYTES = 20_000_000
USUAL_BYTES = 54_000
VLLM = load_engine("vllm")
WANTED = "".join(
    f'# TYPE vllm:{name} counter\nvllm:{name}{{engine="0",model_name="tiny"}} 12345.0\n'
    for name in ("prefix_cache_queries_total", "prefix_cache_hits_total", "external_prefix_cache_queries_total")
).encode()


def of_lines(size: int) -> bytes:
    """A page of histogram buckets, with the wanted lines in the middle."""
    line = 'vllm:request_latency_seconds_bucket{{engine="0",le="{}",model_name="tiny"}} 12345.0\n'
    half = b"".join(line.format(number).encode() for number in range(size // 2 // len(line)))
    return half + WANTED + half


def of_labels(size: int) -> bytes:
    """A page of three endless labels, with the wanted lines between them."""
    endless = b'vllm:lora_requests_info{running="' + b"adapter-0123," * (size // 3 // 13) + b'"} 1.0\n'
    return endless + WANTED + 2 * endless


def reading(page: bytes) -> None:
    found = VLLM.read_counters(read_page(page, VLLM.METRICS), None)
    assert found.parts


def main() -> None:
    rounds = arguments(__doc__, 9).rounds
    pages = {
        "20 MB of lines": of_lines(BIG_BYTES),
        "20 MB of labels": of_labels(BIG_BYTES),
        "54 kB": of_lines(USUAL_BYTES),
    }
    passed = []
    for name, page in pages.items():
        repeats = max(1, BIG_BYTES // len(page) // 4)

        def many(job: Callable[[], object], repeats: int = repeats) -> None:
            for _ in range(repeats):
                job()

        jobs: dict[str, Callable[[], object]] = {"read": partial(reading, page), "split": page.splitlines}
        taken = in_turn({each: partial(cpu_seconds, partial(many, job)) for each, job in jobs.items()}, rounds)
        big = len(page) > USUAL_BYTES * 2
        passed.append(target(f"{name}: read / split", ratio(taken, "read", "split"), at_most=3, judged=big))
    leave(passed)


if __name__ == "__main__":
    main()
