//! Messages of real Dynamo workers, captured: `KV_SHARED` names the folder that holds `captures/manifest.json`.

use std::{env, fs, path::PathBuf};

use actix_kv_metrics::WorkerRank;
use actix_kv_metrics_nats::dynamo::{self, DynamoLoad, DynamoSubjects};
use serde_json::{Value, json};

fn captures() -> Vec<(Value, Vec<u8>)> {
    let folder = env::var_os("KV_SHARED").expect("KV_SHARED is not set");
    let folder = PathBuf::from(folder).join("captures");
    let manifest = fs::read(folder.join("manifest.json")).unwrap();
    let manifest: Vec<Value> = serde_json::from_slice(&manifest).unwrap();
    let capture = |entry: Value| {
        let message = fs::read(folder.join(entry["file"].as_str().unwrap())).unwrap();
        (entry, message)
    };
    manifest.into_iter().map(capture).collect()
}

#[test]
#[ignore = "needs KV_SHARED"]
fn every_captured_message_decodes_to_what_was_published() {
    let captures = captures();
    assert_eq!(captures.len(), 30);
    for (entry, message) in &captures {
        let expected = &entry["decoded"];
        match dynamo::decode(message).unwrap() {
            DynamoLoad::Event(event) => {
                assert_eq!(entry["encoding"], "json");
                let id = expected["worker_id"].as_u64().unwrap();
                let rank = &expected["data"]["worker_stats"]["data_parallel_rank"];
                let rank = rank.as_u64().unwrap_or_default() as u32;
                assert_eq!(event.worker, WorkerRank::new(id, rank));
                assert_eq!(
                    serde_json::to_value(&event.metrics).unwrap(),
                    expected["data"]
                );
                assert!(event.unreadable.is_empty());
            }
            DynamoLoad::Active { load, envelope } => {
                assert_eq!(entry["encoding"], "msgpack(map)");
                let envelope = envelope.unwrap();
                assert_eq!(expected["publisher_id"], envelope.publisher_id);
                assert_eq!(expected["sequence"], envelope.sequence);
                assert_eq!(expected["published_at"], envelope.published_at);
                let mut decoded = json!({
                    "worker_id": load.worker.worker().0,
                    "dp_rank": load.worker.rank(),
                    "active_decode_blocks": load.active_decode_blocks,
                    "active_prefill_tokens": load.active_prefill_tokens,
                    "kv_used_blocks": load.kv_used_blocks,
                });
                if entry["version"] == "0.9.1" {
                    let used = decoded.as_object_mut().unwrap().remove("kv_used_blocks");
                    assert_eq!(used, Some(Value::Null));
                }
                assert_eq!(decoded, expected["payload_decoded"]);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
#[ignore = "needs KV_SHARED"]
fn what_is_written_is_what_workers_write_byte_for_byte() {
    let mut versions = Vec::new();
    for (entry, message) in captures() {
        let written = match dynamo::decode(&message).unwrap() {
            DynamoLoad::Event(event) => dynamo::encode_event(event.worker, &event.metrics),
            // Before 1.2 it has a key less.
            DynamoLoad::Active { .. } if entry["version"] == "0.9.1" => continue,
            DynamoLoad::Active { load, envelope } => {
                dynamo::encode_active(&load, &envelope.unwrap())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(written, message, "{}", entry["file"]);
        versions.push(entry["version"].as_str().unwrap().to_owned());
    }
    versions.dedup();
    assert_eq!(versions, ["0.5.1", "0.6.1", "1.6.1"]);
}

#[test]
#[ignore = "needs KV_SHARED"]
fn every_captured_message_came_on_a_subject_that_is_subscribed_to() {
    let subjects = DynamoSubjects::endpoint("capns", "backend", "generate").unwrap();
    for (entry, _) in captures() {
        let subject = entry["subject"].as_str().unwrap();
        let newest = entry["version"] == "1.6.1";
        assert_eq!(subject, subjects.heard()[usize::from(newest)]);
    }
}
