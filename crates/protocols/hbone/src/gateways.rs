//! Which of several gateways of a network is asked first, as one worker knows them: any of those that are well, and then those that
//! could not be reached lately. Pure; time and randomness are arguments.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for which a gateway that could not be reached is tried last.
const PAUSE: Duration = Duration::from_secs(30);
/// Gateways that are remembered; of more the one that failed first is forgotten.
const MAX_REMEMBERED: usize = 64;
/// Time limit of an attempt while there are other gateways: a handshake across an ocean, with a packet lost.
pub const ATTEMPT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub struct Gateways(RefCell<Vec<(SocketAddr, Instant)>>);

impl Gateways {
    /// The places of these gateways in the order in which they are asked.
    #[must_use]
    pub fn order(&self, all: &[SocketAddr], random: u64, now: Instant) -> Vec<usize> {
        let failed = self.0.borrow();
        let since = |place: &usize| {
            let known = failed.iter().find(|(at, _)| *at == all[*place]);
            known
                .map(|(_, since)| *since)
                .filter(|since| now.duration_since(*since) < PAUSE)
        };
        let count = all.len().max(1);
        let first = usize::try_from(random % count as u64).unwrap_or_default();
        let mut order: Vec<usize> = (0..all.len()).map(|n| (first + n) % count).collect();
        // The gateway that failed first comes first: it may be well again. The order of healthy gateways is random.
        order.sort_by_key(since);
        order
    }

    /// It could not be reached.
    pub fn failed(&self, gateway: SocketAddr, now: Instant) {
        self.reached(gateway);
        let mut failed = self.0.borrow_mut();
        if failed.len() == MAX_REMEMBERED {
            failed.remove(0);
        }
        failed.push((gateway, now));
    }

    /// It answered.
    pub fn reached(&self, gateway: SocketAddr) {
        self.0.borrow_mut().retain(|(at, _)| *at != gateway);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 15008).into()
    }

    #[test]
    fn chance_says_which_gateway_is_first_and_those_that_failed_lately_are_last() {
        let (all, now) = ([at(1), at(2), at(3)], Instant::now());
        let known = Gateways::default();
        let firsts: Vec<usize> = (0..6)
            .map(|random| known.order(&all, random, now)[0])
            .collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2], "each as often as another");
        let order = |random, later| known.order(&all, random, now + Duration::from_secs(later));
        known.failed(at(2), now);
        known.failed(at(1), now + Duration::from_secs(1));
        for random in 0..3 {
            assert_eq!(order(random, 1), [2, 1, 0], "who failed first is next");
        }
        known.reached(at(1));
        assert_eq!(
            [order(0, 1), order(1, 1), order(2, 1)],
            [[0, 2, 1], [2, 0, 1], [2, 0, 1]]
        );
        assert_eq!(order(1, 30)[0], 1, "after a while it is as good as any");
        assert!(known.order(&[], 7, now).is_empty());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (known, now) = (Gateways::default(), Instant::now());
        for last in 0..=MAX_REMEMBERED as u8 {
            known.failed(at(last), now);
        }
        let remembered = known.0.borrow();
        assert_eq!(remembered.len(), MAX_REMEMBERED);
        assert!(
            remembered.iter().all(|(gateway, _)| *gateway != at(0)),
            "the first is forgotten"
        );
    }
}
