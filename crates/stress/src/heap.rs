//! The heap of this process, counted to the byte.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What has been asked for and not been given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// What lives now. Other threads go on meanwhile: it is off by what they do while the counts are read.
pub(crate) fn live() -> Live {
    let stats = COUNTED.stats();
    Live {
        bytes: stats
            .bytes_allocated
            .saturating_sub(stats.bytes_deallocated) as u64,
        blocks: stats.allocations.saturating_sub(stats.deallocations) as u64,
    }
}

/// Bytes asked for so far, given back or not.
pub(crate) fn asked() -> u64 {
    COUNTED.stats().bytes_allocated as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_counts_while_it_lives() {
        let before = live();
        let vector = vec![0_u8; 10_000_000];
        let with = live();
        assert!(with.bytes >= before.bytes + 9_000_000 && with.blocks > 0);
        drop(vector);
        assert!(live().bytes < with.bytes - 9_000_000);
    }
}
