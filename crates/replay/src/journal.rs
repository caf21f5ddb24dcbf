//! What became of each request.

use std::{sync::Arc, time::Duration};

use kv_engine_sim::{Event, Progress};

use crate::{distribution::Distribution, trace::Request};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Journal {
    pages: Vec<Page>,
    finished: usize,
    refused: usize,
    /// Things that must not happen, in the order they did.
    contradictions: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Page {
    arrival: Duration,
    output_tokens: u32,
    admitted: Option<Duration>,
    first_token: Option<Duration>,
    finished: Option<Duration>,
    over: bool,
}

impl Journal {
    pub(crate) fn new(requests: &[Arc<Request>]) -> Self {
        let page = |request: &Arc<Request>| Page {
            arrival: request.arrival,
            output_tokens: request.output_tokens,
            ..Page::default()
        };
        Self {
            pages: requests.iter().map(page).collect(),
            finished: 0,
            refused: 0,
            contradictions: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, event: Event) {
        let page = &mut self.pages[event.number];
        let again = match event.what {
            Progress::Admitted => page.admitted.replace(event.at).is_some(),
            Progress::FirstToken => page.first_token.replace(event.at).is_some(),
            Progress::Finished => {
                self.finished += 1;
                page.finished = Some(event.at);
                std::mem::replace(&mut page.over, true)
            }
            Progress::Preempted => page.over,
        };
        if again || event.at < page.arrival {
            self.contradictions.push(format!(
                "request {}: {:?} again or before it came",
                event.number, event.what
            ));
        }
    }

    pub(crate) fn record_refused(&mut self, number: usize) {
        self.refused += 1;
        if std::mem::replace(&mut self.pages[number].over, true) {
            self.contradictions
                .push(format!("request {number}: refused when it was over"));
        }
    }

    /// A request's engine died: it begins anew elsewhere.
    pub(crate) fn record_lost(&mut self, number: usize) {
        let page = &mut self.pages[number];
        (page.admitted, page.first_token) = (None, None);
    }

    pub(crate) fn is_over(&self, number: usize) -> bool {
        self.pages[number].over
    }

    /// The first request of which the other journal says something else.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<usize> {
        let pages = self.pages.iter().zip(&other.pages);
        let differs = pages.enumerate().find(|(_, (page, other))| page != other);
        differs.map(|(number, _)| number)
    }

    pub(crate) fn arrived(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished
    }

    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.finished + self.refused == self.pages.len()
    }

    /// What speaks against every request having come to exactly one end.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let open = self.pages.iter().enumerate().filter(|(_, page)| !page.over);
        let open =
            open.map(|(number, _)| format!("request {number}: neither finished nor refused"));
        self.contradictions.iter().cloned().chain(open).collect()
    }

    /// From arrival to the first token.
    pub(crate) fn time_to_first_token(&self) -> Distribution {
        self.since_arrival(|page| page.first_token)
    }

    /// From arrival to the first admission.
    pub(crate) fn queueing(&self) -> Distribution {
        self.since_arrival(|page| page.admitted)
    }

    /// From arrival to the last token.
    pub(crate) fn end_to_end(&self) -> Distribution {
        self.since_arrival(|page| page.finished)
    }

    /// Between two tokens: of each request that has several, the average.
    pub(crate) fn inter_token(&self) -> Distribution {
        let between = |page: &Page| {
            let gaps = page.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
            Some(page.finished?.saturating_sub(page.first_token?) / gaps)
        };
        self.pages.iter().filter_map(between).collect()
    }

    fn since_arrival(&self, moment: impl Fn(&Page) -> Option<Duration>) -> Distribution {
        let waited = |page: &Page| Some(moment(page)?.saturating_sub(page.arrival));
        self.pages.iter().filter_map(waited).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Requests that arrived at 10 and 20 ms.
    fn two() -> Journal {
        let request = |at| {
            Arc::new(Request {
                arrival: ms(at),
                input_tokens: 1,
                output_tokens: 4,
                hash_ids: Vec::new(),
            })
        };
        Journal::new(&[request(10), request(20)])
    }

    fn record(journal: &mut Journal, number: usize, at: u64, what: Progress) {
        journal.record(Event {
            number,
            at: ms(at),
            what,
        });
    }

    #[test]
    fn times_count_from_the_arrival() {
        let mut journal = two();
        record(&mut journal, 0, 11, Progress::Admitted);
        record(&mut journal, 0, 15, Progress::FirstToken);
        record(&mut journal, 0, 30, Progress::Finished);
        journal.record_refused(1);
        assert_eq!(
            (journal.arrived(), journal.finished(), journal.refused()),
            (2, 1, 1)
        );
        assert!(journal.is_complete());
        assert_eq!(journal.queueing().summary().max, 1.0);
        assert_eq!(journal.time_to_first_token().summary().max, 5.0);
        assert_eq!(journal.end_to_end().summary().max, 20.0);
        let inter_token = journal.inter_token().summary();
        assert_eq!((inter_token.count, inter_token.max), (1, 5.0));
        assert_eq!(journal.contradictions(), [""; 0]);
    }

    #[test]
    fn a_request_that_ends_twice_or_never_is_told() {
        let mut journal = two();
        record(&mut journal, 0, 30, Progress::Finished);
        record(&mut journal, 0, 31, Progress::Finished);
        let expected = [
            "request 0: Finished again or before it came",
            "request 1: neither finished nor refused",
        ];
        assert_eq!(journal.contradictions(), expected);
    }
}
