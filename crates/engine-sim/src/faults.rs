use serde::{Deserialize, Serialize};

/// How a server misbehaves. `POST /sim/faults` takes these as JSON; what is not named there is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Its page takes so long.
    pub page_delay_ms: u64,
    /// Its page has this status.
    pub page_status: Option<u16>,
    /// Requests are refused with this status.
    pub refuse: Option<u16>,
    /// Answers break off after so many tokens; 0: the connection closes before the first one, without an answer. One in a single piece
    /// that would be longer is not sent at all.
    pub break_after_tokens: Option<u32>,
    /// It takes so many times as long for everything, the pass under way included.
    pub slowness: f64,
    /// It takes connections and requests, and does nothing: requests, its page and its passes wait until this is taken back, and what they
    /// missed is lost.
    pub frozen: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            page_delay_ms: 0,
            page_status: None,
            refuse: None,
            break_after_tokens: None,
            slowness: 1.0,
            frozen: false,
        }
    }
}

impl Faults {
    pub(crate) fn are_possible(&self) -> bool {
        let is_status = |status: Option<u16>| status.is_none_or(|s| (200..=599).contains(&s));
        is_status(self.page_status)
            && is_status(self.refuse)
            && self.slowness.is_finite()
            && (1e-3..=1e6).contains(&self.slowness)
    }
}
