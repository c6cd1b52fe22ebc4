//! Reading side of streams, for tasks.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::stream::HalfState;
use super::{Connection, Failure};
use crate::fields::Fields;

impl Connection {
    /// Returns true if [`Connection::poll_data`] would be ready.
    pub(crate) fn has_news(&self, key: usize) -> bool {
        let stream = &self.streams[key];
        !stream.data.is_empty() || stream.recv == HalfState::Ended || stream.failed.is_some()
    }

    pub(crate) fn is_received(&self, key: usize) -> bool {
        self.streams[key].recv == HalfState::Ended
    }

    pub(crate) fn is_read(&self, key: usize) -> bool {
        self.streams[key].is_read()
    }

    pub(crate) fn poll_early(&mut self, key: usize, cx: &Context<'_>) -> Poll<Option<Fields>> {
        let stream = &mut self.streams[key];
        match stream.early.pop_front() {
            Some(head) => Poll::Ready(Some(head)),
            None if stream.head.is_some() || stream.failed.is_some() => Poll::Ready(None),
            None => {
                stream.watch(cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_head(
        &mut self,
        key: usize,
        cx: &Context<'_>,
    ) -> Poll<Result<Fields, Failure>> {
        let stream = &mut self.streams[key];
        match (stream.head.take(), stream.failed) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(failure)) => Poll::Ready(Err(failure)),
            (None, None) => {
                stream.watch(cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_data(
        &mut self,
        key: usize,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Bytes, Failure>>> {
        let stream = &mut self.streams[key];
        if !stream.data.is_empty() {
            stream.took = stream.data.len() as u32;
            return Poll::Ready(Some(Ok(std::mem::take(&mut stream.data).into())));
        }
        match (stream.recv, stream.failed) {
            (HalfState::Ended, _) => Poll::Ready(None),
            (_, Some(failure)) => Poll::Ready(Some(Err(failure))),
            _ => {
                stream.watch(cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_trailers(
        &mut self,
        key: usize,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Fields>, Failure>> {
        let stream = &mut self.streams[key];
        match (stream.recv, stream.failed) {
            (HalfState::Ended, _) => Poll::Ready(Ok(stream.trailers.take())),
            (_, Some(failure)) => Poll::Ready(Err(failure)),
            _ => {
                stream.watch(cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_failed(&mut self, key: usize, cx: &Context<'_>) -> Poll<Failure> {
        let stream = &mut self.streams[key];
        match stream.failed {
            Some(failure) => Poll::Ready(failure),
            None => {
                stream.watch(cx);
                Poll::Pending
            }
        }
    }
}
