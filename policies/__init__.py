"""One eviction policy per file. The file's name is the policy's name: `s3fifo.py` is `--policy s3fifo`.

A policy is a cache of a given number of blocks. It keeps its state in arrays, and a few small functions say what a
request changes. hitlab/simulation/replay.py compiles these functions into one loop over a trace. For each request
the loop counts how many of its leading blocks are resident (the hit) and then accesses every block of it in order.

Each file defines:

NAME        how results name the policy; in lower case it is the file's name
VARIANT     one line: the choices this implementation makes where the literature differs
UNIT        "block" if the policy is shown one block at a time, "request" if one whole request; annotate it `: Final`
BOUNDED     True; False only for an upper bound that ignores the capacity
CURVE       None; or a function (trace, *, engine_cap) that returns the policy's hit-ratio curve, its hit tokens at
            every capacity from one pass (hitlab/simulation/hit_curve.py). A sweep then uses it instead of replays, so
            it must agree with them at every capacity. It is for the default options; others are replayed.
new(trace, capacity_blocks, *, options with defaults) -> cache
            an empty cache: a NamedTuple of arrays and integers. Raises UsageError for options or capacities that
            cannot work; it is also called with an empty trace to check them.
size_blocks(cache) -> int                     blocks resident now
invariant_violations(cache) -> list[str]      what is wrong with the arrays, in sentences; empty if nothing is

and with UNIT "block", both decorated with `rule`:

resident(cache, block) -> bool      whether the block is in the cache
access(cache, block) -> None        use the block; called for every reference, in the order of the trace

or with UNIT "request", decorated with `rule`:

serve(cache, request, first, end) -> int
            serve request number `request`, whose blocks are trace.blocks[first:end]; returns how many leading blocks
            were hits

Blocks are numbered 0 to trace.distinct_blocks - 1. `rule` and the queues, lists and bitmap to build with are in
hitlab/simulation/structures.py. In compiled code an index out of range silently reads or writes other memory: the
environment variable NUMBA_BOUNDSCHECK=1 turns it into an error, and NUMBA_DISABLE_JIT=1 runs the functions as
ordinary Python. docs/policies.md writes a policy step by step. tests/families/protocols.py lists every policy, and
mypy checks each against hitlab/simulation/policy.py.
"""
