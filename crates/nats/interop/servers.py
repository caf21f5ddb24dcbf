"""A nats-server and an etcd on loopback, for as long as a block lasts."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port):
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def start(name, *command):
    print("starting", name, flush=True)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def servers(nats_server):
    """Yields the URL of the nats-server, and the list of processes that end with the block. Dynamo finds both in the environment."""
    nats, etcd, peer = free_port(), free_port(), free_port()
    folder = tempfile.TemporaryDirectory()
    client = f"http://127.0.0.1:{etcd}"
    peers = f"http://127.0.0.1:{peer}"
    started = [
        start("nats-server", nats_server, "-a", "127.0.0.1", "-p", str(nats)),
        start(
            "etcd", "etcd", "--data-dir", folder.name, "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        ),
    ]
    try:
        wait_for(nats)
        wait_for(etcd)
        url = f"nats://127.0.0.1:{nats}"
        os.environ |= {"NATS_SERVER": url, "ETCD_ENDPOINTS": client, "DYN_EVENT_PLANE": "nats"}
        os.environ.setdefault("DYN_LOG", "error")
        yield url, started
    finally:
        for process in started:
            process.kill()
            process.wait()
