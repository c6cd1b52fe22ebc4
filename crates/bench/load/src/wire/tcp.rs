//! Request and response are so many bytes.

use std::sync::Arc;

use super::{HttpResponse, PreparedRequest, Wire, WireEvent};
use crate::body::Malformed;

#[derive(Debug)]
pub(super) struct Tcp {
    requests: Arc<[PreparedRequest]>,
    current: Option<usize>,
    written: usize,
    missing: u64,
}

impl Tcp {
    pub(super) fn new(requests: Arc<[PreparedRequest]>) -> Self {
        Self {
            requests,
            current: None,
            written: 0,
            missing: 0,
        }
    }
}

impl Wire for Tcp {
    fn reset(&mut self) {
        self.current = None;
    }

    fn send(&mut self, _lane: usize, which: usize) {
        (self.current, self.written) = (Some(which), 0);
        self.missing = self.requests[which].answer_bytes;
    }

    fn unsent(&self) -> &[u8] {
        match self.current {
            Some(which) => &self.requests[which].bytes[self.written..],
            None => &[],
        }
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed> {
        let Some(which) = self.current else {
            events.push(WireEvent::Unsolicited);
            return Ok(());
        };
        let (expected, count) = (self.requests[which].answer_bytes, bytes.len() as u64);
        if self.missing == expected {
            events.push(WireEvent::First(0));
        }
        let surplus = count > self.missing;
        self.missing = self.missing.saturating_sub(count);
        if self.missing == 0 {
            if surplus || !self.unsent().is_empty() {
                events.push(WireEvent::Close);
            }
            self.current = None;
            let answer = HttpResponse {
                status: None,
                body: expected,
                surplus,
            };
            events.push(WireEvent::Answered(0, answer));
        }
        Ok(())
    }
}
