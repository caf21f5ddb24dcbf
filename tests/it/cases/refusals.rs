//! Kind "load", continued: workers that refuse, that are new, and that are too small.

use std::collections::BTreeMap;

use actix_kv_metrics::{ForwardPassMetrics, SelectError, SelectWorker};

use crate::support::{router::*, *};

/// Two workers, of which one refuses at once and its last report says idle; each refused request is placed elsewhere.
#[test]
fn case_168_who_fails_fast_gets_next_to_nothing_and_its_share_again_once_it_takes_requests() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 200)]).await;
        let mut of_1 = 0;
        for _ in 0..2_000 {
            let selection = router.select(SelectWorker::blocks(10)).await.unwrap();
            if selection.worker() == w(1) {
                of_1 += 1;
                selection.failed();
                let elsewhere = SelectWorker::blocks(10).except([w(1)]);
                let selection = router.select(elsewhere).await.unwrap();
                assert_eq!(selection.worker(), w(2));
            }
            sleep(ms(10)).await;
        }
        // At 0, 0.5, 1.5, 3.5, 7.5 and 15.5 s.
        assert_eq!(of_1, 6);
        assert_eq!(router.counts().await.failed, 6);

        // From now on it takes requests: at 31.5 s it is tried.
        let mut late = BTreeMap::<_, u32>::new();
        for step in 0..3_000 {
            let selection = router.select(SelectWorker::blocks(10)).await.unwrap();
            *late.entry((step >= 1_150, selection.worker())).or_default() += 1;
            sleep(ms(10)).await;
        }
        assert_eq!(
            late,
            BTreeMap::from([((false, w(2)), 1_150), ((true, w(1)), 1_850)])
        );
    });
}

#[test]
fn case_169_a_cold_worker_is_booked_up_to_what_others_hold_on_average() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.9));
        let full =
            |worker, total| of_life(worker, 1, Some(ForwardPassMetrics::new(total, total, 0)));
        let loads = [full(1, 1_000), full(2, 2_000), full(3, 3_000), announced(4)];
        router.full(1, loads).await;
        let mut held = Vec::new();
        for placed in 0..500 {
            match router.select(SelectWorker::blocks(50)).await {
                Ok(selection) => {
                    assert_eq!(selection.worker(), w(4));
                    held.push(selection);
                }
                Err(error) => {
                    assert_eq!(error, SelectError::AllSaturated);
                    // 1,800 blocks.
                    assert_eq!(held.len(), 36, "at {placed}");
                }
            }
        }
        assert_eq!(router.booked(4).await, (1_800, 36));
        assert!(router.loads().await.get(4).unwrap().saturated);
        held.pop();
        settle().await;
        let selection = router.select(SelectWorker::blocks(50)).await.unwrap();
        assert_eq!(selection.worker(), w(4));
    });
}

#[test]
fn case_173_what_no_worker_can_ever_hold_is_told_at_once_and_booked_nowhere() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.9));
        let engine = |worker| of_life(worker, 1, Some(ForwardPassMetrics::new(0, 100, 0)));
        router.full(1, (1..=4).map(engine)).await;
        let select = async |blocks| {
            let selection = router.select(SelectWorker::blocks(blocks)).await;
            selection.map(|selection| selection.worker())
        };
        assert_eq!(select(1_000).await, Err(SelectError::TooLarge));
        assert_eq!(select(91).await, Err(SelectError::TooLarge));
        let stats = router.stats().await;
        assert_eq!((stats.outstanding, stats.table.not_selected), (0, 2));
        assert!(select(90).await.is_ok());
        settle().await;
        // One that is too small only now is told apart from one that always is.
        router
            .delta(
                2,
                [of_life(
                    5,
                    1,
                    Some(ForwardPassMetrics::new(1_000, 1_000, 0)),
                )],
            )
            .await;
        assert_eq!(select(900).await, Err(SelectError::AllSaturated));
        assert_eq!(select(901).await, Err(SelectError::TooLarge));
    });
}
