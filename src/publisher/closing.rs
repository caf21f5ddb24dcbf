//! Publishers of this process that are shutting down.
//!
//! A reporter has nothing but the publisher's address: whoever makes one during a shutdown learns of it here, before the
//! publisher has heard of the reporter.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use actix::{Addr, WeakAddr};

use super::PublisherActor;
use crate::snapshot::PublisherId;

static CLOSING: Mutex<Vec<(PublisherId, WeakAddr<PublisherActor>)>> = Mutex::new(Vec::new());
/// How many they are; mostly none, and then nobody takes the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, Vec<(PublisherId, WeakAddr<PublisherActor>)>> {
    // Whole at every moment.
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shutdown has begun.
pub(super) fn note(publisher: PublisherId, address: &Addr<PublisherActor>) {
    let mut closing = lock();
    closing.push((publisher, address.downgrade()));
    COUNT.store(closing.len(), Relaxed);
}

/// Whether a shutdown of the publisher at this address has begun, and it is not gone yet.
pub(super) fn is_closing(address: &Addr<PublisherActor>) -> bool {
    if COUNT.load(Relaxed) == 0 {
        return false;
    }
    let address = address.downgrade();
    lock().iter().any(|(_, closing)| *closing == address)
}

/// A publisher is gone.
pub(super) fn forget(publisher: PublisherId) {
    let mut closing = lock();
    closing.retain(|(id, _)| *id != publisher);
    COUNT.store(closing.len(), Relaxed);
}
