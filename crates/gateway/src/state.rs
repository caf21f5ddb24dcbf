use std::{fmt, sync::Arc};

use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    admission::Admission,
    config::{Limits, Secrets, Timeouts},
    fleet::Fleet,
};

/// What all threads share.
#[derive(Clone)]
pub(crate) struct State(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) fleet: Fleet,
    pub(crate) admission: Admission,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) client_tokens: Secrets,
    pub(crate) operator_tokens: Secrets,
    /// `None`: somebody else collects the metrics.
    pub(crate) page: Option<PrometheusHandle>,
    /// Seconds since 1970, as OpenAI's lists of models have it.
    pub(crate) began_at: u64,
}

impl State {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("fleet", &self.fleet)
            .finish_non_exhaustive()
    }
}

impl std::ops::Deref for State {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
