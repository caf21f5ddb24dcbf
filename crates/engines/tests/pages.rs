//! Pages of real engines, captured, and what is worked out from them by hand.

use std::{fs, num::NonZeroU32, path::PathBuf};

use actix_kv_metrics_engines::{EngineKind, PageError, ResponseLoad, read_page};

fn page(name: &str) -> String {
    let shared = std::env::var("KV_SHARED").expect("KV_SHARED names the folder");
    let path = PathBuf::from(shared).join("traces/pages").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Active, total, waiting, running of the only rank, 0.
#[track_caller]
fn expect(kind: EngineKind, name: &str, block_tokens: u32, expected: (u64, u64, u64, u64)) {
    let tokens = NonZeroU32::new(block_tokens).unwrap();
    let reports = read_page(kind, &page(name), None, tokens).unwrap();
    assert_eq!(reports.len(), 1, "{name}");
    let metrics = &reports[0].metrics;
    let figures = (
        metrics.kv_stats.kv_active_blocks,
        metrics.kv_stats.kv_total_blocks,
        metrics.worker_stats.num_requests_waiting,
        metrics.worker_stats.request_active_slots,
    );
    assert_eq!((reports[0].rank, figures), (0, expected), "{name}");
    assert!(!reports[0].asleep, "{name}");
}

#[test]
#[ignore = "needs KV_SHARED"]
fn vllm_v1() {
    expect(EngineKind::Vllm, "vllm-0.32.0-idle.txt", 32, (0, 128, 0, 0));
    // 0.40157480314960625 × 128 = 51.4.
    expect(
        EngineKind::Vllm,
        "vllm-0.32.0-load.txt",
        32,
        (51, 128, 0, 3),
    );
    // In tokens 0.40157480314960625 × 4,096 = 1,644.85.
    expect(
        EngineKind::Vllm,
        "vllm-0.32.0-load.txt",
        1,
        (1_645, 4_096, 0, 3),
    );
}

#[test]
#[ignore = "needs KV_SHARED"]
fn vllm_v0() {
    let name = "vllm_v0_idle_aibrix_runtime_doc.prom";
    expect(EngineKind::Vllm, name, 16, (0, 81_767, 0, 0));
    // 3,570 blocks of 16 tokens are 57,120 tokens, and 892.5 blocks of 64.
    let name = "vllm_cache_config_info_H100_opt1.3b_4replicas_server0.prom";
    expect(EngineKind::Vllm, name, 16, (0, 3_570, 0, 0));
    expect(EngineKind::Vllm, name, 64, (0, 893, 0, 0));
}

#[test]
#[ignore = "needs KV_SHARED"]
fn sglang() {
    let name = "sglang_v0.5.10_datadog_fixture_gauges.prom";
    // 37 tokens are in use, whatever `token_usage` says.
    expect(EngineKind::Sglang, name, 1, (37, 430_839, 0, 0));
    // 430,839 / 64 = 6,731.86.
    expect(EngineKind::Sglang, name, 64, (1, 6_732, 0, 0));
    let tokens = NonZeroU32::new(16).unwrap();
    let excerpt = page("sglang_dp8_labels_aibrix_issue1614_excerpt.prom");
    let missing = PageError::Missing {
        series: "sglang:num_used_tokens",
        rank: None,
    };
    let read = read_page(EngineKind::Sglang, &excerpt, None, tokens);
    assert_eq!(read, Err(missing), "it has other series only");
}

#[test]
#[ignore = "needs KV_SHARED"]
fn llama_cpp() {
    expect(
        EngineKind::LlamaCpp,
        "llama-server-idle.txt",
        16,
        (0, 0, 0, 0),
    );
}

#[test]
#[ignore = "needs KV_SHARED"]
fn response_headers_of_vllm() {
    let headers = page("orca-headers.txt");
    let loads = headers
        .lines()
        .filter_map(|line| line.strip_prefix("endpoint-load-metrics: "));
    let loads: Vec<_> = loads
        .map(|load| ResponseLoad::from_header(load).unwrap())
        .collect();
    let figures: Vec<_> = loads
        .iter()
        .map(|load| (load.kv_cache_usage, load.num_requests_waiting))
        .collect();
    assert_eq!(
        figures,
        [(0.716_535_433_070_866_2, 0), (0.724_409_448_818_897_7, 0)]
    );
}
