"""A real router of Dynamo, gated by loads that a publisher of this crate tells; see README.md.

Prints how many of 40 requests each of two workers got.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter

from servers import servers

ENDPOINT = ("interop", "backend", "generate")
MODEL = "interop"
BLOCK = 64
CAPACITY = 1000
THRESHOLD = 0.8
REQUESTS = 40


async def work(runtime, number):
    """Worker `number`, a process of its own: answers each request with its number, and prints its id."""
    from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model

    endpoint = runtime.endpoint(".".join(ENDPOINT))

    async def generate(request):
        yield {"token_ids": [number], "finish_reason": "stop"}

    async def register():
        capacity = ModelRuntimeConfig()
        capacity.total_kv_blocks = CAPACITY
        await register_model(
            ModelInput.Tokens, ModelType.Chat, endpoint, MODEL, MODEL, worker_type=WorkerType.Aggregated,
            kv_cache_block_size=BLOCK, runtime_config=capacity, skip_model_assets=True,
        )
        print(endpoint.connection_id(), flush=True)

    await asyncio.gather(endpoint.serve_endpoint(generate), register())


async def request(router):
    """The number of the worker that answers; else what the router says."""
    tokens = random.choices(range(1 << 16), k=BLOCK)
    try:
        answers = [answer async for answer in await router.generate(tokens, MODEL)]
    except Exception as refused:
        return str(refused)
    return answers[0]["token_ids"][0]


async def until(router, wanted):
    """Requests until the answer is one that only the newest loads explain."""
    end = time.monotonic() + 10
    while not wanted(await request(router)):
        assert time.monotonic() < end, "the loads had no effect"


async def run(runtime, program, url, workers):
    from dynamo.llm import KvRouter, KvRouterConfig, LoadThresholdConfig

    endpoint = runtime.endpoint(".".join(ENDPOINT))
    # Without events of a cache: these workers have none.
    config = KvRouterConfig(use_kv_events=False)
    threshold = LoadThresholdConfig(active_decode_blocks_threshold=THRESHOLD)
    gated = KvRouter(endpoint, BLOCK, config, load_threshold_config=threshold)
    plain = KvRouter(endpoint, BLOCK, config)

    def exhausted(answer):
        return str(answer).startswith("CapacityExhausted")

    def both(counts):
        return counts.keys() == {0, 1}

    for router in gated, plain:
        for number in range(2):
            await until(router, lambda answer: answer == number)
    # The blocks of each worker; the answer that tells that they were heard; what must come out.
    cases = [
        ((801, 801), exhausted, lambda counts: all(map(exhausted, counts))),
        ((801, 0), lambda answer: not exhausted(answer), lambda counts: counts == {1: REQUESTS}),
        ((799, 0), lambda answer: answer == 0, both),
    ]
    for blocks, heard, expected in cases:
        loads = [f"{worker}={used}" for worker, used in zip(workers, blocks)]
        subprocess.run([program, url, *ENDPOINT, str(CAPACITY), *loads], check=True, timeout=30)
        await until(gated, heard)
        for name, router, expects in ("threshold", gated, expected), ("no threshold", plain, both):
            counts = Counter([await request(router) for _ in range(REQUESTS)])
            print(*blocks, name, dict(counts), flush=True)
            assert expects(counts)
    runtime.shutdown()


def main():
    if sys.argv[1] == "worker":
        from dynamo.runtime import dynamo_worker

        return asyncio.run(dynamo_worker()(work)(int(sys.argv[2])))
    nats_server, program = sys.argv[1:]
    with servers(nats_server) as (url, started):
        from dynamo.runtime import dynamo_worker

        for number in range(2):
            command = [sys.executable, "-B", __file__, "worker", str(number)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        workers = [int(process.stdout.readline()) for process in started[-2:]]
        print("workers", *workers, flush=True)
        asyncio.run(dynamo_worker()(run)(program, url, workers))


main()
