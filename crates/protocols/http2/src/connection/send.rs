//! Sending side of streams, for tasks. Heads are encoded at once, data as far as windows and room allow; the rest
//! waits in its stream.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::stream::Queued;
use super::{Connection, Failure, HalfState, Stream};
use crate::fields::Fields;
use crate::frame::{
    self, DEFAULT_MAX_FRAME, ErrorCode, FrameHead, HEAD_BYTES, MAX_WINDOW, flag, kind,
};

/// Less room than this is not worth a frame of its own while something else is being written.
const MIN_DATA_BYTES: usize = 1024;

/// Data in one frame: with its head it fills a TLS record, so that a reader has whole frames as often as it has records.
const MAX_DATA_BYTES: usize = DEFAULT_MAX_FRAME as usize - HEAD_BYTES;

/// Bytes of data for which there is room, the heads of their frames counted.
fn data_in(room: usize) -> usize {
    let (whole, rest) = (
        room / (MAX_DATA_BYTES + HEAD_BYTES),
        room % (MAX_DATA_BYTES + HEAD_BYTES),
    );
    whole * MAX_DATA_BYTES + rest.saturating_sub(HEAD_BYTES)
}

impl Connection {
    /// Returns the bytes of data that the connection takes now, on any stream.
    pub(super) fn free(&self) -> usize {
        let room = data_in(self.pool.room_bytes().saturating_sub(self.out.len()));
        if self.over.is_some() || room < MIN_DATA_BYTES {
            return 0;
        }
        room.min(usize::try_from(self.send_window).unwrap_or(0))
    }

    pub(super) fn write_block(&mut self, id: u32, fields: &Fields, end: bool) {
        let max_frame = self.peer.max_frame as usize;
        if self.out.capacity() == 0 {
            self.out = self.pool.room();
        }
        let (out, encoder) = (&mut self.out, &mut self.encoder);
        let start = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        let from = out.len();
        encoder.begin(out);
        for field in fields.all() {
            encoder.field(out, field);
        }
        let end_stream = if end { flag::END_STREAM } else { 0 };
        let mut head = FrameHead {
            length: out.len() - from,
            kind: kind::HEADERS,
            flags: end_stream | flag::END_HEADERS,
            stream: id,
        };
        if head.length <= max_frame {
            out[start..from].copy_from_slice(&head.bytes());
            return;
        }
        let block = out.split_off(from);
        out.truncate(start);
        let mut pieces = block.chunks(max_frame).peekable();
        head.flags = end_stream;
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                head.flags |= flag::END_HEADERS;
            }
            frame::write(out, head.kind, head.flags, id, piece);
            (head.kind, head.flags) = (kind::CONTINUATION, 0);
        }
    }

    /// Writes data that the windows allow.
    fn write_data(&mut self, key: usize, data: &[u8], end: bool) {
        let stream = &mut self.streams[key];
        stream.send_window -= data.len() as i64;
        self.send_window -= data.len() as i64;
        let id = stream.id;
        let mut rest = data;
        loop {
            let (piece, more) = rest.split_at(rest.len().min(MAX_DATA_BYTES));
            rest = more;
            let last = end && rest.is_empty();
            let flags = if last { flag::END_STREAM } else { 0 };
            self.write(kind::DATA, flags, id, piece);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Begins a stream; it waits where the peer allows no more at this time. None where there can be no more.
    pub(crate) fn begin(&mut self, request: Fields, end: bool) -> Option<usize> {
        if !self.takes_streams() {
            self.pool.give_block(request);
            return None;
        }
        let mut stream = Stream::new(0, self.peer.window, self.config.stream_window);
        stream.accepted = true;
        stream.bodiless = request.method() == "HEAD";
        stream.send = if end {
            HalfState::Ended
        } else {
            HalfState::Open
        };
        let key = self.streams.insert(stream);
        if self.opening.is_empty() && self.open_local < self.max_local_streams() {
            self.begin_now(key, request, end);
        } else {
            self.streams[key]
                .queue
                .push_back(Queued::Head(request, end));
            self.opening.push_back(key);
        }
        self.nudge();
        Some(key)
    }

    fn begin_now(&mut self, key: usize, request: Fields, end: bool) {
        let id = self.next_local;
        self.next_local += 2;
        self.open_local += 1;
        self.streams[key].id = id;
        self.ids.insert(id, key);
        self.write_block(id, &request, end);
        self.pool.give_block(request);
    }

    /// Streams go out for which the peer has room.
    pub(super) fn open_more(&mut self) {
        while self.open_local < self.max_local_streams() {
            let Some(key) = self.opening.pop_front() else {
                return;
            };
            self.resume(key);
        }
    }

    /// An answer's head; an interim one does not begin the body.
    pub(crate) fn answer(&mut self, key: usize, head: Fields, end: bool) -> Result<(), Failure> {
        let stream = &mut self.streams[key];
        if let Some(failure) = stream.failed {
            self.pool.give_block(head);
            return Err(failure);
        }
        if stream.send != HalfState::Head {
            return Err(Failure::Connection);
        }
        let id = stream.id;
        if self.out.len() > self.config.max_unsent {
            self.pool.give_block(head);
            return Err(self.is_not_read(key));
        }
        let stream = &mut self.streams[key];
        if head.status() >= 200 {
            stream.send = if end {
                HalfState::Ended
            } else {
                HalfState::Open
            };
        }
        self.write_block(id, &head, end);
        self.pool.give_block(head);
        self.close_if_done(key);
        self.nudge();
        Ok(())
    }

    /// Returns the number of bytes of the stream that may be sent now.
    pub(crate) fn poll_room(
        &mut self,
        key: usize,
        cx: &Context<'_>,
    ) -> Poll<Result<usize, Failure>> {
        let free = self.free();
        let stream = &mut self.streams[key];
        if let Some(failure) = stream.failed {
            return Poll::Ready(Err(failure));
        }
        if stream.send != HalfState::Open {
            return Poll::Ready(Err(Failure::Connection));
        }
        let ready = stream.id != 0 && stream.queue.is_empty();
        let window = usize::try_from(stream.send_window).unwrap_or(0);
        let room = free.min(window);
        if ready && room > 0 {
            return Poll::Ready(Ok(room));
        }
        stream.watch(cx);
        if ready && window > 0 {
            self.wait(key);
        }
        Poll::Pending
    }

    /// Returns the number of bytes of the stream's data that wait for room.
    pub(crate) fn waiting_bytes(&self, key: usize) -> usize {
        let queue = self.streams[key].queue.iter();
        let bytes = queue.map(|queued| match queued {
            Queued::Data(data, _) => data.len(),
            Queued::Head(..) | Queued::Trailers(_) => 0,
        });
        bytes.sum()
    }

    /// The stream goes on when there is room.
    fn wait(&mut self, key: usize) {
        if !std::mem::replace(&mut self.streams[key].waiting, true) {
            self.waiting.push_back(key);
        }
    }

    /// Sends data; the part that does not fit waits.
    pub(crate) fn send_data(&mut self, key: usize, data: Bytes, end: bool) -> Result<(), Failure> {
        if !self.send_now(key, &data, end)? {
            self.send_later(key, data, end);
        }
        Ok(())
    }

    /// The same; only the part that waits is copied.
    pub(crate) fn send_copy(&mut self, key: usize, data: &[u8], end: bool) -> Result<(), Failure> {
        if !self.send_now(key, data, end)? {
            self.send_later(key, Bytes::copy_from_slice(data), end);
        }
        Ok(())
    }

    /// The usual case takes no place in the queue, which would be made for it. False where it is not that.
    fn send_now(&mut self, key: usize, data: &[u8], end: bool) -> Result<bool, Failure> {
        self.may_send(key)?;
        if end {
            self.streams[key].send = HalfState::Ended;
        }
        let free = self.free();
        let stream = &self.streams[key];
        let window = usize::try_from(stream.send_window).unwrap_or(0);
        if !stream.is_next() || data.len() > free.min(window) {
            return Ok(false);
        }
        self.write_data(key, data, end);
        self.close_if_done(key);
        self.nudge();
        Ok(true)
    }

    fn send_later(&mut self, key: usize, data: Bytes, end: bool) {
        self.pool.grew(data.len());
        let stream = &mut self.streams[key];
        stream.queue.push_back(Queued::Data(data, end));
        if stream.queue.len() == 1 && stream.id != 0 {
            self.flush_queue(key);
        }
        self.nudge();
    }

    /// Ends the stream with trailers.
    pub(crate) fn send_trailers(&mut self, key: usize, trailers: Fields) -> Result<(), Failure> {
        self.may_send(key)?;
        if self.out.len() > self.config.max_unsent {
            self.pool.give_block(trailers);
            return Err(self.is_not_read(key));
        }
        let stream = &mut self.streams[key];
        stream.send = HalfState::Ended;
        if stream.is_next() {
            let id = stream.id;
            self.write_block(id, &trailers, true);
            self.pool.give_block(trailers);
            self.close_if_done(key);
            self.nudge();
            return Ok(());
        }
        stream.queue.push_back(Queued::Trailers(trailers));
        if stream.queue.len() == 1 && stream.id != 0 {
            self.flush_queue(key);
        }
        self.nudge();
        Ok(())
    }

    /// Bodies wait for room; heads cannot, since their sender gets no notice of room. A peer that has so much to read
    /// already gets no more.
    fn is_not_read(&mut self, key: usize) -> Failure {
        self.reset(key, ErrorCode::ENHANCE_YOUR_CALM);
        Failure::Reset(ErrorCode::ENHANCE_YOUR_CALM)
    }

    fn may_send(&self, key: usize) -> Result<(), Failure> {
        let stream = &self.streams[key];
        match stream.failed {
            Some(failure) => Err(failure),
            None if stream.send != HalfState::Open => Err(Failure::Connection),
            None => Ok(()),
        }
    }

    /// Writes the waiting parts, as far as possible now.
    pub(super) fn flush_queue(&mut self, key: usize) {
        while let Some(next) = self.streams[key].queue.pop_front() {
            match next {
                Queued::Head(request, end) => self.begin_now(key, request, end),
                Queued::Trailers(trailers) => {
                    self.write_block(self.streams[key].id, &trailers, true);
                    self.pool.give_block(trailers);
                }
                Queued::Data(mut data, end) => {
                    let window = usize::try_from(self.streams[key].send_window).unwrap_or(0);
                    let room = self.free().min(window);
                    if data.len() <= room {
                        self.write_data(key, &data, end);
                        continue;
                    }
                    if room > 0 {
                        let part = data.split_to(room);
                        self.write_data(key, &part, false);
                    }
                    self.streams[key].queue.push_front(Queued::Data(data, end));
                    if window > room {
                        self.wait(key);
                    }
                    return;
                }
            }
        }
        self.close_if_done(key);
        match self.streams.get(key) {
            Some(stream) if stream.refs == 0 && !stream.closed => {
                // Its last handle went while this was waiting.
                self.reset(key, ErrorCode::NO_ERROR);
            }
            _ => {}
        }
    }

    /// The same, for a stream that waited.
    pub(super) fn resume(&mut self, key: usize) {
        self.flush_queue(key);
        if let Some(stream) = self.streams.get(key) {
            stream.wake();
        }
    }

    /// The peer changed the window that its streams begin with, and so that of every stream there is.
    pub(super) fn resize_windows(&mut self, window: u32) -> Result<(), ErrorCode> {
        if i64::from(window) > MAX_WINDOW {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        let change = i64::from(window) - i64::from(self.peer.window);
        self.peer.window = window;
        let mut keys = Vec::new();
        for (key, stream) in &mut self.streams {
            stream.send_window += change;
            if stream.send_window > MAX_WINDOW {
                return Err(ErrorCode::FLOW_CONTROL_ERROR);
            }
            if change > 0 && !stream.closed {
                keys.push(key);
            }
        }
        for key in keys {
            match self.streams.get(key) {
                Some(stream) if stream.queue.is_empty() || stream.id == 0 => stream.wake(),
                Some(_) => self.resume(key),
                None => {}
            }
        }
        Ok(())
    }
}
