use super::*;

fn tokens(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn read(kind: EngineKind, page: &str, block_tokens: u32) -> Result<Vec<RankReport>, String> {
    read_page(kind, page, None, tokens(block_tokens)).map_err(|error| error.to_string())
}

/// Rank, active, total, waiting, running.
type Figures = (DpRank, u64, u64, u64, u64);

fn figures(reports: &[RankReport]) -> Vec<Figures> {
    let figures = reports.iter().map(|report| {
        let (kv, worker) = (&report.metrics.kv_stats, &report.metrics.worker_stats);
        (
            report.rank,
            kv.kv_active_blocks,
            kv.kv_total_blocks,
            worker.num_requests_waiting,
            worker.request_active_slots,
        )
    });
    figures.collect()
}

#[track_caller]
fn expect(kind: EngineKind, page: &str, block_tokens: u32, expected: &[Figures]) {
    let reports = read(kind, page, block_tokens);
    let figures = reports.as_deref().map(figures);
    assert_eq!(figures, Ok(expected.to_vec()), "{page}");
}

#[track_caller]
fn refuse(kind: EngineKind, page: &str, error: &str) {
    assert_eq!(read(kind, page, 16), Err(error.to_owned()), "{page}");
}

const CONFIG: &str = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0\n";

#[test]
fn vllm_v1_with_two_ranks_in_no_order() {
    let page = r#"
# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="1",model_name="m"} 13.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.2e+03
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.875
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="256",num_cpu_blocks="None"} 1.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="128",num_cpu_blocks="None"} 1.0
"#;
    // 0.875 × 128 = 112; 0.25 × 256 = 64.
    expect(
        EngineKind::Vllm,
        page,
        32,
        &[(0, 112, 128, 1_200, 4), (1, 64, 256, 13, 0)],
    );
    // The same in blocks half the size, and in tokens.
    expect(
        EngineKind::Vllm,
        page,
        16,
        &[(0, 224, 256, 1_200, 4), (1, 128, 512, 13, 0)],
    );
    expect(
        EngineKind::Vllm,
        page,
        1,
        &[(0, 3_584, 4_096, 1_200, 4), (1, 2_048, 8_192, 13, 0)],
    );
}

#[test]
fn vllm_v0_counts_swapped_requests_as_waiting() {
    let page = format!(
        "{CONFIG}vllm:num_requests_running{{model_name=\"m\"}} 5\n\
         vllm:num_requests_swapped{{model_name=\"m\"}} 2\n\
         vllm:num_requests_waiting{{model_name=\"m\"}} 3\n\
         vllm:gpu_cache_usage_perc{{model_name=\"m\"}} 0.5\n\
         vllm:cpu_cache_usage_perc{{model_name=\"m\"}} 0.9\n"
    );
    expect(EngineKind::Vllm, &page, 16, &[(0, 500, 1_000, 5, 5)]);
}

const LOADED: &str =
    "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n";

#[test]
fn vllm_says_its_capacity_in_several_ways() {
    for (labels, total) in [
        ("block_size=\"16\",num_gpu_blocks=\"10\"", 10),
        (
            "block_size=\"16\",num_gpu_blocks=\"None\",kv_cache_size_tokens=\"320\"",
            20,
        ),
        ("block_size=\"None\",kv_cache_size_tokens=\"160\"", 10),
    ] {
        let page = format!("{LOADED}vllm:cache_config_info{{{labels}}} 1\n");
        expect(EngineKind::Vllm, &page, 16, &[(0, total / 2, total, 0, 1)]);
    }
    for (labels, error) in [
        (
            "block_size=\"16\",num_gpu_blocks=\"None\"",
            "the label `num_gpu_blocks` of `vllm:cache_config_info` is `None`",
        ),
        (
            "num_gpu_blocks=\"10\"",
            "the label `block_size` of `vllm:cache_config_info` is `None`",
        ),
        (
            "block_size=\"16\",num_gpu_blocks=\"ten\"",
            "the label `num_gpu_blocks` of `vllm:cache_config_info` is `ten`",
        ),
        (
            "block_size=\"16\",num_gpu_blocks=\"10\",engine=\"x\"",
            "the label `engine` of `vllm:cache_config_info` is `x`",
        ),
    ] {
        let page = format!("{LOADED}vllm:cache_config_info{{{labels}}} 1\n");
        refuse(EngineKind::Vllm, &page, error);
    }
}

#[test]
fn what_is_missing_is_named_and_never_zero() {
    let page = format!("{CONFIG}{LOADED}");
    expect(EngineKind::Vllm, &page, 16, &[(0, 500, 1_000, 0, 1)]);
    for series in [
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:cache_config_info",
    ] {
        let without = page.replace(series, "vllm:other");
        let error = format!("`{series}` is missing for rank 0");
        refuse(EngineKind::Vllm, &without, &error);
    }
    refuse(
        EngineKind::Vllm,
        "",
        "`vllm:kv_cache_usage_perc` is missing",
    );
    refuse(
        EngineKind::Sglang,
        "",
        "`sglang:num_used_tokens` is missing",
    );
    refuse(
        EngineKind::LlamaCpp,
        "llamacpp:requests_processing 1",
        "`llamacpp:requests_deferred` is missing",
    );
    // Of one rank only.
    let two = page.clone() + "vllm:num_requests_waiting{engine=\"1\"} 7\n";
    refuse(
        EngineKind::Vllm,
        &two,
        "`vllm:kv_cache_usage_perc` is missing for rank 1",
    );
}

#[test]
fn a_value_that_can_not_be_is_named() {
    let page = format!("{CONFIG}{LOADED}");
    for (from, to, error) in [
        ("perc 0.5", "perc NaN", "`vllm:kv_cache_usage_perc` is NaN"),
        ("perc 0.5", "perc 50", "`vllm:kv_cache_usage_perc` is 50"),
        (
            "waiting 0",
            "waiting -1",
            "`vllm:num_requests_waiting` is -1",
        ),
        (
            "waiting 0",
            "waiting +Inf",
            "`vllm:num_requests_waiting` is inf",
        ),
        (
            "waiting 0",
            "waiting",
            "`vllm:num_requests_waiting` in line 3 is not a sample",
        ),
        (
            "vllm:num_requests_waiting 0",
            "vllm:num_requests_waiting 0\nvllm:num_requests_waiting{engine=\"0\"} 0",
            "`vllm:num_requests_waiting` is there twice for rank 0",
        ),
    ] {
        refuse(EngineKind::Vllm, &page.replace(from, to), error);
    }
}

#[test]
fn one_of_several_models_must_be_asked_for() {
    let of = |model: &str, waiting: u32| {
        LOADED
            .replace("waiting 0", &format!("waiting {waiting}"))
            .lines()
            .map(|line| line.replacen(' ', &format!("{{model_name=\"{model}\"}} "), 1) + "\n")
            .collect::<String>()
    };
    let page = format!("{CONFIG}{}{}", of("a", 3), of("b", 8));
    refuse(
        EngineKind::Vllm,
        &page,
        "the page is of several models: `a`, `b`",
    );
    let waiting = |model| {
        let reports = read_page(EngineKind::Vllm, &page, Some(model), tokens(16));
        reports.map(|reports| figures(&reports)[0].3)
    };
    assert_eq!((waiting("a"), waiting("b")), (Ok(3), Ok(8)));
    let missing = PageError::Missing {
        series: "vllm:kv_cache_usage_perc",
        rank: None,
    };
    assert_eq!(waiting("c"), Err(missing));
}

#[test]
fn a_vllm_engine_sleeps_while_its_state_awake_is_0() {
    for (awake, asleep) in [("1.0", false), ("0.0", true)] {
        let page = format!(
            "{CONFIG}{LOADED}vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}\n\
             vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"discard_all\"}} 0.0\n"
        );
        assert_eq!(read(EngineKind::Vllm, &page, 16).unwrap()[0].asleep, asleep);
    }
}

/// A line of each series for one rank of SGLang.
fn sglang(labels: &str, used: u32, waiting: u32, running: u32) -> String {
    format!(
        "sglang:num_used_tokens{{{labels}}} {used}\n\
         sglang:num_queue_reqs{{{labels}}} {waiting}\n\
         sglang:num_running_reqs{{{labels}}} {running}\n"
    )
}

#[test]
fn sglang_with_data_parallel_attention_keeps_every_rank() {
    let mut page = String::new();
    for rank in [5, 2, 0, 7] {
        let labels =
            format!("dp_rank=\"{rank}\",tp_rank=\"{rank}\",pp_rank=\"0\",model_name=\"m\"");
        page += &sglang(&labels, rank * 640, rank, rank + 1);
        page += &format!("sglang:max_total_num_tokens{{{labels}}} 6.4e+03\n");
    }
    expect(
        EngineKind::Sglang,
        &page,
        64,
        &[
            (0, 0, 100, 0, 1),
            (2, 20, 100, 2, 3),
            (5, 50, 100, 5, 6),
            (7, 70, 100, 7, 8),
        ],
    );
}

#[test]
fn sglang_with_tensor_parallel_ranks_counts_each_rank_once() {
    let mut page = String::new();
    for (dp, tp, pp) in [(0, 3, 0), (0, 1, 1), (0, 1, 0), (1, 4, 0)] {
        let labels = format!("dp_rank=\"{dp}\",tp_rank=\"{tp}\",pp_rank=\"{pp}\"");
        page += &sglang(&labels, tp * 64 + pp, tp, tp);
        page += &format!("sglang:max_total_num_tokens{{{labels}}} 640\n");
    }
    expect(
        EngineKind::Sglang,
        &page,
        64,
        &[(0, 1, 10, 1, 1), (1, 4, 10, 4, 4)],
    );
}

#[test]
fn sglang_says_its_capacity_in_several_ways() {
    let loads = sglang("", 320, 2, 1);
    for capacity in [
        "sglang:num_pages 100\nsglang:page_size 16\n",
        "sglang:num_pages 1600\nsglang:page_size 1\nsglang:max_total_num_tokens 9\n",
        "sglang:cache_config_info{num_pages=\"100\",page_size=\"16\"} 1\n",
        "sglang:max_total_num_tokens 1600\n",
        "sglang:page_size 16\nsglang:max_total_num_tokens 1600\n",
    ] {
        let page = format!("{loads}{capacity}");
        expect(EngineKind::Sglang, &page, 16, &[(0, 20, 100, 2, 1)]);
        // Without the tokens their share will do: 0.25 × 1,600 = 400 = 25 × 16.
        let page = page.replace("num_used_tokens{} 320", "token_usage{} 0.25");
        expect(EngineKind::Sglang, &page, 16, &[(0, 25, 100, 2, 1)]);
    }
    refuse(
        EngineKind::Sglang,
        &loads,
        "`sglang:max_total_num_tokens` is missing for rank 0",
    );
}

#[test]
fn sglang_with_priorities_counts_all_requests_once() {
    let mut page = sglang("priority=\"\"", 320, 5, 3) + "sglang:max_total_num_tokens 1600\n";
    page += "sglang:num_queue_reqs{priority=\"1\"} 2\nsglang:num_queue_reqs{priority=\"2\"} 3\n";
    expect(EngineKind::Sglang, &page, 16, &[(0, 20, 100, 5, 3)]);
}

#[test]
fn sglangs_json_is_read_in_both_forms() {
    let get_load = r#"[{"rid":null,"dp_rank":1,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":320,"ts_tic":1.5},
        {"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]"#;
    // Its capacity is unknown.
    expect(
        EngineKind::Sglang,
        get_load,
        16,
        &[(0, 0, 0, 0, 0), (1, 20, 0, 2, 3)],
    );
    let loads = r#"{"timestamp":"x","loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,
        "num_used_tokens":320,"max_total_num_tokens":1600,"num_waiting_uncached_tokens":160}]}"#;
    expect(EngineKind::Sglang, loads, 16, &[(0, 20, 100, 2, 3)]);
    let report = &read(EngineKind::Sglang, loads, 16).unwrap()[0];
    assert_eq!(report.metrics.worker_stats.num_prefill_blocks, Some(10));
    for (json, error) in [
        ("[]", "`dp_rank` is missing"),
        (
            r#"[{"dp_rank":0}]"#,
            "not the JSON expected: data did not match any variant of untagged enum Loads",
        ),
        (
            &get_load.replace("\"dp_rank\":0", "\"dp_rank\":1"),
            "`dp_rank` is there twice for rank 1",
        ),
    ] {
        refuse(EngineKind::Sglang, json, error);
    }
}

#[test]
fn llama_cpp_does_not_say_its_capacity() {
    let page = "llamacpp:requests_processing 3\nllamacpp:requests_deferred 7\n";
    expect(EngineKind::LlamaCpp, page, 16, &[(0, 0, 0, 7, 3)]);
}

#[test]
fn no_page_makes_it_slow_or_large() {
    let line = format!("vllm:kv_cache_usage_perc{{l=\"{}", "\\\"".repeat(5 << 19));
    assert!(read(EngineKind::Vllm, &line, 16).is_err());
    let labels = format!(
        "vllm:kv_cache_usage_perc{{{}}} 0.5",
        "a=\"\",".repeat(1 << 20)
    );
    assert!(read(EngineKind::Vllm, &labels, 16).is_err());
    let ranks: String = (0..100_000)
        .map(|rank| format!("vllm:num_requests_waiting{{engine=\"{rank}\"}} 0\n"))
        .collect();
    refuse(
        EngineKind::Vllm,
        &ranks,
        "`vllm:num_requests_waiting` has too many ranks",
    );
}
