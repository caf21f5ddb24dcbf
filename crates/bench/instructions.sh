#!/usr/bin/env bash
# Compares the instructions of the hot paths with crates/bench/instructions.txt and fails if one has grown by over 5 %.
# `instructions.sh keep` counts them anew and keeps them.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v valgrind >/dev/null; then
    apt-get update -qq
    apt-get install -qq --yes valgrind
fi
exec cargo run --release --quiet -p kv-metrics-bench --bin instructions -- "${1:-compare}" crates/bench/instructions.txt
