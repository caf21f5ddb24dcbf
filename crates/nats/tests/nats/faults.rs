//! What breaks, what the routers see of it, and for how long.

use std::time::{Duration, Instant};

use actix::{Context, Handler, Message};
use actix_kv_metrics::{
    KvMetrics, KvMetricsConfig, LoadSnapshot, PublisherConfig, PublisherId, RouterActor,
    SnapshotKind, WorkerLoad,
};
use actix_kv_metrics_nats::NatsSubscriber;

use crate::{
    fleet::{AT_ALL, Inlet, Outlet, SOON, in_system, load, ms},
    proxy::Proxy,
    server::Server,
    strangers::Stranger,
};

const WORKERS: u64 = 20;

/// Values change before, while and after the server is gone for so long.
fn the_server_is_gone(gone: Duration, how: fn(&mut Server), back: fn(&mut Server), soon: Duration) {
    let mut server = Server::start();
    in_system(async {
        let config = server.config().build().unwrap();
        let inlet = Inlet::start(config.clone()).await;
        let outlet = Outlet::start(config).await;
        let before = outlet.keep_changing(WORKERS, 0, ms(700)).await;
        inlet.becomes(before.clone(), AT_ALL).await;
        how(&mut server);
        let last = outlet.keep_changing(WORKERS, before[0].1, gone).await;
        assert_eq!(inlet.table().await.len(), WORKERS as usize);
        back(&mut server);
        let returned = Instant::now();
        let took = inlet.becomes(last.clone(), soon).await;
        // Whatever was under way arrives.
        actix::clock::sleep(ms(600)).await;
        let stale = inlet.stale_since(returned, &last);
        assert!(stale <= 1, "{stale} stale messages");
        assert_eq!(inlet.table().await, last);
        assert!(outlet.flushed(SOON).await);
        let stats = outlet.stats().await;
        println!("gone for {gone:?}: right after {took:?}, {stale} stale messages; {stats:?}");
    });
}

#[test]
fn the_table_is_right_soon_after_a_server_was_killed_for_three_seconds() {
    the_server_is_gone(ms(3_000), Server::kill, Server::up, SOON);
}

#[test]
fn the_table_is_right_soon_after_a_server_was_killed_for_a_moment() {
    the_server_is_gone(ms(300), Server::kill, Server::up, SOON);
}

#[test]
fn the_table_is_right_soon_after_a_server_was_frozen() {
    the_server_is_gone(
        ms(2_000),
        |server| server.freeze(),
        |server| server.thaw(),
        SOON,
    );
}

/// Twice in a row: a full snapshot went out just before the second.
#[test]
fn the_table_is_right_within_the_pause_of_full_snapshots_after_a_second_kill() {
    let mut server = Server::start();
    in_system(async {
        let config = server.config().build().unwrap();
        let inlet = Inlet::start(config.clone()).await;
        let outlet = Outlet::start(config).await;
        let mut last = outlet.keep_changing(WORKERS, 0, ms(300)).await;
        inlet.becomes(last.clone(), AT_ALL).await;
        for _ in 0..3 {
            server.kill();
            last = outlet.keep_changing(WORKERS, last[0].1, ms(50)).await;
            server.up();
            inlet.becomes(last.clone(), ms(900)).await;
        }
    });
}

#[test]
fn a_router_cut_off_for_longer_than_the_lease_keeps_its_table_and_is_right_soon_after() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    in_system(async {
        let lease = ms(900);
        let config = server.config().publisher_lease(lease).build().unwrap();
        let behind = server.config().urls([proxy.url().as_str()]);
        let inlet = Inlet::start(behind.publisher_lease(lease).build().unwrap()).await;
        let outlet = Outlet::start(config).await;
        let before = outlet.keep_changing(WORKERS, 0, ms(700)).await;
        inlet.becomes(before.clone(), AT_ALL).await;
        proxy.cut();
        let last = outlet.keep_changing(WORKERS, before[0].1, 3 * lease).await;
        assert_eq!(inlet.table().await, before);
        proxy.mend();
        inlet.becomes(last.clone(), SOON).await;
        assert_eq!(inlet.stats().await.inbound.leases_ended, 0);
        inlet.stays(last, 2 * lease).await;
    });
}

#[test]
fn a_publisher_cut_off_is_gone_after_its_lease_and_back_soon_after() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    in_system(async {
        let lease = ms(600);
        let config = server.config().publisher_lease(lease);
        let inlet = Inlet::start(config.build().unwrap()).await;
        let behind = server.config().urls([proxy.url().as_str()]);
        let outlet = Outlet::start(behind.publisher_lease(lease).build().unwrap()).await;
        outlet.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        // Quiet, but alive.
        inlet.stays(vec![(1, 5)], 3 * lease).await;
        proxy.cut();
        let took = inlet.becomes(vec![], lease + SOON).await;
        assert!(took >= lease / 3, "gone after {took:?}");
        outlet.report(1, 6).await;
        assert!(!outlet.flushed(ms(50)).await);
        proxy.mend();
        inlet.becomes(vec![(1, 6)], SOON).await;
        assert!(outlet.flushed(SOON).await);
        assert_eq!(inlet.stats().await.inbound.leases_ended, 1);
    });
}

/// What the process in the next test does: publishes one worker's load until it is killed.
#[test]
#[ignore = "a process of another test"]
fn a_process_that_publishes() {
    let Ok(url) = std::env::var("KV_TEST_PUBLISH_TO") else {
        return;
    };
    in_system(async {
        let config = actix_kv_metrics_nats::NatsConfig::builder()
            .urls([url.as_str()])
            .publisher_lease(ms(600));
        let outlet = Outlet::start(config.build().unwrap()).await;
        outlet.report(1, 5).await;
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_publisher_whose_process_is_killed_is_gone_after_its_lease() {
    let server = Server::start();
    in_system(async {
        let lease = ms(600);
        let config = server.config().publisher_lease(lease).build().unwrap();
        let inlet = Inlet::start(config).await;
        let mut process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::a_process_that_publishes", "--ignored"])
            .env("KV_TEST_PUBLISH_TO", server.url())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        process.kill().unwrap();
        process.wait().unwrap();
        let took = inlet.becomes(vec![], lease + SOON).await;
        assert!(took >= lease / 3, "gone after {took:?}");
    });
}

#[test]
fn clocks_an_hour_apart_change_nothing() {
    let server = Server::start();
    in_system(async {
        let stranger = Stranger::at(&server).await;
        let inlet = stranger.start_inlet(&server, |builder| builder).await;
        let hour = 3_600_000_000_u64;
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = now.as_micros() as u64;
        for (sequence, kind) in [
            (1, SnapshotKind::Full),
            (2, SnapshotKind::Delta { after: 1 }),
        ] {
            for (id, stamp) in [(1, now - hour), (2, now), (3, now + hour)] {
                let snapshot = LoadSnapshot {
                    publisher: PublisherId::new(id, stamp),
                    sequence,
                    kind,
                    left: Vec::new(),
                    workers: vec![WorkerLoad {
                        worker: id.into(),
                        life: stamp,
                        metrics: Some(load(10 * id + sequence)),
                        admitted: Vec::new(),
                        age: ms(1),
                        reported: Some(ms(2)),
                        draining: false,
                    }],
                };
                stranger.say(&snapshot).await;
            }
            stranger.flush().await;
            let told = (1..=3).map(|id| (id, 10 * id + sequence)).collect();
            inlet.becomes(told, AT_ALL).await;
        }
        assert_eq!(inlet.stats().await.unreadable, 0);
    });
}

#[test]
fn of_two_processes_with_one_id_the_later_is_heard_and_when_it_goes_the_earlier_again() {
    let server = Server::start();
    in_system(async {
        let config = || server.config().build().unwrap();
        let inlet = Inlet::start(config()).await;
        let same = || PublisherConfig::builder().id(7).build().unwrap();
        let first = Outlet::start_as(same(), config()).await;
        first.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        let second = Outlet::start_as(same(), config()).await;
        second.report(2, 6).await;
        inlet.becomes(vec![(2, 6)], AT_ALL).await;
        // Nobody's marker is taken for the other's.
        assert!(first.flushed(AT_ALL).await && second.flushed(AT_ALL).await);
        drop(second);
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
    });
}

struct Die;

impl Message for Die {
    type Result = ();
}

impl Handler<Die> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: Die, _: &mut Context<Self>) {
        panic!("dies, as told");
    }
}

#[test]
fn a_router_that_replaces_one_that_died_hears_of_publishers_that_are_quiet() {
    let server = Server::start();
    in_system(async {
        let lease = ms(900);
        let config = || server.config().publisher_lease(lease).build().unwrap();
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let subscriber = NatsSubscriber::of_system(config(), kv.clone());
        let _subscriber = subscriber.start().await.unwrap();
        let outlet = Outlet::start(config()).await;
        outlet.report(1, 5).await;
        let knows = async || {
            let until = Instant::now() + AT_ALL;
            loop {
                // While there is no router it is not known either.
                let loads = kv.loads().await;
                if loads.is_ok_and(|loads| loads.workers().len() == 1) {
                    return Instant::now();
                }
                assert!(Instant::now() < until);
                actix::clock::sleep(ms(1)).await;
            }
        };
        knows().await;
        // Long enough that everything may be sent again at once.
        actix::clock::sleep(ms(600)).await;
        let died = Instant::now();
        kv.router().do_send(Die);
        actix::clock::sleep(ms(20)).await;
        let took = knows().await - died;
        assert!(took < lease / 3 + SOON, "{took:?}");
    });
}
