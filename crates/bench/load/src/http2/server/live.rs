//! Streams that are answered while their client still talks: every message may be answered at once, and both sides stay open.
//!
//! ```text
//! Head ─▶ live ─▶ Piece, Piece … ─ take_messages ─▶ (echo, reflection) ─ speak ─▶ out ─ as windows allow ─▶ DATA … trailers
//! ```

use super::{Decimal, Http2Server, ServerStreamState, lowered};
use crate::grpc;

impl Http2Server {
    /// Takes the whole messages that have come, prefixes and all.
    pub(crate) fn take_messages(&mut self, lane: usize) -> Vec<u8> {
        let stream = self.stream(lane);
        let whole = grpc::whole_messages(&stream.body);
        let rest = stream.body.split_off(whole);
        let taken = std::mem::replace(&mut stream.body, rest);
        stream.held = stream.held.saturating_sub(taken.len());
        self.state.kept = self.state.kept.saturating_sub(taken.len());
        taken
    }

    /// Reports if the client has ended the stream and all its messages were taken.
    pub(crate) fn listened(&mut self, lane: usize) -> bool {
        let stream = self.stream(lane);
        stream.ended && stream.body.is_empty()
    }

    /// Reports if the client has ended the stream.
    pub(crate) fn ended(&mut self, lane: usize) -> bool {
        self.stream(lane).ended
    }

    /// Reports if an answer has begun.
    pub(crate) fn begun(&mut self, lane: usize) -> bool {
        self.stream(lane).begun
    }

    /// Says more on a live stream, and perhaps how it ends.
    pub(crate) fn speak(
        &mut self,
        lane: usize,
        headers: &str,
        bytes: &[u8],
        end: Option<(u16, &str)>,
    ) {
        let state = &mut self.state;
        let id = state.ids[lane];
        if id == 0 {
            return;
        }
        if !state.streams[lane].begun {
            state.streams[lane].begun = true;
            let more = lowered(headers);
            let fixed = [(":status", "200"), ("content-type", "application/grpc")];
            let fields = fixed.into_iter();
            let fields = fields.chain(
                more.iter()
                    .map(|(name, value)| (name.as_str(), value.as_str())),
            );
            state
                .core
                .encode(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes(), true)));
            state.core.put_coded(id, false);
        }
        let stream = &mut state.streams[lane];
        stream.out.extend_from_slice(bytes);
        stream.held += bytes.len();
        state.kept += bytes.len();
        stream.end = end.map(|(status, why)| (status, why.to_owned()));
        if !stream.answering {
            stream.answering = true;
            state.unsent += 1;
        }
        state.push(lane);
    }
}

impl ServerStreamState {
    /// Sends what a live stream has to say, as its windows allow.
    pub(super) fn push(&mut self, lane: usize) {
        let id = self.ids[lane];
        let stream = &mut self.streams[lane];
        while stream.sent < stream.out.len() {
            let room = self
                .core
                .room(stream.window, stream.out.len() - stream.sent);
            if room == 0 {
                return;
            }
            let piece = &stream.out[stream.sent..stream.sent + room];
            self.core.put_data(piece, id, false);
            stream.sent += room;
            stream.window -= room as i64;
        }
        self.kept = self.kept.saturating_sub(stream.sent);
        stream.held = stream.held.saturating_sub(stream.sent);
        stream.out.clear();
        stream.sent = 0;
        stream.answering = false;
        self.unsent -= 1;
        let Some((status, why)) = stream.end.take() else {
            return;
        };
        let mut text = Decimal::default();
        let fields = [
            ("grpc-status", text.of(status.into())),
            ("grpc-message", &why),
        ];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        self.core
            .encode(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes(), true)));
        self.core.put_coded(id, true);
        self.over(lane);
    }
}
