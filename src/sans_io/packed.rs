//! Metrics in as little room as real engines need: every table keeps them for every worker.

use crate::metrics::{DpRank, ForwardPassMetrics, KvStats, WorkerStats};

/// A worker's metrics at rest; every field as it was. What does not fit takes an allocation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Packed(Form);

#[derive(Debug, Clone, PartialEq)]
enum Form {
    Small(Small),
    /// Greater numbers than engines have, or the figures of speculative decoding.
    Large(Box<ForwardPassMetrics>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Small {
    kv_active_blocks: u32,
    kv_total_blocks: u32,
    /// One more than it is; 0 where it is unknown.
    num_prefill_blocks: u32,
    gpu_cache_usage_perc: f32,
    gpu_prefix_cache_hit_rate: f32,
    request_active_slots: u16,
    request_total_slots: u16,
    num_requests_waiting: u16,
    /// One more than it is; 0 where there is none.
    data_parallel_rank: u16,
}

/// What is compared and weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) kv_active_blocks: u64,
    pub(super) kv_total_blocks: u64,
    pub(super) num_requests_waiting: u64,
    pub(super) num_prefill_blocks: Option<u64>,
}

impl Figures {
    /// Whether `kv_active_blocks` is at or over `saturation` (0 to 1) of the capacity.
    /// A capacity of 0 means unknown, which is never saturated.
    #[inline]
    pub(super) fn is_saturated(&self, saturation: f64) -> bool {
        self.kv_total_blocks > 0
            && self.kv_active_blocks as f64 >= saturation * self.kv_total_blocks as f64
    }
}

impl Packed {
    /// What is weighed of it.
    #[inline]
    pub(super) fn figures(&self) -> Figures {
        match &self.0 {
            Form::Small(small) => Figures {
                kv_active_blocks: small.kv_active_blocks.into(),
                kv_total_blocks: small.kv_total_blocks.into(),
                num_requests_waiting: small.num_requests_waiting.into(),
                num_prefill_blocks: small.num_prefill_blocks(),
            },
            Form::Large(metrics) => Figures {
                kv_active_blocks: metrics.kv_stats.kv_active_blocks,
                kv_total_blocks: metrics.kv_stats.kv_total_blocks,
                num_requests_waiting: metrics.worker_stats.num_requests_waiting,
                num_prefill_blocks: metrics.worker_stats.num_prefill_blocks,
            },
        }
    }

    /// As it was.
    #[inline]
    pub(crate) fn unpack(&self) -> ForwardPassMetrics {
        match &self.0 {
            Form::Small(small) => small.unpack(),
            Form::Large(metrics) => ForwardPassMetrics::clone(metrics),
        }
    }
}

impl From<ForwardPassMetrics> for Packed {
    #[inline]
    fn from(metrics: ForwardPassMetrics) -> Self {
        match Small::of(&metrics) {
            Some(small) => Self(Form::Small(small)),
            None => Self::large(metrics),
        }
    }
}

impl Packed {
    #[cold]
    fn large(metrics: ForwardPassMetrics) -> Self {
        Self(Form::Large(Box::new(metrics)))
    }
}

impl Small {
    #[inline]
    fn of(metrics: &ForwardPassMetrics) -> Option<Self> {
        let (worker, kv) = (&metrics.worker_stats, &metrics.kv_stats);
        let (active, total) = (kv.kv_active_blocks, kv.kv_total_blocks);
        let prefill = (worker.num_prefill_blocks).map_or(0, |blocks| blocks.saturating_add(1));
        let slots = worker.request_active_slots;
        let total_slots = worker.request_total_slots;
        let waiting = worker.num_requests_waiting;
        let rank = (worker.data_parallel_rank).map_or(0, |rank| u64::from(rank) + 1);
        let too_great = (active | total | prefill) >> u32::BITS
            | (slots | total_slots | waiting | rank) >> u16::BITS;
        if too_great != 0 || metrics.spec_decode_stats.is_some() {
            return None;
        }
        Some(Self {
            kv_active_blocks: active as u32,
            kv_total_blocks: total as u32,
            num_prefill_blocks: prefill as u32,
            gpu_cache_usage_perc: kv.gpu_cache_usage_perc,
            gpu_prefix_cache_hit_rate: kv.gpu_prefix_cache_hit_rate,
            request_active_slots: slots as u16,
            request_total_slots: total_slots as u16,
            num_requests_waiting: waiting as u16,
            data_parallel_rank: rank as u16,
        })
    }

    #[inline]
    fn num_prefill_blocks(&self) -> Option<u64> {
        self.num_prefill_blocks.checked_sub(1).map(u64::from)
    }

    #[inline]
    fn unpack(&self) -> ForwardPassMetrics {
        ForwardPassMetrics {
            worker_stats: WorkerStats {
                data_parallel_rank: self.data_parallel_rank.checked_sub(1).map(DpRank::from),
                request_active_slots: self.request_active_slots.into(),
                request_total_slots: self.request_total_slots.into(),
                num_requests_waiting: self.num_requests_waiting.into(),
                num_prefill_blocks: self.num_prefill_blocks(),
            },
            kv_stats: KvStats {
                kv_active_blocks: self.kv_active_blocks.into(),
                kv_total_blocks: self.kv_total_blocks.into(),
                gpu_cache_usage_perc: self.gpu_cache_usage_perc,
                gpu_prefix_cache_hit_rate: self.gpu_prefix_cache_hit_rate,
            },
            spec_decode_stats: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SpecDecodeStats;

    #[test]
    fn a_capacity_of_zero_is_never_saturated() {
        let load =
            |active, total| Packed::from(ForwardPassMetrics::new(active, total, 0)).figures();
        assert!(!load(u64::MAX, 0).is_saturated(0.5));
        assert!(load(5, 10).is_saturated(0.5));
        assert!(!load(4, 10).is_saturated(0.5));
    }

    /// Each field at what it may be at most, at the most that fits, at one more, and where it is unknown.
    #[test]
    fn every_field_comes_out_as_it_went_in_and_what_engines_say_takes_32_bytes() {
        assert_eq!(size_of::<Option<Packed>>(), 32);
        let any = || {
            ForwardPassMetrics::new(412, 16_384, 3)
                .with_data_parallel_rank(2)
                .with_request_active_slots(5)
                .with_request_total_slots(256)
                .with_num_prefill_blocks(17)
                .with_gpu_cache_usage_perc(0.25)
                .with_gpu_prefix_cache_hit_rate(-0.5)
        };
        let mut all = vec![
            (true, any()),
            (true, ForwardPassMetrics::default()),
            (
                false,
                any().with_spec_decode_stats(SpecDecodeStats::default()),
            ),
        ];
        for (most, fields) in [
            (u64::from(u32::MAX), 0..2),
            (u64::from(u32::MAX) - 1, 2..3),
            (u64::from(u16::MAX), 3..6),
            (u64::from(u16::MAX) - 1, 6..7),
        ] {
            for field in fields {
                for (fits, number) in [
                    (true, 0),
                    (true, most),
                    (false, most + 1),
                    (false, u64::MAX),
                ] {
                    let mut metrics = any();
                    let (worker, kv) = (&mut metrics.worker_stats, &mut metrics.kv_stats);
                    match field {
                        0 => kv.kv_active_blocks = number,
                        1 => kv.kv_total_blocks = number,
                        2 => worker.num_prefill_blocks = Some(number),
                        3 => worker.num_requests_waiting = number,
                        4 => worker.request_active_slots = number,
                        5 => worker.request_total_slots = number,
                        _ => worker.data_parallel_rank = Some(number as u32),
                    }
                    all.push((fits, metrics));
                }
            }
        }
        for (at, (fits, metrics)) in all.iter().enumerate() {
            let packed = Packed::from(metrics.clone());
            assert_eq!(packed.unpack(), *metrics);
            assert_eq!(matches!(packed.0, Form::Small(_)), *fits, "{metrics:?}");
            let figures = packed.figures();
            assert_eq!(figures.kv_active_blocks, metrics.kv_stats.kv_active_blocks);
            assert_eq!(figures.kv_total_blocks, metrics.kv_stats.kv_total_blocks);
            let stats = &metrics.worker_stats;
            assert_eq!(figures.num_requests_waiting, stats.num_requests_waiting);
            assert_eq!(figures.num_prefill_blocks, stats.num_prefill_blocks);
            for (other, (_, others)) in all.iter().enumerate() {
                let same = packed == Packed::from(others.clone());
                assert_eq!(same, metrics == others, "{at} {other}");
            }
        }
    }
}
