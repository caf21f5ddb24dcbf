#!/usr/bin/env bash
# A nats-server, three machines of workers and two routers, all on this machine and started out of order. Prints the routers'
# tables for a few seconds, then ends everything. Fails unless every router hears every worker, forgets them when they leave, and
# every process leaves with 0 when it is interrupted. Takes some 10 s once it is built.
set -euo pipefail
cd "$(dirname "$0")/../.."
machines=3
workers=4 # a machine, as in the example

cargo build --quiet -p actix-kv-metrics-nats --example nats_worker --example nats_router
examples="${CARGO_TARGET_DIR:-target}/debug/examples"
server=target/nats-server/bin/nats-server
[ -x "$server" ] || server=nats-server

port=0
until [ "$port" -gt 0 ] && ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((20000 + RANDOM % 10000))
done
url="nats://127.0.0.1:$port"
logs=$(mktemp -d)
pids=()
end() {
    for pid in "${pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -r "$logs"
}
trap end EXIT

fail() {
    echo "fleet: $*" >&2
    tail -n 20 "$logs"/* >&2
    exit 1
}
start() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$logs/$name" 2>&1 &
    pids+=($!)
    printf -v "pid_${name//-/_}" %s $!
}
leave() { # NAME...: interrupts all of them, then waits for each
    local name pid
    for name; do
        pid="pid_${name//-/_}"
        kill -INT "${!pid}" || fail "$name had ended by itself"
    done
    for name; do
        pid="pid_${name//-/_}"
        wait "${!pid}" || fail "$name left with $?"
    done
}
tables_show() { # N SECONDS: both routers' newest tables have N workers within so many seconds
    local until=$((SECONDS + $2)) router heads
    for router in router-1 router-2; do
        until heads=$(grep ' workers of ' "$logs/$router" | tail -n 1) && [ "${heads%% *}" = "$1" ]; do
            [ "$SECONDS" -lt "$until" ] || fail "$router shows '$heads' instead of $1 workers"
            sleep 0.2
        done
    done
}

start router-1 "$examples/nats_router" "$url"
start machine-1 "$examples/nats_worker" 1 "$url"
sleep 0.5
start server "$server" -a 127.0.0.1 -p "$port"
start machine-2 "$examples/nats_worker" 2 "$url"
start router-2 "$examples/nats_router" "$url"
start machine-3 "$examples/nats_worker" 3 "$url"

tables_show $((machines * workers)) 5
sleep 2
leave machine-1 machine-2 machine-3
tables_show 0 3
leave router-1 router-2
leave server
for name in router-1 router-2 machine-1 machine-2 machine-3; do
    echo "== $name"
    cat "$logs/$name"
done
for machine in $(seq "$machines"); do
    grep -q 'everything arrived: true' "$logs/machine-$machine" || fail "machine $machine lost something"
done
echo "fleet: $((machines * workers)) workers came to both routers, and went"
