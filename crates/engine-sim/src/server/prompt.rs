//! What a body asks for, in the engine's terms.

use std::{
    fmt::Write,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

use crate::request::Request;

/// The body of a completion, with messages or without.
#[derive(Debug, Deserialize)]
pub(super) struct Body {
    #[serde(default)]
    pub(super) model: Option<String>,
    #[serde(default)]
    prompt: Option<Prompts>,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Batch(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// A prompt, and the answer that follows from it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    seed: u64,
}

impl Body {
    /// One for each prompt.
    pub(super) fn asked(&self, hash_tokens: u32) -> Result<Vec<Asked>, &'static str> {
        let output_tokens = self.max_completion_tokens.or(self.max_tokens);
        let output_tokens = output_tokens.unwrap_or(16);
        if output_tokens == 0 {
            return Err("max_tokens must be at least 1");
        }
        let of_text = |text: &str| {
            let pieces = text
                .as_bytes()
                .chunks(hash_tokens as usize * BYTES_PER_TOKEN);
            let tokens = text.len().div_ceil(BYTES_PER_TOKEN);
            Asked::new(tokens, pieces, output_tokens)
        };
        let of_tokens = |tokens: &[u32]| {
            let pieces = tokens.chunks(hash_tokens as usize);
            Asked::new(tokens.len(), pieces, output_tokens)
        };
        let asked: Vec<_> = match (&self.prompt, &self.messages) {
            (Some(Prompts::Text(text)), None) => vec![of_text(text)],
            (Some(Prompts::Tokens(tokens)), None) if tokens.is_empty() => vec![],
            (Some(Prompts::Tokens(tokens)), None) => vec![of_tokens(tokens)],
            (Some(Prompts::Texts(texts)), None) => texts.iter().map(|text| of_text(text)).collect(),
            (Some(Prompts::Batch(batch)), None) => {
                batch.iter().map(|tokens| of_tokens(tokens)).collect()
            }
            (None, Some(messages)) => vec![of_text(&templated(messages))],
            _ => return Err("either prompt or messages must be there"),
        };
        if asked.is_empty() {
            return Err("there is no prompt");
        }
        Ok(asked)
    }
}

impl Asked {
    fn new<P: Hash>(tokens: usize, pieces: impl Iterator<Item = P>, output_tokens: u32) -> Self {
        // Its keys are always the same, and so is the answer.
        let mut hasher = DefaultHasher::new();
        let hash_ids = pieces.map(|piece| {
            piece.hash(&mut hasher);
            hasher.finish()
        });
        Self {
            request: Request {
                arrival: Duration::ZERO,
                hash_ids: hash_ids.collect(),
                input_tokens: u32::try_from(tokens.max(1)).unwrap_or(u32::MAX),
                output_tokens,
            },
            seed: hasher.finish(),
        }
    }

    /// Stands for the prompt in the answer's id.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The text of a token, counted from 0.
    pub(super) fn token(&self, number: u32) -> String {
        let mut hasher = DefaultHasher::new();
        (self.seed, number).hash(&mut hasher);
        format!(" {:03x}", hasher.finish() & 0xfff)
    }
}

fn templated(messages: &[Message]) -> String {
    let mut text = String::new();
    for Message { role, content } in messages {
        let _ = match content {
            Value::String(content) => writeln!(text, "<{role}>{content}"),
            other => writeln!(text, "<{role}>{other}"),
        };
    }
    text
}

/// Of text.
const BYTES_PER_TOKEN: usize = 4;
