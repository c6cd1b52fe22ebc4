//! HTTP/2 and gRPC: a lane is a stream of the connection (`crate::http2` has the protocol itself).

use std::sync::Arc;

use super::{PreparedRequest, Wire, WireEvent};
use crate::body::Malformed;
use crate::http2::Http2Client;

#[derive(Debug)]
pub(super) struct Http2 {
    requests: Arc<[PreparedRequest]>,
    lanes: usize,
    client: Http2Client,
}

impl Http2 {
    pub(super) fn new(requests: Arc<[PreparedRequest]>, lanes: usize) -> Self {
        let client = Http2Client::new(Arc::clone(&requests), lanes);
        Self {
            requests,
            lanes,
            client,
        }
    }
}

impl Wire for Http2 {
    fn reset(&mut self) {
        self.client = Http2Client::new(Arc::clone(&self.requests), self.lanes);
    }

    fn greets(&self) -> bool {
        // The wire is open once the server's SETTINGS have come.
        true
    }

    fn send(&mut self, lane: usize, which: usize) {
        self.client.open(lane, which);
    }

    fn unsent(&self) -> &[u8] {
        self.client.unsent()
    }

    fn wrote(&mut self, count: usize) {
        self.client.wrote(count);
    }

    fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed> {
        while let Some(event) = self.client.next(&mut bytes)? {
            events.push(event);
        }
        Ok(())
    }

    fn cancel(&mut self, lane: usize) -> bool {
        self.client.cancel(lane);
        true
    }

    fn spent(&self) -> bool {
        self.client.spent()
    }

    fn used(&self) -> bool {
        self.client.used()
    }
}
