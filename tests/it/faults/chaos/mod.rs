//! Chaos between publishers and routers: snapshots are lost, answered wrongly or never, doubled, late, out of order and come
//! again long after; publishers, routers and what stands between them are stopped, restarted and replaced; two publishers
//! speak of one worker. When that is over, every router ends with the truth within a bound.
//!
//! What the design does not promise is left out:
//!
//! - A transport that answers [`Applied`](actix_kv_metrics::SnapshotAck::Applied) for what it has not delivered.
//! - A router replaced without anybody attaching it, and a publisher that never speaks again: it has no reason to.
//! - A goodbye that is lost when nobody of the same id comes back: the workers stay (a bridge has a lease for that).
//! - What comes again after `stale_after` of silence: two snapshots of growing sequence, of whatever age, are then how a
//!   publisher that was shut out by a forged one is heard again.
//! - A claimant that lost its worker to the other by silence, when that one lets go: it is heard again with a report only.
//! - Stragglers of an earlier incarnation after the last one's goodbye: after a goodbye any other incarnation is heard.

mod drawn;
mod ending;
mod transport;
mod truth;
mod world;

use crate::support::*;
use drawn::BOUND;
use world::World;

async fn chaos(seed: u64) {
    let mut world = World::new(seed).await;
    let mut rng = fastrand::Rng::with_seed(!seed);
    for _ in 0..rng.u32(20..80) {
        for _ in 0..rng.u32(1..4) {
            world.happen().await;
        }
        sleep(ms(rng.u64(..12))).await;
    }
    world.calm_down().await;
    sleep(ms(BOUND)).await;
    assert_so(&world, "after the chaos").await;
    assert_eq!(world.waiting().await, [""; 0], "seed {seed}");

    world.settle_contests().await;
    sleep(STALE_AFTER + ms(BOUND)).await;
    assert_so(&world, "with one claimant of each worker silent").await;

    if rng.bool() {
        world.all_leave().await;
        sleep(ms(BOUND)).await;
        assert_so(&world, "after everybody left").await;
    }
    world.end().await;
    assert_so(&world, "after the end").await;
}

async fn assert_so(world: &World, when: &str) {
    let errors = world.errors().await;
    assert!(errors.is_empty(), "{when}:\n{}", errors.join("\n"));
}

#[test]
fn g9_every_router_ends_with_the_truth_whatever_happens_on_the_way() {
    for seed in chaos_seeds(SEEDS) {
        virtual_time(chaos(seed));
    }
}

const SEEDS: u64 = 1_000;
/// A router's default.
const STALE_AFTER: std::time::Duration = std::time::Duration::from_secs(5);
