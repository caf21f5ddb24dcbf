//! What is answered.

use kv_engine_sim::Faults;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::client::{body_of, complete, events, post, read_until, send, server, until};

#[actix_web::test]
async fn a_stream_says_what_the_answer_in_one_piece_says() {
    let server = server(|_| {});
    let ask = json!({"prompt": "once upon a time", "max_tokens": 20});
    let whole = complete(&server, &ask).await;
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    assert_eq!(whole["usage"]["completion_tokens"], 20);
    let mut ask = ask;
    ask["stream"] = true.into();
    ask["stream_options"] = json!({"include_usage": true});
    let request = post("/v1/completions", "", &ask);
    let stream = send(server.address(), &request).await;
    let events = events(&stream);
    // Twenty tokens, the usage, the end.
    assert_eq!(events.len(), 22, "{stream}");
    assert_eq!(events[21], "[DONE]");
    let text: String = events[..20]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(Value::String(text), whole["choices"][0]["text"]);
    // Another time, byte for byte the same but for what was cached, and the date.
    let again = send(server.address(), &request).await;
    assert_eq!(body_of(&again), body_of(&stream));
}

#[actix_web::test]
async fn chats_and_batches_are_answered() {
    let server = server(|_| {});
    let ask = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    let answer = send(server.address(), &post("/v1/chat/completions", "", &ask)).await;
    let answer: Value = serde_json::from_str(body_of(&answer)).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.split_whitespace().count(), 3);
    let batch = json!({"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 2});
    let answer = complete(&server, &batch).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[actix_web::test]
async fn a_prefix_that_was_seen_is_cached() {
    let server = server(|_| {});
    let prefix = "p".repeat(1_280);
    let ask = |rest: &str| json!({"prompt": format!("{prefix}{rest}"), "max_tokens": 1});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(&complete(&server, &ask("one")).await), 0);
    // Twenty blocks of 16 tokens of 4 bytes.
    assert_eq!(cached(&complete(&server, &ask("two")).await), 320);
}

#[actix_web::test]
async fn an_instant_one_answers_without_its_engine() {
    let server = server(|config| config.instant = true);
    let answer = complete(&server, &json!({"prompt": "a", "max_tokens": 3})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(server.stats().begun, 0);
}

#[actix_web::test]
async fn a_request_that_lost_its_blocks_goes_on_where_it_was() {
    let crowded = server(|config| config.engine.total_blocks = 20);
    let spacious = server(|_| {});
    // Thirteen blocks in the end, each.
    let asks = ["a", "b"].map(|letter| json!({"prompt": letter.repeat(400), "max_tokens": 100}));
    let answers = tokio::join!(complete(&crowded, &asks[0]), complete(&crowded, &asks[1]));
    assert!(crowded.stats().preemptions > 0);
    for (ask, answer) in asks.iter().zip([answers.0, answers.1]) {
        // Byte for byte, and nothing was cached but what it had computed itself.
        assert_eq!(answer, complete(&spacious, ask).await);
    }
}

#[actix_web::test]
async fn a_long_prompt_is_computed_in_chunks_while_others_get_their_tokens() {
    let server = server(|config| {
        config.engine.max_batched_tokens = 128;
        config.speed = 1.0;
    });
    let other = json!({"prompt": "a", "max_tokens": 2_000, "stream": true});
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    let other = post("/v1/completions", "", &other);
    connection.write_all(other.as_bytes()).await.unwrap();
    read_until(&mut connection, "data: ").await;
    server.set_faults(Faults {
        slowness: 1e6,
        ..Faults::default()
    });
    let begun = async {
        until(|| server.stats().begun == 2).await;
        let before = server.stats().generated_tokens;
        server.set_faults(Faults::default());
        before
    };
    // A thousand tokens, which take eight passes of 127 and a token for the other.
    let body = json!({"prompt": "b".repeat(4_000), "max_tokens": 1});
    let (answer, before) = tokio::join!(complete(&server, &body), begun);
    let more = server.stats().generated_tokens - before;
    assert!(more >= 9, "{more}");
    assert_eq!(answer["usage"]["prompt_tokens"], 1_000);
    let again = complete(&server, &body).await;
    // All its whole blocks.
    let details = &again["usage"]["prompt_tokens_details"];
    assert_eq!(details["cached_tokens"], 992);
    assert_eq!(again["choices"], answer["choices"]);
}

#[actix_web::test]
async fn each_form_of_a_prompt_is_answered_and_none_is_given_sixteen_tokens() {
    let server = server(|_| {});
    for (prompt, prompts, tokens) in [
        (json!("twelve bytes"), 1, 3),
        (json!("thirteen byte"), 1, 4),
        (json!(["twelve bytes", "a"]), 2, 4),
        (json!([1, 2, 3]), 1, 3),
        (json!([[1, 2, 3], [4, 5]]), 2, 5),
    ] {
        let answer = complete(&server, &json!({"prompt": prompt})).await;
        assert_eq!(answer["choices"].as_array().unwrap().len(), prompts);
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{prompt}");
        assert_eq!(answer["usage"]["completion_tokens"], 16 * prompts);
    }
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3,
        "stream": true, "stream_options": {"include_usage": true}});
    let stream = send(server.address(), &post("/v1/chat/completions", "", &chat)).await;
    let events = events(&stream);
    // The role, three tokens, the usage, the end.
    assert_eq!(events.len(), 6, "{stream}");
    let event: Vec<Value> = events[..5]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(event[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(event[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(event[4]["usage"]["completion_tokens"], 3);
}
