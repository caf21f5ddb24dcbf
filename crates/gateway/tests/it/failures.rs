//! Engines that fail before the first byte, and after it.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::{
    client::{self, post},
    engine::{Engine, Step, chunk, events, json, last_chunk},
    fleet::{Fleet, until},
};

const ANSWER: &str = r#"{"id":"x","choices":[{"text":"hi"}]}"#;

const STREAM: &str = r#"{"model": "m", "prompt": "hello", "stream": true}"#;

/// The other of two engines answers, whichever is asked first.
async fn is_answered_elsewhere(failing: &[Step], attempts: usize) -> Fleet {
    let fleet = Fleet::with(2, &[json(200, ANSWER)], |config| {
        config.timeouts.first_token = Duration::from_millis(200);
        config.timeouts.connect = Duration::from_millis(100);
    })
    .await;
    let failing = failing.to_vec();
    fleet.engines[0].answers(move |_| failing.clone());
    for _ in 0..attempts {
        let answer = fleet.complete().await;
        assert_eq!((answer.status, answer.body.as_str()), (200, ANSWER));
        assert_eq!(answer.header("x-kv-worker"), Some("2/0"));
    }
    fleet.until_nothing_is_booked().await;
    fleet
}

#[actix_web::test]
async fn a_request_that_an_engine_does_not_take_is_tried_elsewhere() {
    for failing in [
        vec![Step::Close],
        vec![json(503, "busy")],
        vec![json(502, "")],
        vec![json(429, "busy")],
        vec![Step::Hang],
        vec![events(), Step::Close],
        vec![events(), Step::Hang],
        vec![Step::Send("HTTP/1.1 200 OK\r\n".to_owned()), Step::Close],
        vec![Step::Send("nonsense\r\n\r\n".to_owned())],
        vec![json(200, "")],
    ] {
        let fleet = is_answered_elsewhere(&failing, 6).await;
        // After the first failure it cools.
        let counts = fleet.counts();
        assert_eq!(counts[1], 6, "{failing:?}");
        assert!(counts[0] <= 1, "{failing:?}: {counts:?}");
    }
}

#[actix_web::test]
async fn an_engine_that_answers_500_is_not_left_alone_since_the_request_may_be_at_fault() {
    let fleet = is_answered_elsewhere(&[json(500, "oh")], 30).await;
    assert!(fleet.counts()[0] > 3, "{:?}", fleet.counts());
    let loads = fleet.kv.loads().await.unwrap();
    assert!(loads.workers().iter().all(|load| load.cooling.is_none()));
}

#[actix_web::test]
async fn an_engine_whose_process_is_gone_is_passed_over() {
    let fleet = Fleet::start(2, &[json(200, ANSWER)]).await;
    fleet.engines[0].dies();
    for _ in 0..6 {
        assert_eq!(fleet.complete().await.status, 200);
    }
    // Its page can't be read either.
    fleet.until_present(1).await;
    assert_eq!(fleet.present().await, [2]);
}

#[actix_web::test]
async fn what_the_last_engine_said_is_what_the_client_hears() {
    let fleet = Fleet::start(2, &[json(500, "the engine's own words")]).await;
    let answer = fleet.complete().await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (500, "the engine's own words")
    );
    for engine in &fleet.engines {
        engine.answers(|_| vec![json(503, "full")]);
    }
    let answer = fleet.complete().await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "full"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn a_clients_mistake_is_answered_by_the_first_engine() {
    let fleet = Fleet::start(2, &[json(400, "no such parameter")]).await;
    let answer = fleet.complete().await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (400, "no such parameter")
    );
    assert_eq!(fleet.counts().iter().sum::<usize>(), 1);
}

#[actix_web::test]
async fn with_every_engine_dead_it_is_503_at_once() {
    let fleet = Fleet::start(8, &[json(200, ANSWER)]).await;
    for engine in &fleet.engines {
        engine.dies();
    }
    // While the router still knows them, and when it knows nobody.
    for present in [8, 0] {
        fleet.until_present(present).await;
        let began = Instant::now();
        let answer = fleet.complete().await;
        assert!(
            began.elapsed() < Duration::from_millis(100),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        let code = if present == 0 {
            "no_engine"
        } else {
            "not_taken"
        };
        assert_eq!(answer.code(), code);
    }
}

#[actix_web::test]
async fn no_engine_is_there_from_the_beginning() {
    let fleet = Fleet::of(vec![Engine::dead().await], |_| {}).await;
    let answer = fleet.complete().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "no_engine"));
    assert_eq!(fleet.get("/health").await.status, 200);
    assert_eq!(fleet.get("/ready").await.status, 503);
}

#[actix_web::test]
async fn with_no_first_token_anywhere_it_is_504() {
    let fleet = Fleet::with(2, &[Step::Hang], |config| {
        config.timeouts.first_token = Duration::from_millis(100);
        config.timeouts.connect = Duration::from_millis(50);
    })
    .await;
    let answer = fleet.complete().await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (504, "no_first_token")
    );
    assert_eq!(fleet.counts(), [1, 1]);
    until(async || fleet.engines.iter().all(|engine| engine.cancelled() == 1)).await;
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn after_the_first_byte_a_failure_goes_to_the_client_and_nowhere_else() {
    let whole = "data: {\"n\":1}\n\n";
    let broken = "data: {\"n\":";
    for (sent, closes, end) in [
        (whole, "", Step::Close),
        (broken, "\n\n", Step::Close),
        (whole, "", Step::Hang),
    ] {
        let steps = [events(), chunk(sent), end];
        let fleet = Fleet::with(2, &steps, |config| {
            config.timeouts.between_tokens = Duration::from_millis(100);
        })
        .await;
        let answer = fleet.post("/v1/completions", STREAM).await;
        assert_eq!(answer.status, 200);
        let rest = answer.body.strip_prefix(sent).expect("as it was sent");
        let rest = rest.strip_prefix(closes).expect("the event is closed");
        let event = rest.strip_prefix("data: ").expect("an event of its own");
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["error"]["code"], "broken_off");
        assert_eq!(fleet.counts().iter().sum::<usize>(), 1, "asked once");
        fleet.until_nothing_is_booked().await;
    }
}

#[actix_web::test]
async fn an_answer_in_one_piece_that_breaks_off_is_not_taken_for_whole() {
    let half =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\"";
    let fleet = Fleet::start(2, &[Step::Send(half.to_owned()), Step::Close]).await;
    let answer = fleet.complete().await;
    assert!(!answer.whole, "{answer:?}");
    assert_eq!(fleet.counts().iter().sum::<usize>(), 1);
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn a_client_that_hangs_up_cancels_its_request_before_and_after_the_first_byte() {
    for steps in [
        vec![Step::Hang],
        vec![events(), chunk("data: 1\n\n"), Step::Hang],
    ] {
        let fleet = Fleet::start(1, &steps).await;
        let mut client = TcpStream::connect(fleet.address).await.unwrap();
        client
            .write_all(post("/v1/completions", STREAM).as_bytes())
            .await
            .unwrap();
        if steps.len() > 1 {
            let mut some = [0; 64];
            client.read_exact(&mut some).await.unwrap();
        } else {
            until(async || fleet.counts() == [1]).await;
        }
        drop(client);
        let gone = Instant::now();
        until(async || fleet.engines[0].cancelled() == 1).await;
        assert!(
            gone.elapsed() < Duration::from_secs(1),
            "{:?}",
            gone.elapsed()
        );
        fleet.until_nothing_is_booked().await;
    }
}

#[actix_web::test]
async fn one_engine_that_never_answers_does_not_hold_up_the_others() {
    // A hundred requests to healthy engines, while the hung one keeps what it was sent (CASES 86).
    let fleet = Fleet::start(4, &[json(200, ANSWER)]).await;
    fleet.engines[0].answers(|_| vec![Step::Hang]);
    let began = Instant::now();
    let asked = (0..100).map(|_| {
        let address = fleet.address;
        actix_web::rt::spawn(async move {
            let request = post("/v1/completions", r#"{"model": "m", "prompt": "hello"}"#);
            let answer =
                tokio::time::timeout(Duration::from_secs(2), client::send(address, &request));
            answer.await.is_ok_and(|answer| answer.status == 200)
        })
    });
    let mut answered = 0;
    for asked in asked.collect::<Vec<_>>() {
        answered += usize::from(asked.await.unwrap());
    }
    assert!(began.elapsed() < Duration::from_secs(4));
    let hung = fleet.counts()[0];
    assert_eq!(answered + hung, 100);
    assert!(hung <= 40, "{:?}", fleet.counts());
}

#[actix_web::test]
async fn a_stream_passes_byte_for_byte_as_it_comes() {
    let pieces = [
        "data: {\"n\":1}\n\n",
        "data: {\"n\":2}\n",
        "\n: note\r\n\r\ndata: [DONE]\n\n",
    ];
    let mut steps = vec![events()];
    for piece in pieces {
        steps.extend([chunk(piece), Step::Pause(Duration::from_millis(10))]);
    }
    steps.push(last_chunk());
    let fleet = Fleet::start(1, &steps).await;
    let answer = fleet
        .post(
            "/v1/chat/completions",
            r#"{"model":"m","stream":true,"messages":[]}"#,
        )
        .await;
    assert_eq!(answer.body, pieces.concat());
    assert!(answer.whole);
    assert_eq!(
        answer.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    fleet.until_nothing_is_booked().await;
}
