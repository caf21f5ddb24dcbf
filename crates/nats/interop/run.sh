#!/usr/bin/env bash
# A real Dynamo worker reports to a router of this crate: README.md says what for.
set -euo pipefail
cd "$(dirname "$0")/../../.."
crates/nats/install-nats-server.sh
command -v etcd >/dev/null || apt-get install -qq --yes etcd-server
dynamo=target/interop-dynamo
[ -x $dynamo/bin/python ] || python3 -m venv $dynamo
$dynamo/bin/pip install --quiet ai-dynamo-runtime==1.6.1
cargo build --quiet --release -p actix-kv-metrics-nats --example dynamo_router
nats_server=target/nats-server/bin/nats-server
[ -x $nats_server ] || nats_server=nats-server
exec $dynamo/bin/python -B crates/nats/interop/worker.py $nats_server "${CARGO_TARGET_DIR:-target}/release/examples/dynamo_router"
