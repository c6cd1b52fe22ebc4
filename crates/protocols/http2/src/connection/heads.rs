//! Received header blocks: collected, decoded in order for all streams, checked, and given to their stream.

use super::receive::Block;
use super::{ClosedStream, Connection, ConnectionSide, HalfState, ShutdownState, Stream};
use crate::budget::USUAL_HEAD;
use crate::fields::Fields;
use crate::frame::{ErrorCode, FrameHead, flag, kind, number};
use crate::head::{self, CheckedHead, HeadKind};

impl Connection {
    pub(super) fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        let (mut text, mut padding) = (payload, 0);
        if head.has(flag::PADDED) {
            let (length, rest) = text.split_first().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            (text, padding) = (rest, usize::from(*length));
        }
        let mut own_parent = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = text
                .split_at_checked(5)
                .ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            own_parent = number(priority) & 0x7fff_ffff == head.stream;
            text = rest;
        }
        let length = text.len().checked_sub(padding);
        let text = &text[..length.ok_or(ErrorCode::PROTOCOL_ERROR)?];
        let end_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.block(head.stream, end_stream, own_parent, text);
        }
        // A connection cannot go on without having decoded it.
        let budgeted = self
            .take_heads(text.len())
            .ok_or(ErrorCode::ENHANCE_YOUR_CALM)?;
        self.input.block = Some(Box::new(Block {
            stream: head.stream,
            end_stream,
            own_parent,
            continuations: 0,
            budgeted,
            text: text.to_vec(),
        }));
        Ok(())
    }

    pub(super) fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ErrorCode> {
        let mut block = self.input.block.take().ok_or(ErrorCode::PROTOCOL_ERROR)?;
        if block.stream != head.stream {
            self.input.block = Some(block);
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        block.continuations += 1;
        let taken = match block.continuations > self.config.max_continuations {
            true => None,
            false => self.take_heads(payload.len()),
        };
        let Some(taken) = taken else {
            self.input.block = Some(block);
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        };
        block.budgeted += taken;
        block.text.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            if block.budgeted > 0 {
                self.give_heads(block.budgeted);
            }
            return self.block(
                block.stream,
                block.end_stream,
                block.own_parent,
                &block.text,
            );
        }
        self.input.block = Some(block);
        Ok(())
    }

    /// Takes a whole block. It is always decoded, because the table that both ends share depends on it.
    fn block(
        &mut self,
        id: u32,
        end: bool,
        own_parent: bool,
        text: &[u8],
    ) -> Result<(), ErrorCode> {
        let mut fields = self.pool.block();
        let limit = self.config.max_header_list as usize;
        let decoded = self.decoder.decode(text, &mut fields, limit);
        let whole = decoded.map_err(|_| ErrorCode::COMPRESSION_ERROR)?;
        if own_parent && !self.is_idle(id) {
            self.pool.give_block(fields);
            self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
            return Ok(());
        }
        match self.ids.get(id) {
            Some(key) => {
                if let Err(reason) = self.head(key, fields, end, whole) {
                    self.stream_error(id, reason);
                }
                Ok(())
            }
            None if self.is_idle(id) => {
                let checked = head::check(HeadKind::Request, &fields);
                let good = checked.ok().filter(|_| !own_parent);
                self.open(id, fields, end, whole.then_some(good))
            }
            None => {
                self.pool.give_block(fields);
                match (self.ids.gone(id), self.side) {
                    (Some(ClosedStream::ResetByUs), _) | (None, ConnectionSide::Client) => Ok(()),
                    (Some(ClosedStream::Over), _) => Err(ErrorCode::STREAM_CLOSED),
                    (None, ConnectionSide::Server) => Err(ErrorCode::PROTOCOL_ERROR),
                }
            }
        }
    }

    /// Opens a client's new stream. `checked` is None for a head that is too large, otherwise the result of the
    /// check. For a head that is too large, the server gets only an excerpt, to be refused.
    fn open(
        &mut self,
        id: u32,
        mut fields: Fields,
        end: bool,
        checked: Option<Option<CheckedHead>>,
    ) -> Result<(), ErrorCode> {
        if self.side == ConnectionSide::Client || id.is_multiple_of(2) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let before = std::mem::replace(&mut self.last_peer, id);
        if matches!(self.leaving, ShutdownState::After(_)) {
            // It was told that this one is not looked at.
            self.last_peer = before.max(id);
            self.ids.close(
                id,
                ClosedStream::ResetByUs,
                self.config.max_remembered_resets,
            );
            return Ok(());
        }
        if checked.is_none() {
            let mut excerpt = self.pool.block();
            fields.excerpt(&mut excerpt);
            self.pool
                .give_block(std::mem::replace(&mut fields, excerpt));
        }
        let size = fields.size();
        let crowded = self.heads + size > self.config.max_heads;
        if self.open_peer >= self.config.max_peer_streams || crowded {
            self.refuse_stream(id, fields);
            return Ok(());
        }
        // A body that was promised and does not come.
        let length = match checked {
            None => Some(None),
            Some(checked) => checked.map(|checked| checked.length),
        };
        let good = length.filter(|length| !(end && length.unwrap_or(0) > 0));
        let Some(length) = good else {
            self.pool.give_block(fields);
            self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
            return Ok(());
        };
        let mut budgeted = 0;
        if size > USUAL_HEAD {
            match self.take_heads(size) {
                Some(taken) => budgeted = taken,
                None => {
                    self.refuse_stream(id, fields);
                    return Ok(());
                }
            }
        }
        let mut stream = Stream::new(id, self.peer.window, self.config.stream_window);
        stream.budgeted = budgeted;
        stream.recv = if end {
            HalfState::Ended
        } else {
            HalfState::Open
        };
        stream.expected = length;
        stream.heads = size;
        self.heads += size;
        stream.head = Some(fields);
        let key = self.streams.insert(stream);
        self.ids.insert(id, key);
        self.open_peer += 1;
        self.accepting.push_back(key);
        Ok(())
    }

    /// A stream that is not looked at; the peer may try again.
    #[cold]
    fn refuse_stream(&mut self, id: u32, fields: Fields) {
        self.pool.give_block(fields);
        let refused = ErrorCode::REFUSED_STREAM.0.to_be_bytes();
        self.write(kind::RST_STREAM, 0, id, &refused);
        self.ids.close(
            id,
            ClosedStream::ResetByUs,
            self.config.max_remembered_resets,
        );
    }

    /// Takes room for a stream's large heads. Gives how much of the budget that is; none where there is no room.
    #[cold]
    fn take_heads(&self, bytes: usize) -> Option<u32> {
        let taken = self.pool.take_heads(self.source, bytes)?;
        Some(taken as u32)
    }

    /// Gives room back that [`Self::take_heads`] took.
    #[cold]
    pub(super) fn give_heads(&self, bytes: u32) {
        self.pool.give_heads(self.source, bytes as usize);
    }

    /// Takes room for a further head of a stream.
    #[cold]
    fn take_more_heads(&mut self, key: usize, size: usize) -> Result<(), ErrorCode> {
        let wanted = self.streams[key].heads + size - self.streams[key].budgeted as usize;
        let taken = self
            .take_heads(wanted)
            .ok_or(ErrorCode::ENHANCE_YOUR_CALM)?;
        self.streams[key].budgeted += taken;
        Ok(())
    }

    /// A head on a stream that is open.
    fn head(
        &mut self,
        key: usize,
        fields: Fields,
        end: bool,
        whole: bool,
    ) -> Result<(), ErrorCode> {
        let stream = &mut self.streams[key];
        if stream.recv == HalfState::Ended {
            return Err(ErrorCode::STREAM_CLOSED);
        }
        if !whole {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let size = fields.size();
        if self.heads + size > self.config.max_heads {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        if stream.heads + size > USUAL_HEAD {
            self.take_more_heads(key, size)?;
        }
        let stream = &mut self.streams[key];
        stream.heads += size;
        self.heads += size;
        if stream.recv == HalfState::Open {
            if !end || head::check(HeadKind::Trailers, &fields).is_err() {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            stream.trailers = Some(fields);
            self.end_of_stream(key);
            return Ok(());
        }
        let checked = head::check(HeadKind::Response, &fields);
        let checked = checked.map_err(|_| ErrorCode::PROTOCOL_ERROR)?;
        match fields.status() {
            // There is no upgrade in HTTP/2, and an interim answer is no end.
            101 => return Err(ErrorCode::PROTOCOL_ERROR),
            100..200 if end => return Err(ErrorCode::PROTOCOL_ERROR),
            100..200 => {
                if stream.early.len() >= self.config.max_interim {
                    return Err(ErrorCode::ENHANCE_YOUR_CALM);
                }
                stream.early.push_back(fields);
                stream.wake();
                return Ok(());
            }
            204 | 304 => stream.bodiless = true,
            _ => {}
        }
        stream.expected = checked.length.filter(|_| !stream.bodiless);
        stream.head = Some(fields);
        stream.recv = HalfState::Open;
        stream.wake();
        if end {
            self.end_of_stream(key);
        }
        Ok(())
    }
}
