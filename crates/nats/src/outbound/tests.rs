use actix_kv_metrics::PublisherId;

use super::*;

const LEASE: Duration = Duration::from_secs(9);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn snapshot(sequence: u64, kind: SnapshotKind) -> LoadSnapshot {
    LoadSnapshot {
        publisher: PublisherId::new(7, 1),
        sequence,
        kind,
        left: Vec::new(),
        workers: Vec::new(),
    }
}

fn delta(sequence: u64) -> LoadSnapshot {
    let after = sequence - 1;
    snapshot(sequence, SnapshotKind::Delta { after })
}

fn full(sequence: u64) -> LoadSnapshot {
    snapshot(sequence, SnapshotKind::Full)
}

const APPLIED: Option<Answer> = Some(Ok(SnapshotAck::Applied));
const REJECTED: Option<Answer> = Some(Err(SnapshotRejected));

fn new(lease: Duration) -> (Outbound, Instant) {
    #[allow(clippy::disallowed_methods)] // An epoch; no time passes.
    let epoch = Instant::now();
    (Outbound::new(lease, ms(100), epoch), epoch)
}

/// Connected at 0, with a full snapshot that arrived.
fn settled() -> (Outbound, Instant) {
    let (mut outbound, epoch) = new(LEASE);
    outbound.handle_connected(epoch);
    outbound.handle_snapshot(&full(1), 1, epoch);
    outbound.handle_mark(1);
    assert_eq!(outbound.handle_echo(1), APPLIED);
    (outbound, epoch)
}

/// When what is due is due, and what.
fn due(outbound: &mut Outbound, epoch: Instant) -> Option<(u64, Due)> {
    let at = outbound.poll_timeout()?;
    let t = at.saturating_duration_since(epoch).as_millis() as u64;
    Some((t, outbound.handle_timeout(at)))
}

const REQUEST: Due = Due {
    request_full: true,
    alive: None,
    answer: None,
};

fn answers(answer: Option<Answer>) -> Due {
    Due {
        answer,
        ..Due::default()
    }
}

#[test]
fn the_first_full_snapshot_of_a_connection_counts_once_all_of_it_and_the_marker_are_back() {
    let (mut outbound, now) = new(LEASE);
    outbound.handle_connected(now);
    let sending = outbound.handle_snapshot(&full(1), 3, now);
    let echoed = true;
    assert_eq!(sending, Sending::Publish { mark: 1, echoed });
    assert_eq!(outbound.handle_echo(1), None);
    assert_eq!(outbound.handle_echo(1), None);
    assert_eq!(outbound.handle_mark(1), None);
    assert_eq!(outbound.handle_echo(1), APPLIED);
    // From then on markers do.
    let sending = outbound.handle_snapshot(&delta(2), 1, now);
    let echoed = false;
    assert_eq!(sending, Sending::Publish { mark: 2, echoed });
    assert_eq!(outbound.handle_mark(1), None);
    assert_eq!(outbound.handle_mark(2), APPLIED);
    assert_eq!(outbound.handle_mark(2), None);
}

#[test]
fn a_refusal_rejects_what_is_out_and_the_next_full_snapshot_must_come_back_itself() {
    let (mut outbound, now) = settled();
    outbound.handle_snapshot(&delta(2), 1, now);
    assert_eq!(outbound.handle_refused(now), REJECTED);
    assert_eq!(outbound.handle_mark(2), None);
    let sending = outbound.handle_snapshot(&full(3), 1, now);
    let echoed = true;
    assert_eq!(sending, Sending::Publish { mark: 3, echoed });
    assert_eq!(outbound.handle_mark(3), None);
    assert_eq!(outbound.handle_echo(2), None);
    assert_eq!(outbound.handle_echo(3), APPLIED);
}

#[test]
fn a_refusal_that_comes_after_the_marker_asks_for_everything() {
    let (mut outbound, epoch) = settled();
    outbound.handle_snapshot(&delta(2), 1, epoch + ms(600));
    assert_eq!(outbound.handle_mark(2), APPLIED);
    assert_eq!(outbound.handle_refused(epoch + ms(601)), None);
    assert_eq!(due(&mut outbound, epoch), Some((601, REQUEST)));
}

const NEED_FULL: Option<Answer> = Some(Ok(SnapshotAck::NeedFull));

/// Those cut off together with it, who are to hear it, are back by then.
#[test]
fn without_a_connection_nothing_is_published_and_everything_goes_out_when_all_are_back() {
    let (mut outbound, epoch) = settled();
    outbound.handle_disconnected(epoch + ms(900));
    let sending = outbound.handle_snapshot(&delta(2), 1, epoch + ms(1_000));
    assert_eq!(sending, Sending::Hold);
    assert_eq!(outbound.poll_timeout(), None);
    outbound.handle_connected(epoch + ms(3_000));
    assert_eq!(due(&mut outbound, epoch), Some((3_100, answers(NEED_FULL))));

    // A full one is refused, and its publisher's backoff ended once it has heard so.
    let (mut outbound, epoch) = settled();
    outbound.handle_disconnected(epoch + ms(900));
    outbound.handle_snapshot(&full(2), 1, epoch + ms(1_000));
    outbound.handle_connected(epoch + ms(3_000));
    assert_eq!(due(&mut outbound, epoch), Some((3_100, answers(REJECTED))));
    assert_eq!(due(&mut outbound, epoch), Some((3_102, REQUEST)));

    // Nothing was held: it is asked for.
    let (mut outbound, epoch) = settled();
    outbound.handle_disconnected(epoch + ms(900));
    outbound.handle_connected(epoch + ms(3_000));
    assert_eq!(due(&mut outbound, epoch), Some((3_100, REQUEST)));

    // It breaks again before that.
    let (mut outbound, epoch) = settled();
    outbound.handle_disconnected(epoch + ms(900));
    outbound.handle_snapshot(&delta(2), 1, epoch + ms(1_000));
    outbound.handle_connected(epoch + ms(3_000));
    outbound.handle_disconnected(epoch + ms(3_050));
    assert_eq!(outbound.poll_timeout(), None);
    outbound.handle_connected(epoch + ms(4_000));
    assert_eq!(due(&mut outbound, epoch), Some((4_100, answers(NEED_FULL))));
}

#[test]
fn what_is_out_when_the_connection_breaks_is_answered_when_there_is_another() {
    let (mut outbound, epoch) = settled();
    outbound.handle_snapshot(&delta(2), 1, epoch);
    outbound.handle_disconnected(epoch + ms(600));
    assert_eq!(outbound.handle_mark(2), None);
    // It was there again at once: nobody else was cut off.
    outbound.handle_connected(epoch + ms(610));
    assert_eq!(due(&mut outbound, epoch), Some((610, answers(NEED_FULL))));
    let counts = outbound.counts();
    assert_eq!((counts.lost, counts.held), (1, 0));
}

#[test]
fn full_snapshots_asked_for_are_half_a_second_apart_and_one_begun_later_answers_all() {
    let (mut outbound, epoch) = settled();
    outbound.handle_asked(epoch + ms(100), ms(50));
    outbound.handle_asked(epoch + ms(110), Duration::ZERO);
    assert_eq!(due(&mut outbound, epoch), Some((500, REQUEST)));
    outbound.handle_snapshot(&full(2), 1, epoch + ms(501));
    assert_eq!(outbound.handle_mark(2), APPLIED);
    outbound.handle_asked(epoch + ms(2_000), ms(70));
    outbound.handle_snapshot(&full(3), 1, epoch + ms(2_010));
    assert_eq!(outbound.handle_mark(3), APPLIED);
    let (t, due) = due(&mut outbound, epoch).unwrap();
    assert_eq!((t, due.request_full), (5_010, false));
    assert_eq!(outbound.counts().requested, 1);
}

#[test]
fn it_says_that_it_lives_after_a_third_of_the_lease_of_silence_but_not_after_a_goodbye() {
    let (mut outbound, epoch) = settled();
    let alive = Due {
        request_full: false,
        answer: None,
        alive: Some(Alive {
            incarnation: 1,
            sequence: 1,
        }),
    };
    assert_eq!(due(&mut outbound, epoch), Some((3_000, alive)));
    assert_eq!(due(&mut outbound, epoch), Some((6_000, alive)));
    // While one is out the server is slow.
    outbound.handle_snapshot(&delta(2), 1, epoch + ms(7_000));
    assert_eq!(outbound.poll_timeout(), None);
    outbound.handle_mark(2);
    assert_eq!(outbound.poll_timeout(), Some(epoch + ms(10_000)));
    outbound.handle_snapshot(&snapshot(3, SnapshotKind::Closed), 1, epoch + ms(8_000));
    assert_eq!(outbound.handle_mark(3), APPLIED);
    assert_eq!(outbound.poll_timeout(), None);
}

#[test]
fn without_a_lease_it_never_says_that_it_lives() {
    let (mut outbound, epoch) = new(Duration::MAX);
    outbound.handle_connected(epoch);
    outbound.handle_snapshot(&full(1), 1, epoch);
    outbound.handle_mark(1);
    assert_eq!(outbound.handle_echo(1), APPLIED);
    assert_eq!(outbound.poll_timeout(), None);
}
