#!/usr/bin/env bash
# Loads that a publisher of this crate tells gate a real router of Dynamo: README.md says what for.
set -euo pipefail
cd "$(dirname "$0")/../../.."
crates/nats/install-nats-server.sh
command -v etcd >/dev/null || apt-get install -qq --yes etcd-server
dynamo=target/interop-dynamo
[ -x $dynamo/bin/python ] || python3 -m venv $dynamo
$dynamo/bin/pip install --quiet ai-dynamo-runtime==1.6.1
cargo build --quiet --release -p actix-kv-metrics-nats --example dynamo_worker
nats_server=target/nats-server/bin/nats-server
[ -x $nats_server ] || nats_server=nats-server
# The router logs each request, whatever DYN_LOG says.
exec $dynamo/bin/python -B crates/nats/interop/gate.py $nats_server "${CARGO_TARGET_DIR:-target}/release/examples/dynamo_worker" \
    2> >(grep -v 'route request completed' >&2)
