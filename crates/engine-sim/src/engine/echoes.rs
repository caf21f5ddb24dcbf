//! The tickets that an engine echoes.

use actix_kv_metrics::Ticket;

/// The newest ticket of each router, those echoed last at the end.
///
/// Tickets of several routers have no order among them: each router is told of its own. An engine echoes those of
/// 64 at most; the one echoed longest ago goes first, as with the crate's reporters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Echoes {
    tickets: Vec<Ticket>,
}

impl Echoes {
    /// Takes in a ticket, unless its router has a newer one.
    pub fn add(&mut self, ticket: Ticket) {
        let known = self.tickets.iter();
        let known = known
            .clone()
            .position(|known| known.router == ticket.router);
        if let Some(place) = known {
            if self.tickets[place].number >= ticket.number {
                return;
            }
            self.tickets.remove(place);
        } else if self.tickets.len() == MAX_ROUTERS {
            self.tickets.remove(0);
        }
        self.tickets.push(ticket);
    }

    /// One of each router.
    pub fn tickets(&self) -> &[Ticket] {
        &self.tickets
    }

    /// Those that an earlier state did not have.
    pub fn news<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = Ticket> + 'a {
        let known = |ticket: &&Ticket| !earlier.tickets.contains(ticket);
        self.tickets.iter().filter(known).copied()
    }
}

/// As many as a worker of the crate echoes (DESIGN, reservations).
const MAX_ROUTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(router: u64, number: u64) -> Ticket {
        Ticket { router, number }
    }

    #[test]
    fn each_router_has_a_newest_ticket_of_its_own() {
        let mut echoes = Echoes::default();
        for (router, number) in [(9, 5), (2, 7), (9, 4), (2, 8)] {
            echoes.add(ticket(router, number));
        }
        assert_eq!(echoes.tickets(), [ticket(9, 5), ticket(2, 8)]);
    }

    #[test]
    fn the_router_echoed_longest_ago_makes_room() {
        let mut echoes = Echoes::default();
        for router in 0..MAX_ROUTERS as u64 {
            echoes.add(ticket(router, 1));
        }
        echoes.add(ticket(0, 2));
        echoes.add(ticket(100, 1));
        assert_eq!(echoes.tickets().len(), MAX_ROUTERS);
        assert!(echoes.tickets().contains(&ticket(0, 2)));
        assert!(!echoes.tickets().contains(&ticket(1, 1)));
    }

    #[test]
    fn what_an_earlier_state_had_is_no_news() {
        let mut echoes = Echoes::default();
        echoes.add(ticket(1, 1));
        let earlier = echoes.clone();
        echoes.add(ticket(2, 1));
        echoes.add(ticket(1, 1));
        assert_eq!(echoes.news(&earlier).collect::<Vec<_>>(), [ticket(2, 1)]);
    }
}
