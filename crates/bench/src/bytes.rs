//! An allocator that counts, for memory per worker.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
};

static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Counts the bytes asked for while [`counting`] runs; otherwise one relaxed load a call, for ours and the opponents.
#[derive(Debug)]
pub struct CountingAllocator;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Begins to count; returns what tells the bytes asked for since and not given back.
pub fn counting() -> impl Fn() -> i64 {
    LIVE.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    || LIVE.load(Ordering::SeqCst)
}

/// Keeps what is freed instead of giving it back to the kernel: else bursts measure page faults, by chance one or the
/// other side's.
pub fn keep_the_heap() {
    // SAFETY: sets numbers of the allocator, before any other thread runs.
    let taken = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX) };
    assert_eq!(taken, 1, "the allocator knows this setting");
}

/// Ends it.
pub fn stop_counting() {
    COUNTING.store(false, Ordering::SeqCst);
}

fn count(bytes: i64) {
    if COUNTING.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes, Ordering::Relaxed);
    }
}
