"""One eviction policy per file; the file's name is the policy's.

A policy holds, in arrays, what a cache of so many blocks remembers. hitlab.replay compiles its rules into a
kernel that, for each request, counts the leading resident blocks and then accesses every block in order.

NAME       how results call it
VARIANT    the choices this implementation makes where the literature differs
new(trace, capacity_blocks, *, options with defaults) -> cache
           an empty cache, a NamedTuple of arrays and integers; raises UsageError
resident(cache, block) -> bool          a `rule`
access(cache, block)                    a `rule`; called for every reference, in the order of the trace
serve(cache, request, first, end) -> int
           instead of these two, a `rule` called for every request, whose blocks are the references from `first` to
           `end`, for policies that treat a request as a whole, as engines do; returns the leading blocks hit
size_blocks(cache) -> int               blocks resident now
faults(cache) -> list of sentences      what is wrong with the arrays; empty if all is well

curve(trace, *, engine_cap, kernel) -> Curve      if one pass gives the hits at every capacity (hitlab.curve)
IGNORES_CAPACITY = True                           if there is no capacity

An index out of range reads or writes whatever is there: NUMBA_BOUNDSCHECK=1 turns it into an error, and with
NUMBA_DISABLE_JIT=1 the rules run as the Python they are.

`rule` and the queues to build with are in hitlab.queues. Blocks are 0 .. trace.distinct_blocks - 1.
"""
