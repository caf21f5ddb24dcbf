#!/usr/bin/env bash
# Draws inputs for every fuzz target for SECONDS each (600 if not given), one target at a time, with overflow checks and
# debug assertions, and says how many were tried. What fails is shrunk and printed with its seed.
set -euo pipefail
cd "$(dirname "$0")/../.."
export KV_FUZZ_SECONDS="${1:-600}"
cargo test --release --quiet \
    --config profile.release.debug-assertions=true --config profile.release.overflow-checks=true \
    --test it -- fuzz --nocapture --test-threads=1 2>&1 | grep -E ' inputs in |panicked|seed|smallest|FAILED|error' | sed 's/^\.*//'
