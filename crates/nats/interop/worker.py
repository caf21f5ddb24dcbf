"""A real Dynamo worker whose load a router of this crate follows; see README.md.

Prints, in ms, how long it took from a value's publication to the line of the router that tells it.
"""

import asyncio
import subprocess
import sys
import time

from servers import servers

CHANGES = 200
RANKS = 3
CAPACITY = 16384


class Router:
    """The example `dynamo_router`, and what it prints."""

    def __init__(self, program, url):
        command = [program, url, "interop", str(CAPACITY)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    async def tells(self, line, within=10.0):
        """Waits until it prints this line; lines before it are stepped over and counted."""
        others = 0
        while True:
            read = asyncio.to_thread(self.process.stdout.readline)
            told = (await asyncio.wait_for(read, within)).rstrip("\n")
            if told == line:
                return others
            others += 1

    def end(self):
        self.process.stdin.close()
        return self.process.stdout.read().strip()


async def run(runtime, router):
    from dynamo.llm import WorkerMetricsPublisher

    endpoint = runtime.endpoint("interop.backend.generate")
    publisher = WorkerMetricsPublisher()
    await publisher.create_endpoint(endpoint)
    worker = endpoint.connection_id()
    print("worker", worker, flush=True)

    def line(rank, blocks):
        return f"{worker}/{rank}: {blocks} of {CAPACITY} blocks"

    took = []
    for change in range(1, CHANGES + 1):
        published = time.perf_counter()
        publisher.publish(dp_rank=0, active_decode_blocks=change)
        others = await router.tells(line(0, change))
        assert others == 0, others
        took.append((time.perf_counter() - published) * 1e3)
        await asyncio.sleep(0.02)
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    print(f"{CHANGES} changes of rank 0, each told: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {took[-1]:.1f} ms")

    for rank in range(RANKS):
        publisher.publish(dp_rank=rank, active_decode_blocks=1000 + rank)
    wanted = {line(rank, 1000 + rank) for rank in range(RANKS)}
    while wanted:
        told = await asyncio.to_thread(router.process.stdout.readline)
        wanted.discard(told.rstrip("\n"))
    print(f"{RANKS} ranks at once, all told")

    publisher.publish(dp_rank=0, active_decode_blocks=9, kv_used_blocks=77)
    await router.tells(line(0, 77))
    publisher.publish(dp_rank=0, kv_used_blocks=78)
    await router.tells(line(0, 78))
    print("kv_used_blocks counts where it is greater, and alone")
    print(router.end(), flush=True)
    runtime.shutdown()


def main():
    nats_server, program = sys.argv[1:]
    with servers(nats_server) as (url, started):
        from dynamo.runtime import dynamo_worker

        router = Router(program, url)
        started.append(router.process)
        asyncio.run(dynamo_worker()(run)(router))


main()
