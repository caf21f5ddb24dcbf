//! What of OpenAI's HTTP interface a gateway reads and writes itself: the fields it routes by, and errors. All else passes through.

mod error;
mod request;

pub(crate) use self::{
    error::{ApiError, RETRY_AFTER, broken_off},
    request::{Prompt, Request},
};
