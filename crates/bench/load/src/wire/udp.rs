//! UDP wire: a request is a datagram, and its answer is the next datagram that comes. The wire gives up the connection, and with
//! it the port, when a datagram comes that no request waits for. Late and duplicate answers therefore meet a closed socket.

use std::sync::Arc;

use super::{HttpResponse, PreparedRequest, Wire, WireEvent};
use crate::body::Malformed;
use crate::tally::RequestOutcome;

#[derive(Debug)]
pub(super) struct Udp {
    requests: Arc<[PreparedRequest]>,
    current: Option<usize>,
    sent: bool,
}

impl Udp {
    pub(super) fn new(requests: Arc<[PreparedRequest]>) -> Self {
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

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed> {
        let Some(which) = self.current.take_if(|_| self.sent) else {
            events.push(WireEvent::Unsolicited);
            return Ok(());
        };
        events.push(WireEvent::First(0));
        let body = bytes.len() as u64;
        if body == self.requests[which].answer_bytes {
            let answer = HttpResponse {
                status: None,
                body,
                surplus: false,
            };
            events.push(WireEvent::Answered(0, answer));
        } else {
            events.push(WireEvent::Failed(0, RequestOutcome::Size));
        }
        Ok(())
    }
}
