"""Each member of a family as mypy sees it: a module that does not keep its family's protocol is a type error here.

tests/families/test_protocols.py holds that no member is missing.
"""

from engines import sglang, vllm
from engines.cpu import sglang as sglang_cpu
from engines.cpu import vllm as vllm_cpu
from engines.emulated import sglang as sglang_emulated
from engines.emulated import vllm as vllm_emulated
from hitlab.client.dialect import EngineApi
from hitlab.experiment.lab import Lab
from hitlab.experiment.steps import Break, WorkloadFile
from hitlab.servers.cpu.recipe import CpuRecipe
from hitlab.servers.emulated.dialect import EmulatedApi
from hitlab.simulation.policy import Policy
from labs import (
    break_staircase,
    capacity_cliff,
    concurrency,
    counters_and_log,
    granularity,
    hit_rate,
    recovery,
    tenants,
)
from policies import _2q, arc, belady, clock, fifo, lfu, lirs, lru, s3fifo, sieve, unbounded
from policies import sglang as sglang_policy
from policies import vllm as vllm_policy
from workloads import generated_shared_prefix, multi_turn, prefix_repetition, shared_prefix
from workloads import tenants as tenants_workload
from workloads.breaks import burst, capacity, none, salt, token

ENGINES: list[EngineApi] = [sglang, vllm]
EMULATED_ENGINES: list[EmulatedApi] = [sglang_emulated, vllm_emulated]
CPU_RECIPES: list[CpuRecipe] = [sglang_cpu.CPU, vllm_cpu.CPU]
WORKLOADS: list[WorkloadFile] = [
    generated_shared_prefix,
    multi_turn,
    prefix_repetition,
    shared_prefix,
    tenants_workload,
]
BREAKS: list[Break] = [burst, capacity, none, salt, token]
POLICIES: list[Policy] = [
    _2q,
    arc,
    belady,
    clock,
    fifo,
    lfu,
    lirs,
    lru,
    s3fifo,
    sglang_policy,
    sieve,
    unbounded,
    vllm_policy,
]
LABS: list[Lab] = [
    break_staircase.LAB,
    capacity_cliff.LAB,
    concurrency.LAB,
    counters_and_log.LAB,
    granularity.LAB,
    hit_rate.LAB,
    recovery.LAB,
    tenants.LAB,
]
