#!/bin/sh
# Runs everything that README.md shows: measure.sh TRACES OUT [SEEDS]
# TRACES holds mooncake-conversation.jsonl and azure-code.csv; tables and plots come into OUT.
set -eu
traces=$1 out=$2 seeds=${3:-5}
cd "$(dirname "$0")/../.."
cargo build --release -p replay
replay=${CARGO_TARGET_DIR:-target}/release/replay
mkdir -p "$out"

run() { # NAME OPTION…
    name=$1
    shift
    echo "$name" >&2
    "$replay" --workers 16 --seeds "$seeds" "$@" >"$out/$name.txt"
}

built_in="--rate-scale 1.5"
mooncake="--trace $traces/mooncake-conversation.jsonl --spread --rate-scale 9"
azure="--trace $traces/azure-code.csv --rate-scale 16"
# What is recommended where requests are held until their first token and engines report backlog.
recommended="--backlog all --report-on arrival --booked-until first-token --min-gap 20 --significance 0.005"

for trace in built_in mooncake azure; do
    eval "options=\$$trace"
    # shellcheck disable=SC2086
    {
        run "$trace-compare-1" $options $recommended --compare
        run "$trace-compare-4" $options $recommended --compare --routers 4 --plot "$out/$trace-compare-4"
        run "$trace-routers" $options $recommended --sweep routers --plot "$out/$trace-sweep"
        run "$trace-latencies" $options $recommended --sweep reports,dispatch --routers 4 --plot "$out/$trace-sweep"
        run "$trace-load" $options $recommended --sweep load,size,incidents
        # Nothing configured.
        run "$trace-defaults-1" $options --sweep booking
        run "$trace-defaults-1-backlog" $options --sweep booking --backlog all --report-on arrival
        run "$trace-defaults-4" $options --sweep booking --routers 4
    }
done
# shellcheck disable=SC2086
{
    run mooncake-engines $mooncake $recommended --sweep engines --routers 4 --plot "$out/mooncake-sweep"
    run azure-engines --trace "$traces/azure-code.csv" --rate-scale 12 $recommended --sweep engines --routers 4 --plot "$out/azure-sweep"
    run mooncake-pulses --trace "$traces/mooncake-conversation.jsonl" --rate-scale 9 $recommended --sweep routers
}
