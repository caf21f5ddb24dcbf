//! What is known of a worker that speaks Dynamo's language, and what it reports by that.

use std::num::NonZeroU32;

use actix_kv_metrics::ForwardPassMetrics;

use super::{ActiveLoad, DynamoLoad, LoadEvent};

/// The newest of each value of one worker rank.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    metrics: ForwardPassMetrics,
    /// Whether its blocks are known: before, there is nothing to report.
    blocks: bool,
}

impl Known {
    /// What it reports now. `total_blocks`: its capacity if it does not tell it, 0 if unknown. `block_tokens`: tokens in a
    /// block; without it prompts that are still to be computed are unknown.
    pub(super) fn handle_load(
        &mut self,
        load: DynamoLoad,
        total_blocks: impl FnOnce() -> u64,
        block_tokens: Option<NonZeroU32>,
    ) -> Option<&ForwardPassMetrics> {
        match load {
            DynamoLoad::Event(event) => self.handle_event(event),
            DynamoLoad::Active { load, .. } => self.handle_active(&load, block_tokens),
        }
        let kv = &mut self.metrics.kv_stats;
        if kv.kv_total_blocks == 0 {
            kv.kv_total_blocks = total_blocks();
        }
        self.blocks.then_some(&self.metrics)
    }

    fn handle_event(&mut self, event: LoadEvent) {
        let old = std::mem::replace(&mut self.metrics, event.metrics).kv_stats;
        let kv = &mut self.metrics.kv_stats;
        for unreadable in event.unreadable {
            match unreadable {
                "gpu_cache_usage_perc" => kv.gpu_cache_usage_perc = old.gpu_cache_usage_perc,
                _ => kv.gpu_prefix_cache_hit_rate = old.gpu_prefix_cache_hit_rate,
            }
        }
        self.blocks = true;
    }

    fn handle_active(&mut self, load: &ActiveLoad, block_tokens: Option<NonZeroU32>) {
        // `None` is below every number.
        if let Some(blocks) = load.active_decode_blocks.max(load.kv_used_blocks) {
            self.metrics.kv_stats.kv_active_blocks = blocks;
            self.blocks = true;
        }
        if let (Some(tokens), Some(block)) = (load.active_prefill_tokens, block_tokens) {
            let blocks = tokens.div_ceil(block.get().into());
            self.metrics.worker_stats.num_prefill_blocks = Some(blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(
        active_decode_blocks: Option<u64>,
        kv_used_blocks: Option<u64>,
        active_prefill_tokens: Option<u64>,
    ) -> DynamoLoad {
        let load = ActiveLoad {
            worker: 7.into(),
            active_decode_blocks,
            active_prefill_tokens,
            kv_used_blocks,
        };
        DynamoLoad::Active {
            load,
            envelope: None,
        }
    }

    fn event(metrics: ForwardPassMetrics, unreadable: &[&'static str]) -> DynamoLoad {
        DynamoLoad::Event(LoadEvent {
            worker: 7.into(),
            metrics,
            unreadable: unreadable.to_vec(),
        })
    }

    fn told(known: &mut Known, load: DynamoLoad) -> Option<ForwardPassMetrics> {
        let reported = known.handle_load(load, || 1_000, NonZeroU32::new(64));
        reported.cloned()
    }

    #[test]
    fn the_greater_of_two_figures_of_blocks_is_taken_and_a_message_with_neither_leaves_what_was() {
        let mut known = Known::default();
        for (decode, used, blocks) in [
            (Some(5), None, 5),
            (None, Some(3), 3),
            (Some(9), Some(77), 77),
            (Some(78), Some(9), 78),
            (None, None, 78),
            (Some(0), None, 0),
        ] {
            let expected = ForwardPassMetrics::new(blocks, 1_000, 0);
            assert_eq!(told(&mut known, active(decode, used, None)), Some(expected));
        }
    }

    #[test]
    fn before_blocks_are_known_nothing_is_reported_but_nothing_is_forgotten() {
        let mut known = Known::default();
        assert_eq!(told(&mut known, active(None, None, Some(65))), None);
        let expected = ForwardPassMetrics::new(4, 1_000, 0).with_num_prefill_blocks(2);
        assert_eq!(
            told(&mut known, active(Some(4), None, None)),
            Some(expected)
        );
    }

    #[test]
    fn tokens_are_blocks_rounded_up_and_unknown_without_the_size_of_a_block() {
        let mut known = Known::default();
        for (tokens, blocks) in [(0, 0), (1, 1), (64, 1), (65, 2), (u64::MAX, 1 << 58)] {
            let reported = told(&mut known, active(Some(0), None, Some(tokens))).unwrap();
            assert_eq!(reported.worker_stats.num_prefill_blocks, Some(blocks));
        }
        let mut known = Known::default();
        let reported = known.handle_load(active(Some(0), None, Some(1)), || 0, None);
        assert_eq!(reported, Some(&ForwardPassMetrics::new(0, 0, 0)));
    }

    #[test]
    fn an_event_is_reported_as_it_is_but_for_what_it_does_not_tell() {
        let mut known = Known::default();
        let metrics = ForwardPassMetrics::new(1, 500, 2)
            .with_gpu_cache_usage_perc(0.5)
            .with_gpu_prefix_cache_hit_rate(0.25);
        let reported = told(&mut known, event(metrics.clone(), &[]));
        assert_eq!(reported, Some(metrics));
        let metrics = ForwardPassMetrics::new(2, 0, 0).with_gpu_prefix_cache_hit_rate(0.75);
        let reported = told(&mut known, event(metrics, &["gpu_cache_usage_perc"]));
        let expected = ForwardPassMetrics::new(2, 1_000, 0)
            .with_gpu_cache_usage_perc(0.5)
            .with_gpu_prefix_cache_hit_rate(0.75);
        assert_eq!(reported, Some(expected.clone()));
        let metrics = ForwardPassMetrics::new(2, 0, 0).with_gpu_cache_usage_perc(0.5);
        let reported = told(&mut known, event(metrics, &["gpu_prefix_cache_hit_rate"]));
        assert_eq!(reported, Some(expected));
    }
}
