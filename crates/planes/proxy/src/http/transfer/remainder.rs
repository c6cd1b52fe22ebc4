//! The remainder of a request's body behind its answer: it is read and dropped, so that the connection is kept. Only what
//! the request's own framing counts is dropped; the next request begins behind it, or the connection closes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use crate::http::connection::{AfterExchange, ConnectionWork, Http1Connection};
use crate::http::io::Io;
use crate::http::role::{ExchangeRecord, HttpRole};
use crate::http::upload::Upload;

impl<S: Io, R: HttpRole> Http1Connection<'_, S, R> {
    /// Keeps the connection for its next request. The upload ends soon.
    pub(in crate::http) async fn keep_client(
        &mut self,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        if !upload.received() {
            // The exchange ended with its answer.
            tally.finish();
            // Boxed: it is rare, and every idle connection would pay for its size.
            if !Box::pin(self.drop_remainder(upload)).await {
                return AfterExchange::Close { linger: true };
            }
        }
        AfterExchange::Keep { end: upload.end() }
    }

    /// Returns true if the whole remainder came within the linger time.
    async fn drop_remainder(&mut self, upload: &mut Upload) -> bool {
        let limit = Instant::now() + self.worker.timeouts.linger;
        let Some(ConnectionWork { input, .. }) = &mut self.work else {
            return false;
        };
        let (stream, timer) = (&mut self.stream, &mut self.timer);
        poll_fn(|cx| match upload.poll_remainder(cx, input, stream) {
            Poll::Ready(read) => Poll::Ready(read.is_ok()),
            Poll::Pending if timer.passed(cx, limit) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}
