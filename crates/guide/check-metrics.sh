#!/usr/bin/env bash
# Scrapes the gateway of the guide and has Prometheus itself judge the page: fails on anything it would warn of.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v promtool >/dev/null; then
    apt-get update -qq
    apt-get install -qq --yes --no-install-recommends prometheus
fi
page=$(cargo run --quiet -p kv-metrics-guide -- metrics)
# Or it would be an empty page without faults. One engine takes no requests: if it is chosen, there is one more choice.
grep -q '^actix_kv_metrics_selections_total [23]$' <<<"$page"
grep -q '^actix_kv_metrics_worker_capacity_blocks{.*} 1024$' <<<"$page"
promtool check metrics <<<"$page"
printf 'promtool finds no fault with %d series\n' "$(grep -cv '^#\|^$' <<<"$page")"
