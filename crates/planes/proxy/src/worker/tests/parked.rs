//! Captured connections and requests that wait for their destination: their number is limited, and none is left behind.

use std::net::SocketAddr;
use std::rc::Rc;

use super::{Stage, play};
use crate::plan::{CapturedDestination, Settings};
use crate::worker::Overload;
use crate::worker::listeners::captured_listeners::{CapturedListeners, MAX_PARKED};

#[test]
fn so_many_wait_for_word_and_no_more_and_their_places_are_free_again() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let captured = Rc::new(CapturedListeners::default());
        let target = |number: usize| CapturedDestination {
            to: SocketAddr::from(([192, 0, 2, (number % 200) as u8], 80)),
            host: number.is_multiple_of(3).then(|| "a.test".into()),
        };
        let wait = |number: usize| {
            let (captured, worker) = (Rc::clone(&captured), Rc::clone(&stage.worker));
            tokio::task::spawn_local(async move {
                let found = captured.destination(&worker, target(number)).await;
                found.map(|_| ())
            })
        };
        let refused = || stage.worker.seat.ledger.refused(Overload::Waiting);
        for _ in 0..2 {
            let before = refused();
            let waiting: Vec<_> = (0..MAX_PARKED).map(wait).collect();
            // Tasks begin in order, so the last one finds all the others waiting.
            let surplus = wait(MAX_PARKED).await.expect("it is refused at once");
            assert_eq!(surplus, Err(Overload::Waiting));
            assert_eq!(refused(), before + 1);
            assert!(waiting.iter().all(|waits| !waits.is_finished()));
            for waits in waiting {
                // Clients that leave.
                waits.abort();
                assert!(waits.await.is_err_and(|error| error.is_cancelled()));
            }
        }
    });
}
