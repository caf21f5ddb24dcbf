//! What a publisher says when it has nothing to say.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{
    BRACE, Form, VERSION, json,
    part::{check_incarnation, first_byte, unknown},
};
use crate::{
    config::Limits,
    error::DecodeError,
    msgpack::{Reader, Write},
};

/// That a publisher lives, and how far it is: a subscriber that has another incarnation or sequence has missed something.
///
/// The subject says who it is. On the wire `[incarnation, sequence]` after the version, or JSON with these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// Which run of the publisher, in microseconds of Unix time.
    pub incarnation: u64,
    /// Sequence of its newest snapshot.
    pub sequence: u64,
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u64,
    #[serde(flatten)]
    alive: Alive,
}

impl Alive {
    /// Writes it.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        let mut to = Vec::with_capacity(32);
        match form {
            Form::MessagePack => {
                to.push(VERSION);
                to.array(2);
                to.uint(self.incarnation);
                to.uint(self.sequence);
            }
            Form::Json => json::write(
                &mut to,
                &Versioned {
                    version: VERSION.into(),
                    alive: *self,
                },
            ),
        }
        to
    }

    /// Reads it, in either form; `now` is this machine's wall clock.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if it is no such message, or its incarnation is too far ahead.
    pub fn decode(message: &[u8], now: SystemTime, limits: &Limits) -> Result<Self, DecodeError> {
        let alive = match first_byte(message, limits)? {
            BRACE => json::read::<Versioned>(message, |read| read.version)?.alive,
            VERSION => {
                let mut reader = Reader::new(&message[1..], 1);
                let mut fields = reader.fields()?;
                let alive = Self {
                    incarnation: fields.next()?.u64()?,
                    sequence: fields.next()?.u64()?,
                };
                fields.finish()?;
                if reader.remaining() > 0 {
                    return Err(reader.error("the end of the message").into());
                }
                alive
            }
            other => return Err(unknown(other)),
        };
        check_incarnation(alive.incarnation, now, limits)?;
        Ok(alive)
    }
}
