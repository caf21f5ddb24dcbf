//! What all requests together may take.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use actix_web::{HttpRequest, http::header, rt, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{config::Limits, openai::ApiError};

/// Counts what is under way.
#[derive(Debug)]
pub(crate) struct Admission {
    requests: Arc<Semaphore>,
    /// In units of [`UNIT`] bytes.
    bodies: Arc<Semaphore>,
    most_requests: usize,
    body_bytes: usize,
    closing: AtomicBool,
}

/// A request under way, from its head to the last byte of its answer.
#[derive(Debug)]
pub(crate) struct OpenRequest(#[allow(dead_code, reason = "held")] OwnedSemaphorePermit);

/// The memory of a body.
#[derive(Debug)]
pub(crate) struct BodyPermit(#[allow(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(limits.requests)),
            bodies: Arc::new(Semaphore::new(limits.bodies_bytes.div_ceil(UNIT))),
            most_requests: limits.requests,
            body_bytes: limits.body_bytes,
            closing: AtomicBool::new(false),
        }
    }

    /// # Errors
    ///
    /// [`ApiError::TooMany`], [`ApiError::ShuttingDown`].
    pub(crate) fn open(&self) -> Result<OpenRequest, ApiError> {
        if self.is_closing() {
            return Err(ApiError::ShuttingDown);
        }
        let permit = self.requests.clone().try_acquire_owned();
        permit.map(OpenRequest).map_err(|_| ApiError::TooMany)
    }

    /// Requests under way.
    pub(crate) fn open_requests(&self) -> usize {
        self.most_requests - self.requests.available_permits()
    }

    /// From here on every request is refused.
    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Waits until none is under way, and says how many still are then.
    pub(crate) async fn ended(&self, until: Instant) -> usize {
        let all = u32::try_from(self.most_requests).unwrap_or(u32::MAX);
        let _ = timeout_at(until, self.requests.acquire_many(all)).await;
        self.open_requests()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`ApiError::TooLarge`], [`ApiError::NoMemory`], [`ApiError::Slow`], and [`ApiError::BadRequest`] if it breaks off.
    pub(crate) async fn read(
        &self,
        request: &HttpRequest,
        body: &mut web::Payload,
        within: Duration,
    ) -> Result<(Bytes, BodyPermit), ApiError> {
        let read = timeout(within, self.read_to_end(request, body)).await;
        read.unwrap_or(Err(ApiError::Slow(within)))
    }

    async fn read_to_end(
        &self,
        request: &HttpRequest,
        body: &mut web::Payload,
    ) -> Result<(Bytes, BodyPermit), ApiError> {
        let told = request.headers().get(header::CONTENT_LENGTH);
        let told = told.and_then(|told| told.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|told| told > self.body_bytes) {
            return Err(ApiError::TooLarge(self.body_bytes));
        }
        let mut permit = None;
        let mut read = BytesMut::new();
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| ApiError::BadRequest(error.to_string().into()))?;
            let bytes = read.len() + piece.len();
            if bytes > self.body_bytes {
                return Err(ApiError::TooLarge(self.body_bytes));
            }
            self.reserve(bytes, &mut permit)?;
            read.extend_from_slice(&piece);
        }
        Ok((read.freeze(), BodyPermit(permit)))
    }

    /// Takes what is missing. What is told but not sent takes nothing.
    fn reserve(
        &self,
        bytes: usize,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(), ApiError> {
        let has = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT).saturating_sub(has);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).map_err(|_| ApiError::NoMemory)?;
        let more = self.bodies.clone().try_acquire_many_owned(more);
        let more = more.map_err(|_| ApiError::NoMemory)?;
        match permit {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
        Ok(())
    }
}

/// Keeps what was not read of a refused body until the answer is out. The server closes a connection on which something is unread; once
/// that is dropped it would rather read on, for as long as the client sends.
pub(crate) fn leave_unread(body: web::Payload) {
    rt::spawn(async move {
        sleep(Duration::from_secs(1)).await;
        drop(body);
    });
}

/// Bytes a permit stands for.
const UNIT: usize = 4 << 10;
