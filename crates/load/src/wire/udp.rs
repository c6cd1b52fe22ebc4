//! UDP wire: a request is a datagram, and its answer is the next datagram that comes. The wire gives up the connection, and with
//! it the port, when a datagram comes that no request waits for. Late and duplicate answers therefore meet a closed socket.

use std::sync::Arc;

use super::{Answer, Event, Request, Wire};
use crate::body::Malformed;
use crate::tally::Outcome;

#[derive(Debug)]
pub(super) struct Udp {
    requests: Arc<[Request]>,
    current: Option<usize>,
    sent: bool,
}

impl Udp {
    pub(super) fn new(requests: Arc<[Request]>) -> Self {
        Self {
            requests,
            current: None,
            sent: false,
        }
    }
}

impl Wire for Udp {
    fn reset(&mut self) {
        self.current = None;
    }

    fn send(&mut self, _lane: usize, which: usize) {
        (self.current, self.sent) = (Some(which), false);
    }

    fn unsent(&self) -> &[u8] {
        match self.current {
            Some(which) if !self.sent => &self.requests[which].bytes,
            _ => &[],
        }
    }

    fn wrote(&mut self, _count: usize) {
        // A datagram goes whole or not at all.
        self.sent = true;
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Malformed> {
        let Some(which) = self.current.take_if(|_| self.sent) else {
            events.push(Event::Unsolicited);
            return Ok(());
        };
        events.push(Event::First(0));
        let body = bytes.len() as u64;
        if body == self.requests[which].answer_bytes {
            let answer = Answer {
                status: None,
                body,
                surplus: false,
            };
            events.push(Event::Answered(0, answer));
        } else {
            events.push(Event::Failed(0, Outcome::Size));
        }
        Ok(())
    }
}
