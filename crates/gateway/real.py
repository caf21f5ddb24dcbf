#!/usr/bin/env python3
"""The gateway before two real vLLM servers on the CPU, with a tiny random model. By hand: a few minutes.

    cargo build --release -p kv-gateway
    REAL_ENGINES=path/to/script DIR=folder crates/gateway/real.py

REAL_ENGINES is a script that starts N vLLM servers with `start N` (model `tiny`, 4 sequences at a time, 128 blocks of 32 tokens, at
127.0.0.1:18101 and up), writes their process ids to DIR/run/vllm-N.pid, and ends them with `stop`. What is running there before is ended.
Prints a transcript, and exits with 1 if anything is not as it should be.
"""

import concurrent.futures
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
GATEWAY = os.environ.get("KV_GATEWAY", os.path.join(TARGET, "release", "kv-gateway"))
SCRIPT, DIR = os.environ["REAL_ENGINES"], os.environ["DIR"]
ENGINES = {1: "http://127.0.0.1:18101", 2: "http://127.0.0.1:18102"}
LEAVE_AFTER = 2.0
failed = []


def main():
    engines("stop")
    began = time.time()
    engines("start", "2")
    say(f"two servers started in {time.time() - began:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "gateway.toml")
        with open(file, "w") as settings:
            settings.write(TOML)
        gateway = subprocess.Popen([GATEWAY, "--config", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            address = gateway.stdout.readline().strip().removeprefix("listening on ")
            threading.Thread(target=lambda: gateway.stderr.read(), daemon=True).start()
            drive(address)
            gateway.send_signal(signal.SIGTERM)
            check("told to stop it exits with 0", gateway.wait(30) == 0)
        finally:
            gateway.kill()
            engines("stop")
    sys.exit(f"failed: {failed}" if failed else 0)


def drive(gateway):
    until("both engines are ready", lambda: ready(gateway) == 2, 10)
    passes_through(gateway)
    spreads(gateway)
    caches(gateway)
    waits(gateway)
    survives(gateway)
    until("nothing is under way or booked at the end", lambda: at_rest(gateway), 10)


def passes_through(gateway):
    for path, body in [
        ("/v1/completions", {"prompt": "once upon a time", "max_tokens": 24}),
        ("/v1/completions", {"prompt": "once upon a time", "max_tokens": 24, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "stream": True}),
        ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4}),
    ]:
        body |= {"model": "tiny", "temperature": 0}
        # Twice, so that what is cached is the same.
        direct = [post(ENGINES[1] + path, body), post(ENGINES[2] + path, body)]
        direct = [post(engine + path, body) for engine in ENGINES.values()]
        through = post(gateway + path, body)
        same = [said(through.text) == said(answer.text) for answer in direct]
        what = f"{path}{' as a stream' if body.get('stream') else ''}"
        check(f"{what}: {len(through.text)} bytes, which say what an engine says", any(same))
    asked = post(ENGINES[1] + "/v1/completions", SHORT, {"endpoint-load-metrics-format": "TEXT"})
    told = asked.headers.get("endpoint-load-metrics", "")
    passed = post(gateway + "/v1/completions", SHORT).headers.get("endpoint-load-metrics")
    heard = metric(gateway, 'kv_gateway_header_reports_total{.*outcome="heard"')
    check(f"{heard:.0f} headers such as {told!r} were heard, and none passed to who did not ask", heard > 0 and passed is None)


def spreads(gateway):
    bodies = [SHORT | {"prompt": f"{number} of forty", "max_tokens": 16} for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: post(gateway + "/v1/completions", body), bodies))
    shares = {id: sum(answer.worker == id for answer in answers) for id in ENGINES}
    check(f"40 prompts, 8 at a time: {shares[1]} to one, {shares[2]} to the other", min(shares.values()) > 0)


def caches(gateway):
    systems = [f"system {number}: " + "the quick brown fox jumps over the lazy dog. " * 12 for number in range(6)]
    cached, prompt, back = 0, 0, 0
    homes = {}
    for turn in range(4):
        for number, system in enumerate(systems):
            answer = post(gateway + "/v1/completions", SHORT | {"prompt": f"{system} question {turn}", "max_tokens": 4})
            usage = json.loads(answer.text)["usage"]
            if turn > 0:
                back += answer.worker == homes[number]
                prompt += usage["prompt_tokens"]
                cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            homes.setdefault(number, answer.worker)
    check(
        f"6 prefixes, 18 requests after the first of each: {back} went where it was, {cached} of {prompt} prompt tokens were cached",
        back >= 16 and cached > prompt / 2,
    )


def waits(gateway):
    body = SHORT | {"max_tokens": 256, "stream": True, "ignore_eos": True, "temperature": 1}
    bodies = [body | {"prompt": f"{number} " + "word " * 300} for number in range(40)]
    most, most_gateway, over = 0, 0, False

    def watch():
        nonlocal most, most_gateway
        while not over:
            for _, rank in ranks(gateway):
                # None: it has not reported since it joined.
                if rank["metrics"]:
                    most = max(most, rank["metrics"]["worker_stats"]["num_requests_waiting"])
            most_gateway = max(most_gateway, metric(gateway, "actix_kv_metrics_waiting_for_room"))
            time.sleep(0.1)

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.time()
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda body: post(gateway + "/v1/completions", body), bodies))
    over = True
    watching.join()
    good = sum(answer.status == 200 and answer.text.rstrip().endswith("[DONE]") for answer in answers)
    shares = {id: sum(answer.worker == id for answer in answers) for id in ENGINES}
    check(
        f"40 streams of 256 tokens at one time: {good} whole in {time.time() - began:.0f} s, {shares[1]} and {shares[2]}; at most {most}"
        f" waited at an engine by its page, {most_gateway:.0f} in the gateway",
        good == 40 and most > 0 and most_gateway > 0,
    )


def survives(gateway):
    body = SHORT | {"max_tokens": 1_900, "stream": True, "ignore_eos": True, "temperature": 1}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(post, gateway + "/v1/completions", body | {"prompt": f"{n} long"}) for n in range(8)]
        time.sleep(1)
        command = command_of(2)
        kill(2)
        killed = time.time()
        ends = {"whole": 0, "told": 0, "other": 0}
        for stream in streams:
            answer = stream.result()
            last = [line for line in answer.text.split("\n\n") if line][-1]
            kind = "whole" if "[DONE]" in last else "told" if "broken_off" in last else "other"
            ends[kind] += 1
    check(
        f"a server killed under 8 streams: {ends['told']} ended with the event `broken_off`, {ends['whole']} were whole",
        ends["told"] > 0 and ends["other"] == 0,
    )
    until(f"it is gone from /workers, within {LEAVE_AFTER:.0f} s of its last page", lambda: [id for id, _ in ranks(gateway)] == [1], 10)
    say(f"seen {time.time() - killed:.1f} s after the kill, streams of the other one included")
    answers = [post(gateway + "/v1/completions", SHORT) for _ in range(10)]
    check("10 requests after it: all from the other one", all(a.status == 200 and a.worker == 1 for a in answers))
    began = time.time()
    start_again(2, command)
    until("started again, it is back", lambda: ready(gateway) == 2, 180)
    say(f"it took {time.time() - began:.0f} s to start")
    bodies = [SHORT | {"prompt": f"{number} again", "max_tokens": 16} for number in range(20)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: post(gateway + "/v1/completions", body), bodies))
    to_it = sum(answer.worker == 2 for answer in answers)
    check(f"20 requests, 8 at a time: {to_it} to it", all(a.status == 200 for a in answers) and to_it > 0)


class Answer:
    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text
        worker = headers.get("x-kv-worker")
        self.worker = int(worker.split("/")[0]) if worker else None


def post(url, body, headers={}):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return Answer(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read().decode())


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def ready(gateway):
    return json.loads(get(gateway + "/ready"))["engines"]["tiny"]


def ranks(gateway):
    workers = json.loads(get(gateway + "/workers"))["workers"]
    return [(worker["id"], rank) for worker in workers for rank in worker["ranks"]]


def at_rest(gateway):
    workers = json.loads(get(gateway + "/workers"))
    booked = sum(rank["booked_requests"] for worker in workers["workers"] for rank in worker["ranks"])
    return workers["open_requests"] == 0 and booked == 0


def metric(gateway, pattern):
    lines = [line for line in get(gateway + "/metrics").splitlines() if re.match(pattern, line)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def said(text):
    """The text of an answer. vLLM cuts a stream by how fast it is read, so that its pieces differ from one time to the next."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events or [text] for choice in json.loads(event)["choices"]]
    message = lambda choice: choice.get("delta") or choice.get("message") or {}
    return "".join(choice.get("text") or message(choice).get("content") or "" for choice in choices)


def engines(*arguments):
    subprocess.run([SCRIPT, *arguments], check=True, stdout=subprocess.DEVNULL, env=os.environ)


def pid_of(number):
    with open(os.path.join(DIR, "run", f"vllm-{number}.pid")) as file:
        return int(file.read())


def command_of(number):
    """Its command line and environment, to start it by again."""
    process = f"/proc/{pid_of(number)}"
    with open(f"{process}/cmdline", "rb") as command, open(f"{process}/environ", "rb") as environment:
        arguments = command.read().decode().rstrip("\0").split("\0")
        variables = (line.split("=", 1) for line in environment.read().decode().rstrip("\0").split("\0"))
        return arguments, dict(variables)


def kill(number):
    """With its engine process: it leads a session of its own."""
    os.killpg(pid_of(number), signal.SIGKILL)


def start_again(number, command):
    arguments, environment = command
    say(f"again: {shlex.join(arguments[:5])} …")
    log = open(os.path.join(DIR, "run", f"vllm-{number}.log"), "a")
    process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    with open(os.path.join(DIR, "run", f"vllm-{number}.pid"), "w") as file:
        file.write(str(process.pid))


def until(what, is_so, seconds):
    end = time.time() + seconds
    while time.time() < end:
        if is_so():
            return check(what, True)
        time.sleep(0.1)
    check(what, False)


def check(what, good):
    print(f"{'ok    ' if good else 'FAILED'} {what}", flush=True)
    if not good:
        failed.append(what)


def say(what):
    print(f"       {what}", flush=True)


SHORT = {"model": "tiny", "prompt": "once", "max_tokens": 4, "temperature": 0}

TOML = f"""
listen = "127.0.0.1:0"
[timeouts]
room = "300s"
[models.tiny]
block_tokens = 32
scrape = {{ every = "250ms", leave_after = "{LEAVE_AFTER:.0f}s" }}
[models.tiny.prefix]
chunk_tokens = 32
# Its tokens are bytes.
bytes_per_token = 1
""" + "".join(f'[[models.tiny.engines]]\nid = {id}\nurl = "{url}"\n' for id, url in ENGINES.items())

main()
