"""The scheduler of emulated engines: requests beside each other."""

from hitlab.cache.sizes import CacheSizes
from hitlab.servers.emulated import server as emulate
from hitlab.servers.emulated.config import EmulatedConfig, Faults
from hitlab.servers.emulated.dialect import load_emulated_engine
from hitlab.servers.emulated.scheduler import Generation, Scheduler
from hitlab.tokens import Prompt


def test_a_request_that_the_pool_can_never_hold_is_given_up() -> None:
    scheduler = Scheduler(
        emulate.settings("vllm", CacheSizes(capacity_blocks=4)), Faults(), load_emulated_engine("vllm").build_cache
    )
    generation = Generation(Prompt(tuple(range(49))))
    scheduler.submit([generation])
    while scheduler.step():
        pass
    assert generation.finish_reason == "error"
    assert scheduler.idle


def test_requests_run_beside_each_other_in_order_of_arrival() -> None:
    scheduler = Scheduler(emulate.settings("vllm"), Faults(), load_emulated_engine("vllm").build_cache)
    finished: list[int] = []
    for number, max_tokens in enumerate((3, 1, 3)):
        generation = Generation(Prompt((number,) * 20), max_tokens)
        generation.on_finish = lambda generation: finished.append(generation.prompt.tokens[0])
        scheduler.submit([generation])
    assert scheduler.step()
    assert [len(generation.output) for generation in scheduler.ranks[0].running] == [1, 1]
    assert not scheduler.reset()
    while scheduler.step():
        pass
    assert finished == [1, 0, 2]
    assert scheduler.reset()


def test_a_full_pool_preempts_the_last_request_and_counts_it_once() -> None:
    # 6 usable blocks of 4: two prompts of 8 take 4, and each needs 3 and more to end.
    config = EmulatedConfig(block_tokens=4, capacity_blocks=7, version="0.32.0")
    scheduler = Scheduler(config, Faults(), load_emulated_engine("vllm").build_cache)
    generations = [Generation(Prompt(tuple(range(10 * n, 10 * n + 8))), max_tokens=12) for n in (1, 2)]
    generations += [Generation(Prompt(tuple(range(100, 112))))]
    finished: list[Generation] = []
    for generation in generations:
        generation.on_finish = finished.append
    scheduler.submit(generations)
    while scheduler.step():
        pass
    assert finished == generations  # the preempted one goes before the one that has not begun
    (counters,) = scheduler.scrape()
    assert [generation.finish_reason for generation in generations] == ["length"] * 3
    assert [generation.preemptions for generation in generations] == [0, 1, 0]
    assert counters.preempted_requests == 1
    assert counters.queried_tokens == 8 + 8 + 12
    alone = Generation(generations[1].prompt, max_tokens=12)
    scheduler.submit([alone])
    while scheduler.step():
        pass
    assert alone.output == generations[1].output


def test_a_reset_with_one_busy_rank_empties_none() -> None:
    config = emulate.settings("vllm", CacheSizes(ranks=2))
    scheduler = Scheduler(config, Faults(hang_post=2), load_emulated_engine("vllm").build_cache)
    prompt = Prompt(tuple(range(100)))
    for _ in range(2):
        scheduler.submit([Generation(prompt)])
        scheduler.step()
    assert not scheduler.reset()
    again = Generation(prompt)
    scheduler.submit([again])
    scheduler.step()
    assert again.hit_tokens == 96
