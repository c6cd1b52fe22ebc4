//! Handles of tasks to a connection and its streams. All belong to one thread: a handle borrows the connection for
//! the time of a call. With a stream's last handle the stream ends, if it has not.

use std::cell::{RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::connection::{Connection, Failure};
use crate::fields::Fields;
use crate::frame::ErrorCode;
use crate::pool::Pool;

/// A connection, for its driver and for tasks that begin streams. Clones share it.
#[derive(Clone)]
pub struct Link(Rc<RefCell<Connection>>);

impl Link {
    /// Shares `connection`.
    pub fn new(connection: Connection) -> Self {
        let link = Rc::new(RefCell::new(connection));
        let listed: Weak<RefCell<Connection>> = Rc::downgrade(&link);
        let place = link.borrow().pool().list(listed);
        link.borrow_mut().listed(place);
        Self(link)
    }

    /// The connection itself, not to be held across anything that may poll another task.
    #[inline]
    pub fn borrow(&self) -> RefMut<'_, Connection> {
        self.0.borrow_mut()
    }

    /// The next stream that the peer opened: its head, its body, the way to answer.
    pub fn accept(&self) -> Option<(Fields, RecvStream, SendResponse)> {
        let (key, head) = self.0.borrow_mut().accept()?;
        let stream = StreamRef::new(&self.0, key);
        let body = RecvStream(stream.clone());
        Some((head, body, SendResponse(stream)))
    }

    /// Begins a stream with a request; `end` says that it has no body. None where the connection takes no more.
    pub fn send_request(&self, head: Fields, end: bool) -> Option<(ResponseFuture, SendStream)> {
        let key = self.0.borrow_mut().begin(head, end)?;
        let stream = StreamRef::new(&self.0, key);
        let response = ResponseFuture(stream.clone());
        Some((response, SendStream(stream)))
    }

    /// Returns the pool of its blocks.
    pub fn pool(&self) -> Pool {
        self.0.borrow().pool().clone()
    }
}

/// One hold on a stream.
struct StreamRef {
    connection: Rc<RefCell<Connection>>,
    key: usize,
}

impl StreamRef {
    fn new(connection: &Rc<RefCell<Connection>>, key: usize) -> Self {
        connection.borrow_mut().hold(key);
        Self {
            connection: Rc::clone(connection),
            key,
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Connection, usize) -> T) -> T {
        act(&mut self.connection.borrow_mut(), self.key)
    }
}

impl Clone for StreamRef {
    fn clone(&self) -> Self {
        Self::new(&self.connection, self.key)
    }
}

impl Drop for StreamRef {
    fn drop(&mut self) {
        self.with(Connection::release_handle);
    }
}

/// The peer's data after its head.
pub struct RecvStream(StreamRef);

impl RecvStream {
    /// The next bytes of the body; none at its end. They count in the window until they are released.
    #[inline]
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        self.0.with(|connection, key| connection.poll_data(key, cx))
    }

    /// Returns true if bytes, their end or a failure wait to be taken.
    pub fn has_news(&self) -> bool {
        self.0.with(|connection, key| connection.has_news(key))
    }

    /// Polls the trailers after the body.
    pub fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>> {
        let with = |connection: &mut Connection, key| connection.poll_trailers(key, cx);
        self.0.with(with)
    }

    /// Returns true if everything was received, read or not.
    pub fn is_received(&self) -> bool {
        self.0.with(|connection, key| connection.is_received(key))
    }

    /// Returns true if everything was received and read.
    pub fn is_end_stream(&self) -> bool {
        self.0.with(|connection, key| connection.is_read(key))
    }

    /// The peer may send so many bytes more.
    pub fn release_capacity(&mut self, bytes: usize) {
        self.0
            .with(|connection, key| connection.release(key, bytes));
    }
}

/// This end's data after its head.
pub struct SendStream(StreamRef);

impl SendStream {
    /// Polls the number of bytes that may be sent now.
    #[inline]
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        self.0.with(|connection, key| connection.poll_room(key, cx))
    }

    /// Sends bytes; those beyond the capacity wait.
    pub fn send_data(&mut self, data: Bytes, end: bool) -> Result<(), Failure> {
        self.0
            .with(|connection, key| connection.send_data(key, data, end))
    }

    /// The same for borrowed bytes.
    pub fn send_copy(&mut self, data: &[u8], end: bool) -> Result<(), Failure> {
        self.0
            .with(|connection, key| connection.send_copy(key, data, end))
    }

    /// Returns the number of bytes that wait for room.
    pub fn waiting_bytes(&self) -> usize {
        self.0.with(|connection, key| connection.waiting_bytes(key))
    }

    /// Ends with these.
    pub fn send_trailers(&mut self, trailers: Fields) -> Result<(), Failure> {
        self.0
            .with(|connection, key| connection.send_trailers(key, trailers))
    }

    /// Ends the stream with a code.
    pub fn send_reset(&mut self, reason: ErrorCode) {
        self.0.with(|connection, key| connection.reset(key, reason));
    }

    /// Why the stream failed, once it did.
    pub fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.0
            .with(|connection, key| connection.poll_failed(key, cx))
    }

    /// An empty block to fill.
    pub fn block(&self) -> Fields {
        self.0.with(|connection, _| connection.pool().block())
    }

    /// Gives a block back.
    pub fn give_block(&self, block: Fields) {
        self.0
            .with(|connection, _| connection.pool().give_block(block));
    }
}

/// The way to answer a request.
pub struct SendResponse(StreamRef);

impl SendResponse {
    /// Sends an interim head.
    pub fn send_informational(&mut self, head: Fields) -> Result<(), Failure> {
        self.0
            .with(|connection, key| connection.answer(key, head, false))
    }

    /// Sends the head; `end` says that no body follows.
    pub fn send_response(&mut self, head: Fields, end: bool) -> Result<SendStream, Failure> {
        self.0
            .with(|connection, key| connection.answer(key, head, end))?;
        Ok(SendStream(self.0.clone()))
    }

    /// Ends the stream with a code.
    pub fn send_reset(&mut self, reason: ErrorCode) {
        self.0.with(|connection, key| connection.reset(key, reason));
    }

    /// Why the stream failed, once it did.
    pub fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.0
            .with(|connection, key| connection.poll_failed(key, cx))
    }

    /// An empty block to fill.
    pub fn block(&self) -> Fields {
        self.0.with(|connection, _| connection.pool().block())
    }

    /// Gives a block back.
    pub fn give_block(&self, block: Fields) {
        self.0
            .with(|connection, _| connection.pool().give_block(block));
    }
}

/// The answer to a request of ours.
pub struct ResponseFuture(StreamRef);

impl ResponseFuture {
    /// The next interim head; none when the final one is there, or none will come.
    pub fn poll_informational(&mut self, cx: &mut Context<'_>) -> Poll<Option<Fields>> {
        self.0
            .with(|connection, key| connection.poll_early(key, cx))
    }

    /// The final head.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Fields, Failure>> {
        self.0.with(|connection, key| connection.poll_head(key, cx))
    }

    /// The rest of the answer.
    pub fn into_body(self) -> RecvStream {
        RecvStream(self.0)
    }
}
