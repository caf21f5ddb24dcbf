//! The page, as vLLM 0.32 words it.

use std::fmt::Write;

use crate::{server::SimConfig, stats::SimStats};

/// What a router reads, and what is named so alike that a careless one reads it, too.
pub(super) fn page(config: &SimConfig, stats: SimStats) -> String {
    let mut page = Page {
        text: String::new(),
        model: escaped(&config.model),
    };
    page.family(
        "num_requests_running",
        "gauge",
        [("", stats.running as f64)],
    );
    page.family(
        "num_requests_waiting",
        "gauge",
        [("", stats.waiting as f64)],
    );
    let reasons = [
        (",reason=\"capacity\"", stats.waiting as f64),
        (",reason=\"deferred\"", 0.0),
    ];
    page.family("num_requests_waiting_by_reason", "gauge", reasons);
    let states = [
        (",sleep_state=\"awake\"", 1.0),
        (",sleep_state=\"weights_offloaded\"", 0.0),
        (",sleep_state=\"discard_all\"", 0.0),
    ];
    page.family("engine_sleep_state", "gauge", states);
    let total = f64::from(config.engine.total_blocks);
    let usage = f64::from(stats.active_blocks) / total;
    page.family("kv_cache_usage_perc", "gauge", [("", usage)]);
    for (name, value) in [
        ("prefix_cache_queries", stats.prompt_tokens),
        ("prefix_cache_hits", stats.cached_tokens),
        ("external_prefix_cache_queries", 0),
        ("external_prefix_cache_hits", 0),
        ("num_preemptions", stats.preemptions),
        ("prompt_tokens", stats.prompt_tokens),
        ("prompt_tokens_cached", stats.cached_tokens),
        ("generation_tokens", stats.generated_tokens),
    ] {
        page.family(&format!("{name}_total"), "counter", [("", value as f64)]);
        page.family(&format!("{name}_created"), "gauge", [("", CREATED)]);
    }
    let reasons = [
        (",finished_reason=\"stop\"", 0.0),
        (",finished_reason=\"length\"", stats.finished as f64),
        (",finished_reason=\"abort\"", stats.aborted as f64),
        (",finished_reason=\"error\"", 0.0),
    ];
    page.family("request_success_total", "counter", reasons);
    page.cache_config(config);
    page.text
}

struct Page {
    text: String,
    model: String,
}

impl Page {
    /// Samples that differ by the labels that they have besides those of all.
    fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        samples: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        let Self { text, model } = self;
        let _ = writeln!(
            text,
            "# HELP vllm:{name} {name}.\n# TYPE vllm:{name} {kind}"
        );
        for (label, value) in samples {
            let _ = writeln!(
                text,
                "vllm:{name}{{engine=\"0\",model_name=\"{model}\"{label}}} {value:?}"
            );
        }
    }

    /// It has no model's name, and some of its labels say `None`.
    fn cache_config(&mut self, config: &SimConfig) {
        let (tokens, blocks) = (config.engine.block_tokens, config.engine.total_blocks);
        let size = u64::from(tokens) * u64::from(blocks);
        let _ = writeln!(
            self.text,
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"{tokens}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
             kv_cache_size_tokens=\"{size}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             num_gpu_blocks_override=\"None\"}} 1.0"
        );
    }
}

/// As the exposition format wants the value of a label.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// When counting began: some time.
const CREATED: f64 = 1.796_203_497_974e9;
