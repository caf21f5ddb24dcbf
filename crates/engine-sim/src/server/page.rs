//! The page, as vLLM 0.32 words it.

use crate::{
    engine::{Load, Totals},
    server::SimConfig,
};

/// What a router reads, and what is named so alike that a careless one reads it, too.
pub(super) fn page(config: &SimConfig, load: Load, totals: Totals, generated: u64) -> String {
    let model = &config.model;
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    let gauge = |name: &str, value: f64| {
        format!(
            "# HELP vllm:{name} {name}.\n# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value:?}\n"
        )
    };
    let counter = |name: &str, value: u64| {
        format!("# TYPE vllm:{name}_total counter\nvllm:{name}_total{{{labels}}} {value}.0\n")
    };
    let mut page = String::from("# HELP python_info Python platform information\n");
    page += &gauge("num_requests_running", load.running as f64);
    page += &gauge("num_requests_waiting", load.waiting as f64);
    for (reason, waiting) in [("capacity", load.waiting), ("deferred", 0)] {
        page += &format!(
            "vllm:num_requests_waiting_by_reason{{{labels},reason=\"{reason}\"}} {waiting}.0\n"
        );
    }
    let usage = f64::from(load.active_blocks) / f64::from(load.total_blocks);
    page += &gauge("kv_cache_usage_perc", usage);
    page += &counter("prefix_cache_queries", totals.prompt_tokens);
    page += &counter("prefix_cache_hits", totals.cached_tokens);
    page += &counter("num_preemptions", totals.preemptions);
    page += &counter("prompt_tokens", totals.prompt_tokens);
    page += &counter("generation_tokens", generated);
    page += &format!(
        "vllm:request_success_total{{engine=\"0\",finished_reason=\"length\",model_name=\"{model}\"}} {}.0\n",
        totals.finished
    );
    page += &format!(
        "vllm:cache_config_info{{block_size=\"{}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"{}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{}\"}} 1.0\n",
        config.engine.block_tokens,
        u64::from(load.total_blocks) * u64::from(config.engine.block_tokens),
        load.total_blocks,
    );
    page
}
