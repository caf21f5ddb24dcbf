//! Messages from whoever may publish: none stops anything, each that is refused is counted.

use std::time::Duration;

use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad};
use actix_kv_metrics_nats::{
    Limits, NatsSubscriberBuilder, NatsSubscriberStats,
    wire::{self, Alive, Form, PART_BYTES},
};

use crate::{
    fleet::{AT_ALL, Inlet, Outlet, SOON, in_system, load, ms},
    server::Server,
};

fn stamp() -> u64 {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_micros() as u64
}

fn says(id: u64, sequence: u64, kind: SnapshotKind, workers: &[(u64, u64)]) -> LoadSnapshot {
    let told = |(worker, active): &(u64, u64)| WorkerLoad {
        worker: (*worker).into(),
        life: 1,
        metrics: Some(load(*active)),
        admitted: Vec::new(),
        age: ms(0),
        reported: Some(ms(0)),
        draining: false,
    };
    LoadSnapshot {
        publisher: PublisherId::new(id, 1),
        sequence,
        kind,
        left: Vec::new(),
        workers: workers.iter().map(told).collect(),
    }
}

fn written(snapshot: &LoadSnapshot) -> Vec<Vec<u8>> {
    wire::encode(snapshot, Duration::ZERO, Form::default(), PART_BYTES).unwrap()
}

/// A client like any other.
pub struct Stranger(async_nats::Client);

impl Stranger {
    pub async fn at(server: &Server) -> Self {
        Self(async_nats::connect(server.url()).await.unwrap())
    }

    pub async fn publish(&self, subject: &str, message: impl Into<Vec<u8>>) {
        let message = message.into().into();
        self.0.publish(subject.to_owned(), message).await.unwrap();
    }

    pub async fn say(&self, snapshot: &LoadSnapshot) {
        let subject = format!("kv.pub.{}.snapshot", snapshot.publisher.id);
        for part in written(snapshot) {
            self.publish(&subject, part).await;
        }
    }

    /// A router that hears whatever is said from now on: it asks once it listens.
    pub async fn start_inlet(
        &self,
        server: &Server,
        with: impl FnOnce(NatsSubscriberBuilder) -> NatsSubscriberBuilder,
    ) -> Inlet {
        let mut asks = self.0.subscribe("kv.resync").await.unwrap();
        self.flush().await;
        let inlet = Inlet::start_with(server.config().build().unwrap(), with).await;
        let asked = futures_util::StreamExt::next(&mut asks);
        actix::clock::timeout(AT_ALL, asked).await.unwrap().unwrap();
        inlet
    }

    pub async fn flush(&self) {
        self.0.flush().await.unwrap();
    }
}

/// Until what was said has been read.
async fn until(inlet: &Inlet, holds: impl Fn(&NatsSubscriberStats) -> bool) -> NatsSubscriberStats {
    let until = std::time::Instant::now() + AT_ALL;
    loop {
        let stats = inlet.stats().await;
        if holds(&stats) {
            return stats;
        }
        assert!(std::time::Instant::now() < until, "{stats:#?}");
        actix::clock::sleep(ms(1)).await;
    }
}

#[test]
fn what_is_cut_foreign_or_of_a_later_version_is_counted_and_changes_nothing() {
    let server = Server::start();
    in_system(async {
        let inlet = Inlet::start(server.config().build().unwrap()).await;
        let outlet = Outlet::start(server.config().build().unwrap()).await;
        outlet.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        let stranger = Stranger::at(&server).await;
        let whole = written(&says(9, 1, SnapshotKind::Full, &[(2, 2), (3, 3)])).remove(0);
        for cut in 0..whole.len() {
            stranger.publish("kv.pub.9.snapshot", &whole[..cut]).await;
        }
        // Another's id, a version to come, other people's messages, text, nothing.
        stranger.publish("kv.pub.8.snapshot", whole.clone()).await;
        stranger.publish("kv.pub.9.snapshot", [2, 0x90]).await;
        stranger.publish("kv.pub.9.snapshot", "hello").await;
        stranger
            .publish("kv.pub.9.alive", vec![0xff; 1 << 19])
            .await;
        let refused = whole.len() as u64 + 4;
        let stats = until(&inlet, |stats| {
            stats.unreadable + stats.lost_loads >= refused
        })
        .await;
        assert_eq!((stats.unreadable, stats.lost_loads), (refused, 0));
        assert_eq!((stats.publishers, inlet.table().await), (1, vec![(1, 5)]));
        outlet.report(1, 6).await;
        inlet.becomes(vec![(1, 6)], SOON).await;
    });
}

#[test]
fn what_comes_twice_late_or_in_another_order_ends_with_the_newest() {
    let server = Server::start();
    in_system(async {
        let stranger = Stranger::at(&server).await;
        let inlet = stranger.start_inlet(&server, |builder| builder).await;
        let full = says(9, 1, SnapshotKind::Full, &[(1, 1), (2, 1)]);
        let second = says(9, 2, SnapshotKind::Delta { after: 1 }, &[(1, 2)]);
        let third = says(9, 3, SnapshotKind::Delta { after: 2 }, &[(1, 3)]);
        for snapshot in [&full, &full, &second, &third, &second, &full, &third] {
            stranger.say(snapshot).await;
        }
        stranger.flush().await;
        until(&inlet, |stats| stats.inbound.snapshots == 7).await;
        inlet.becomes(vec![(1, 3), (2, 1)], SOON).await;
        let stats = inlet.stats().await;
        assert_eq!((stats.inbound.late, stats.inbound.gaps), (4, 0));
        // The third before the second: what is missing is asked for.
        let mut asked = stranger.0.subscribe("kv.resync.10").await.unwrap();
        stranger.flush().await;
        for mut snapshot in [full.clone(), third, second] {
            snapshot.publisher.id = 10;
            stranger.say(&snapshot).await;
        }
        stranger.flush().await;
        let asks = futures_util::StreamExt::next(&mut asked);
        actix::clock::timeout(SOON, asks).await.unwrap().unwrap();
        let mut full = full;
        (full.publisher.id, full.sequence) = (10, 4);
        full.workers[0].worker = 11.into();
        full.workers[1].worker = 12.into();
        stranger.say(&full).await;
        inlet
            .becomes(vec![(1, 3), (2, 1), (11, 1), (12, 1)], SOON)
            .await;
    });
}

#[test]
fn a_million_workers_and_a_hundred_thousand_publishers_stay_within_the_limits() {
    let server = Server::start();
    in_system(async {
        let limits = Limits {
            publishers: 1_000,
            workers: 5_000,
            workers_per_publisher: 3_000,
            ..Limits::default()
        };
        let inlet = Inlet::start(server.config().limits(limits).build().unwrap()).await;
        let outlet = Outlet::start(server.config().build().unwrap()).await;
        outlet.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        let stranger = Stranger::at(&server).await;
        // Ten messages of a hundred thousand workers each: more than one may have.
        let many: Vec<_> = (1_000..101_000).map(|worker| (worker, 1)).collect();
        for sequence in 1..=10 {
            stranger
                .say(&says(9, sequence, SnapshotKind::Full, &many))
                .await;
        }
        stranger.flush().await;
        // As many as one may have, of three: more than all may have.
        for id in 10..13 {
            let some: Vec<_> = (0..2_500).map(|worker| (id * 10_000 + worker, 1)).collect();
            stranger.say(&says(id, 1, SnapshotKind::Full, &some)).await;
        }
        stranger.flush().await;
        let alive = Alive {
            incarnation: 1,
            sequence: 1,
        };
        let alive = alive.encode(Form::default());
        for id in 100..100_100 {
            let subject = format!("kv.pub.{id}.alive");
            stranger.publish(&subject, alive.clone()).await;
        }
        stranger.flush().await;
        let stats = until(&inlet, |stats| stats.messages >= 100_003).await;
        assert!(stats.publishers <= 1_000 && stats.workers <= 5_000);
        assert!(stats.inbound.too_many_workers > 0, "{stats:#?}");
        outlet.report(1, 6).await;
        let until = std::time::Instant::now() + AT_ALL;
        while !inlet.table().await.contains(&(1, 6)) {
            assert!(std::time::Instant::now() < until);
            actix::clock::sleep(ms(1)).await;
        }
    });
}

#[test]
fn times_in_the_future_are_refused_and_who_may_not_speak_for_a_worker_does_not() {
    let server = Server::start();
    in_system(async {
        let stranger = Stranger::at(&server).await;
        let inlet = stranger.start_inlet(&server, |builder| {
            builder.may_speak(|publisher, worker| worker.worker().0 / 10 == publisher.id)
        });
        let inlet = inlet.await;
        let mut early = says(1, 1, SnapshotKind::Full, &[(11, 1)]);
        early.publisher.incarnation = stamp() + 48 * 3_600_000_000;
        stranger.say(&early).await;
        let mut young = says(1, 1, SnapshotKind::Full, &[(11, 1), (12, 1)]);
        young.workers[0].life = stamp() + 48 * 3_600_000_000;
        stranger.say(&young).await;
        stranger
            .say(&says(2, 1, SnapshotKind::Full, &[(21, 1), (31, 1)]))
            .await;
        stranger.flush().await;
        inlet.becomes(vec![(12, 1), (21, 1)], AT_ALL).await;
        let stats = inlet.stats().await;
        let refused = (
            stats.unreadable,
            stats.lost_loads,
            stats.inbound.not_allowed,
        );
        assert_eq!(refused, (1, 1, 1));
    });
}
