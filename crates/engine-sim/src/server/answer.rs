//! Answers, in one piece and as streams.

use std::{fmt, time::Duration};

use actix_web::{HttpResponse, body::BodyStream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::sleep;

use super::{SimConfig, prompt::Asked};
use crate::{
    engine::TooLong,
    sim::{Answering, Sim},
};

/// An answer that has begun, to each of the prompts of a request.
#[derive(Debug)]
pub(super) struct Answer {
    choices: Vec<Choice>,
    model: String,
    chat: bool,
    /// Breaks off after so many tokens.
    breaks: Option<u32>,
}

#[derive(Debug)]
struct Choice {
    index: usize,
    asked: Asked,
    /// `None`: it is all out already.
    answering: Option<Answering>,
    out: u32,
    cached_tokens: u32,
}

#[derive(Debug, Error)]
#[error("broken off as it was told to")]
pub(super) struct BrokenOff;

impl Answer {
    pub(super) fn begin(
        sim: &Sim,
        config: &SimConfig,
        asked: Vec<Asked>,
        chat: bool,
        breaks: Option<u32>,
    ) -> Result<Self, TooLong> {
        if !asked.iter().all(|asked| sim.fits(&asked.request)) {
            return Err(TooLong);
        }
        let choices = asked.into_iter().enumerate().map(|(index, asked)| {
            let answering = if config.instant {
                None
            } else {
                Some(sim.ask(asked.request.clone())?)
            };
            Ok(Choice {
                index,
                asked,
                answering,
                out: 0,
                cached_tokens: 0,
            })
        });
        Ok(Self {
            choices: choices.collect::<Result<_, _>>()?,
            model: config.model.clone(),
            chat,
            breaks,
        })
    }

    /// All of it.
    pub(super) async fn whole(mut self) -> Result<Value, BodyStream<impl Stream<Item = Broken>>> {
        let mut told = Vec::new();
        for choice in &mut self.choices {
            while choice.next().await.is_some() {}
            if self.breaks.is_some_and(|after| choice.out > after) {
                return Err(BodyStream::new(stream::iter([Err(BrokenOff)])));
            }
            let text: String = (0..choice.out).map(|n| choice.asked.token(n)).collect();
            let index = choice.index;
            told.push(if self.chat {
                let message = json!({"role": "assistant", "content": text});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": "length"})
            } else {
                json!({"index": index, "text": text, "logprobs": null, "finish_reason": "length"})
            });
        }
        let object = if self.chat {
            "chat.completion"
        } else {
            "text_completion"
        };
        Ok(
            json!({"id": self.id(), "object": object, "created": 1, "model": self.model,
            "choices": told, "usage": self.usage()}),
        )
    }

    /// Token by token; of several prompts one after the other.
    pub(super) fn stream(self, with_usage: bool) -> HttpResponse {
        let events = stream::unfold((self, Stage::Head), move |(mut answer, stage)| async move {
            let (event, stage) = answer.next_event(stage, with_usage).await?;
            Some((event, (answer, stage)))
        });
        HttpResponse::Ok()
            .content_type("text/event-stream; charset=utf-8")
            .streaming(events.boxed_local())
    }

    async fn next_event(&mut self, stage: Stage, with_usage: bool) -> Option<(Broken, Stage)> {
        let at = match stage {
            Stage::Head if self.breaks == Some(0) => return Some((Err(BrokenOff), Stage::Over)),
            Stage::Head if self.chat => {
                let first = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
                return Some((Ok(self.event(first)), Stage::Tokens(0)));
            }
            Stage::Head => 0,
            Stage::Tokens(at) => at,
            Stage::Usage => {
                let usage = self.chunk(json!([]), self.usage());
                return Some((Ok(said(&usage)), Stage::Done));
            }
            Stage::Done => return Some((Ok(Bytes::from_static(b"data: [DONE]\n\n")), Stage::Over)),
            Stage::Over => return None,
        };
        let choice = &mut self.choices[at];
        let index = choice.index;
        let Some(tokens) = choice.next().await else {
            // The engine is gone.
            return Some((Err(BrokenOff), Stage::Over));
        };
        if self.breaks.is_some_and(|after| choice.out > after) {
            // The server throws away what it has not sent yet.
            sleep(LAST_BYTES).await;
            return Some((Err(BrokenOff), Stage::Over));
        }
        let text: String = tokens.map(|n| choice.asked.token(n)).collect();
        let last = choice.out == choice.asked.request.output_tokens;
        let reason = last.then_some("length");
        let told = if self.chat {
            json!({"index": index, "delta": {"content": text}, "finish_reason": reason})
        } else {
            json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason})
        };
        let next = match last {
            false => Stage::Tokens(at),
            true if at + 1 < self.choices.len() => Stage::Tokens(at + 1),
            true if with_usage => Stage::Usage,
            true => Stage::Done,
        };
        Some((Ok(self.event(told)), next))
    }

    fn event(&self, choice: Value) -> Bytes {
        said(&self.chunk(json!([choice]), Value::Null))
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let object = if self.chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let mut chunk = json!({"id": self.id(), "object": object, "created": 1, "model": self.model, "choices": choices});
        if !usage.is_null() {
            chunk["usage"] = usage;
        }
        chunk
    }

    /// The same for the same prompt.
    fn id(&self) -> String {
        let kind = if self.chat { "chatcmpl" } else { "cmpl" };
        format!("{kind}-{:016x}", self.choices[0].asked.seed())
    }

    fn usage(&self) -> Value {
        let sum = |of: fn(&Choice) -> u32| self.choices.iter().map(of).sum::<u32>();
        let prompt = sum(|choice| choice.asked.request.input_tokens);
        let out = sum(|choice| choice.out);
        let cached = sum(|choice| choice.cached_tokens);
        json!({"prompt_tokens": prompt, "total_tokens": prompt + out, "completion_tokens": out,
            "prompt_tokens_details": {"cached_tokens": cached}})
    }
}

impl Choice {
    /// The numbers of the tokens that came, one at least.
    async fn next(&mut self) -> Option<std::ops::Range<u32>> {
        let before = self.out;
        match &mut self.answering {
            Some(answering) => {
                let out = answering.next().await?;
                (self.out, self.cached_tokens) = (out.tokens, out.cached_tokens);
            }
            None if before < self.asked.request.output_tokens => self.out += 1,
            None => return None,
        }
        Some(before..self.out)
    }
}

/// A piece of a stream, or its sudden end.
type Broken = Result<Bytes, BrokenOff>;

/// What of a stream comes next.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Head,
    /// Of the prompt with this index.
    Tokens(usize),
    Usage,
    Done,
    Over,
}

fn said(chunk: &impl fmt::Display) -> Bytes {
    Bytes::from(format!("data: {chunk}\n\n"))
}

/// For what is on its way to a client.
const LAST_BYTES: Duration = Duration::from_millis(20);
