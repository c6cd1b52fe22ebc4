//! HTTP/1.1: one request, one response, and then the next.

use std::sync::Arc;

use super::{HttpResponse, PreparedRequest, Wire, WireEvent};
use crate::body::Malformed;
use crate::options::fresh;
use crate::response::{Reader, Response};

#[derive(Debug)]
pub(super) struct Http1 {
    requests: Arc<[PreparedRequest]>,
    /// The request in flight, and how much of it has been written.
    current: Option<usize>,
    /// Its bytes, where they are others each time.
    fresh: Vec<u8>,
    written: usize,
    reader: Reader,
}

impl Http1 {
    pub(super) fn new(requests: Arc<[PreparedRequest]>) -> Self {
        Self {
            requests,
            current: None,
            fresh: Vec::new(),
            written: 0,
            reader: Reader::new(false),
        }
    }

    fn answered(&mut self, response: Response, surplus: bool, events: &mut Vec<WireEvent>) {
        // A response before the request was wholly sent leaves a connection that cannot be used again.
        if response.close || surplus || !self.unsent().is_empty() {
            events.push(WireEvent::Close);
        }
        self.current = None;
        let (status, body) = (Some(response.status), response.body);
        let answer = HttpResponse {
            status,
            body,
            surplus,
        };
        events.push(WireEvent::Answered(0, answer));
    }
}

impl Wire for Http1 {
    fn reset(&mut self) {
        self.current = None;
        self.reader.reset();
    }

    fn send(&mut self, _lane: usize, which: usize) {
        (self.current, self.written) = (Some(which), 0);
        let request = &self.requests[which];
        self.reader.set_head_request(request.head);
        if !request.uuids.is_empty() {
            self.fresh.clone_from(&request.bytes);
            fresh::put(&mut self.fresh, &request.uuids);
        }
    }

    fn unsent(&self) -> &[u8] {
        match self.current {
            Some(which) => match &self.requests[which] {
                always if always.uuids.is_empty() => &always.bytes[self.written..],
                _ => &self.fresh[self.written..],
            },
            None => &[],
        }
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed> {
        if self.current.is_none() {
            // The next response could not be distinguished from these bytes.
            events.push(WireEvent::Unsolicited);
            return Ok(());
        }
        if !self.reader.begun() {
            events.push(WireEvent::First(0));
        }
        if let (used, Some(response)) = self.reader.feed(bytes)? {
            self.answered(response, used < bytes.len(), events);
        }
        Ok(())
    }

    fn end(&mut self, events: &mut Vec<WireEvent>) {
        if let Some(response) = self.reader.end_of_stream() {
            self.answered(response, false, events);
        }
    }
}
