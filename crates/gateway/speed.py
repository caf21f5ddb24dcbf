#!/usr/bin/env python3
"""What the gateway costs: the same engines asked directly, through it choosing in turn, and through it choosing by load and prefix.

    cargo build --release -p kv-gateway && crates/gateway/speed.py

By hand, on a machine that does nothing else. Everything runs on this machine: the engines (which answer at once), the gateways and the
load, so the figures are for comparison with one another. Rounds alternate between the three, and each figure is the median of the
rounds. Needs Linux and Python 3; oha, the load tool, is installed into target/tools.
"""

import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
GATEWAY = os.environ.get("KV_GATEWAY", os.path.join(TARGET, "release", "kv-gateway"))
TOOLS = os.environ.get("TOOLS", os.path.join(ROOT, "target", "tools"))
OHA = os.path.join(TOOLS, "bin", "oha")
ENGINES = 4
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = os.environ.get("SECONDS_EACH", "4")
STREAMS = 1_000


def main():
    if not os.path.exists(OHA):
        command = ["cargo", "install", "oha", "--version", "1.16.0", "--locked", "--quiet", "--root", TOOLS]
        subprocess.run(command, check=True)
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        engines = [processes.start("engine", "--instant") for _ in range(ENGINES)]
        gateways = {}
        for policy in ("round-robin", "load"):
            file = os.path.join(folder, f"{policy}.toml")
            with open(file, "w") as settings:
                settings.write(toml(policy, engines))
            gateways[policy] = processes.start("--config", file)
            until_ready(gateways[policy])
        targets = {"direct": engines[0], "in turn": gateways["round-robin"], "by load": gateways["load"]}
        print(f"{ENGINES} engines, {ROUNDS} rounds of {SECONDS} s each, medians\n")
        print("| | | requests/s | against in turn | p50 ms | p99 ms | added p50 ms | added p99 ms |")
        print("|---|---|---|---|---|---|---|---|")
        for streams in (False, True):
            file = os.path.join(folder, "bodies")
            with open(file, "w") as bodies:
                bodies.write(prompts(streams))
            for connections in (1, 32):
                compare(targets, file, streams, connections)
        memory(processes, folder)


def compare(targets, bodies, streams, connections):
    seen = {name: [] for name in targets}
    for _ in range(ROUNDS):
        for name, address in targets.items():
            seen[name].append(load(address, bodies, connections))
    medians = {name: [statistics.median(figure) for figure in zip(*rounds)] for name, rounds in seen.items()}
    pairs = zip(seen["by load"], seen["in turn"])
    ratio = statistics.median(chosen[0] / turn[0] for chosen, turn in pairs)
    what = f"{'stream' if streams else 'JSON'}, {connections} at a time"
    for name, (rate, p50, p99) in medians.items():
        against = f"×{ratio:.2f}" if name == "by load" else ""
        added = ["", ""] if name == "direct" else [f"{p50 - medians['direct'][1]:.2f}", f"{p99 - medians['direct'][2]:.2f}"]
        print(f"| {what} | {name} | {rate:,.0f} | {against} | {p50:.2f} | {p99:.2f} | {added[0]} | {added[1]} |", flush=True)
        what = ""


def load(address, bodies, connections):
    command = [OHA, "-z", f"{SECONDS}s", "-c", str(connections), "-m", "POST", "-T", "application/json", "-Z", bodies]
    command += ["--no-tui", "--output-format", "json", f"http://{address}/v1/completions"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    statuses = told["statusCodeDistribution"]
    if set(statuses) != {"200"}:
        sys.exit(f"{address}: {statuses} {told['errorDistribution']}")
    latency = told["latencyPercentiles"]
    return told["summary"]["requestsPerSec"], latency["p50"] * 1e3, latency["p99"] * 1e3


def prompts(streams):
    """1,000 prompts of 512 tokens, of which the first 384 are one of ten."""
    rng = random.Random(1)
    words = lambda n: "".join(rng.choice("abcdefgh") for _ in range(4 * n))
    systems = [words(384) for _ in range(10)]
    lines = []
    for _ in range(1_000):
        body = {"model": "sim", "prompt": rng.choice(systems) + words(128), "max_tokens": 8, "stream": streams}
        lines.append(json.dumps(body))
    return "\n".join(lines)


def memory(processes, folder):
    """Of a gateway of its own: idle, and with so many streams that do not end."""
    wanted = 2 * STREAMS + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    slow = [processes.start("engine", "--sequences", "1000", "--blocks", "1000000", "--speed", "0.1") for _ in range(ENGINES)]
    file = os.path.join(folder, "memory.toml")
    with open(file, "w") as settings:
        settings.write(toml("load", slow))
    gateway = processes.start("--config", file)
    until_ready(gateway)
    idle = processes.memory(gateway)
    body = json.dumps({"prompt": "x" * 2_048, "max_tokens": 10_000, "stream": True})
    request = f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    host, port = gateway.split(":")
    streams = []
    for _ in range(STREAMS):
        streams.append(socket.create_connection((host, int(port))))
        streams[-1].sendall(request.encode())
    for stream in streams:
        stream.settimeout(120)
        while b"data: " not in stream.recv(4_096):
            pass
    print(f"\nMemory of a gateway: {idle:.0f} MiB idle, {processes.memory(gateway):.0f} MiB with {STREAMS:,} open streams.")


def until_ready(gateway):
    for _ in range(200):
        with socket.create_connection(tuple(gateway.split(":"))) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
            if f':{ENGINES}'.encode() in connection.recv(4_096):
                return
        time.sleep(0.05)
    sys.exit("the gateway does not get ready")


def toml(policy, engines):
    rows = "\n".join(f'[[models.sim.engines]]\nid = {id}\nurl = "http://{address}"' for id, address in enumerate(engines, 1))
    return f'listen = "127.0.0.1:0"\n[models.sim]\npolicy = "{policy}"\n{rows}\n'


class Processes:
    def __enter__(self):
        self.running = {}
        return self

    def start(self, *arguments):
        process = subprocess.Popen([GATEWAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.running[process.stdout.readline().strip().removeprefix("listening on http://")] = process
        return list(self.running)[-1]

    def memory(self, address):
        with open(f"/proc/{self.running[address].pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1_024

    def __exit__(self, *_):
        for process in self.running.values():
            process.kill()
            process.wait()


main()
