//! Tickets that a worker says it has admitted.

use crate::snapshot::Ticket;

/// Newest admitted ticket of each router, and how often that changed. Takes no room while no ticket was echoed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Admitted(Option<Box<Echoes>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Echoes {
    tickets: Vec<Ticket>,
    /// The version each of them came with.
    echoed: Vec<u32>,
    version: u32,
    /// How many of them have had to go.
    forgotten: u32,
}

impl Echoes {
    /// Makes room: whoever was echoed longest ago goes.
    fn forget_oldest(&mut self) {
        let ages = self.echoed.iter().map(|at| self.version.wrapping_sub(*at));
        let oldest = ages.enumerate().max_by_key(|(_, age)| *age);
        if let Some((oldest, _)) = oldest {
            self.tickets.remove(oldest);
            self.echoed.remove(oldest);
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }
}

impl Admitted {
    /// Merges by maximum per router; whether it was news.
    pub(crate) fn merge(&mut self, ticket: Ticket) -> bool {
        let echoes = self.0.get_or_insert_default();
        let known = echoes
            .tickets
            .iter()
            .position(|t| t.router == ticket.router);
        if known.is_some_and(|known| echoes.tickets[known].number >= ticket.number) {
            return false;
        }
        echoes.version = echoes.version.wrapping_add(1);
        if let Some(known) = known {
            echoes.tickets[known] = ticket;
            echoes.echoed[known] = echoes.version;
        } else {
            if echoes.tickets.len() == MAX_ROUTERS {
                echoes.forget_oldest();
            }
            echoes.tickets.push(ticket);
            echoes.echoed.push(echoes.version);
        }
        true
    }

    pub(crate) fn merge_all(&mut self, others: &Self) -> bool {
        let mut news = false;
        for ticket in others.tickets() {
            news |= self.merge(*ticket);
        }
        if let (Some(echoes), Some(others)) = (&mut self.0, &others.0) {
            echoes.forgotten = echoes.forgotten.saturating_add(others.forgotten);
        }
        news
    }

    pub(crate) fn tickets(&self) -> &[Ticket] {
        self.0.as_ref().map_or(&[], |echoes| &echoes.tickets)
    }

    /// Tickets that have had to go since this was asked last.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        let forgotten = self.0.as_mut().map(|echoes| &mut echoes.forgotten);
        forgotten.map_or(0, |forgotten| u64::from(std::mem::take(forgotten)))
    }

    /// Changes with every news.
    pub(crate) fn version(&self) -> u32 {
        self.0.as_ref().map_or(0, |echoes| echoes.version)
    }
}

/// Routers whose tickets a worker echoes at once. More than a fleet has; it bounds what hostile tickets can pile up, to 1 KiB
/// a worker. The one echoed longest ago goes first: a router that is gone is echoed no more.
const MAX_ROUTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_merge_by_maximum_per_router_and_are_bounded() {
        let mut admitted = Admitted::default();
        let ticket = |router, number| Ticket { router, number };
        assert!(admitted.merge(ticket(1, 5)));
        assert!(!admitted.merge(ticket(1, 5)));
        assert!(!admitted.merge(ticket(1, 4)));
        assert!(admitted.merge(ticket(2, 1)));
        assert_eq!(
            (admitted.tickets(), admitted.version()),
            (&[ticket(1, 5), ticket(2, 1)][..], 2)
        );
        for router in 3..100 {
            admitted.merge(ticket(router, 1));
        }
        assert_eq!(admitted.tickets().len(), MAX_ROUTERS);
        assert!(admitted.tickets().contains(&ticket(99, 1)));
    }
}
