//! While nothing goes wrong.

use actix_kv_metrics::{WorkerLeft, WorkerRank};
use actix_kv_metrics_nats::wire::Form;

use crate::{
    fleet::{AT_ALL, Inlet, Outlet, SOON, in_system, ms},
    server::Server,
};

#[test]
fn changes_departures_and_a_graceful_stop_arrive() {
    let server = Server::start();
    in_system(async {
        let inlet = Inlet::start(server.config().build().unwrap()).await;
        let outlet = Outlet::start(server.config().build().unwrap()).await;
        for worker in 0..3 {
            outlet.report(worker, worker + 10).await;
        }
        inlet.becomes(vec![(0, 10), (1, 11), (2, 12)], AT_ALL).await;
        outlet.report(1, 99).await;
        inlet.becomes(vec![(0, 10), (1, 99), (2, 12)], SOON).await;
        let worker = WorkerRank::from(0);
        outlet.publisher.send(WorkerLeft { worker }).await.unwrap();
        inlet.becomes(vec![(1, 99), (2, 12)], SOON).await;
        outlet.report(2, 77).await;
        assert!(outlet.shut(ms(1_000)).await);
        assert_eq!(inlet.table().await, [(1, 99), (2, 77)]);
        let stats = inlet.stats().await;
        assert_eq!(
            (stats.unreadable, stats.foreign, stats.inbound.gaps),
            (0, 0, 0)
        );
    });
}

#[test]
fn a_router_that_comes_late_hears_of_a_publisher_that_is_quiet() {
    let server = Server::start();
    in_system(async {
        let outlet = Outlet::start(server.config().build().unwrap()).await;
        outlet.report(1, 5).await;
        assert!(outlet.flushed(AT_ALL).await);
        // Longer than the publisher waits between two answers.
        actix::clock::sleep(ms(600)).await;
        let inlet = Inlet::start(server.config().build().unwrap()).await;
        inlet.becomes(vec![(1, 5)], SOON).await;
        assert_eq!(outlet.stats().await.snapshots.fulls, 2);
    });
}

#[test]
fn three_thousand_workers_come_in_one_snapshot_in_either_form() {
    for form in [Form::MessagePack, Form::Json] {
        let server = Server::start();
        in_system(async {
            let config = || server.config().form(form).build().unwrap();
            let outlet = Outlet::start(config()).await;
            for worker in 0..3_000 {
                outlet.report(worker, worker).await;
            }
            assert!(outlet.flushed(AT_ALL).await, "{form:?}");
            let inlet = Inlet::start(config()).await;
            let all: Vec<_> = (0..3_000).map(|worker| (worker, worker)).collect();
            inlet.becomes(all, AT_ALL).await;
            let stats = inlet.stats().await;
            assert_eq!(
                (stats.unreadable, stats.inbound.incomplete),
                (0, 0),
                "{form:?}"
            );
        });
    }
}
