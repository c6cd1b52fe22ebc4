//! The peer's settings: taken at once, all or none, and acknowledged.

use super::{Connection, ConnectionSide};
use crate::frame::{DEFAULT_MAX_FRAME, ErrorCode, flag, kind, number, setting};

impl Connection {
    fn setting(&mut self, name: u16, value: u32) -> Result<(), ErrorCode> {
        match name {
            setting::HEADER_TABLE_SIZE => self.encoder.limit(value as usize),
            setting::ENABLE_PUSH if value > 1 => return Err(ErrorCode::PROTOCOL_ERROR),
            setting::ENABLE_PUSH if value == 1 && self.side == ConnectionSide::Client => {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            setting::MAX_CONCURRENT_STREAMS => {
                self.peer.max_streams = value;
                self.open_more();
            }
            setting::INITIAL_WINDOW_SIZE if value != self.peer.window => {
                self.window_changes += 1;
                if self.window_changes > self.config.max_window_changes {
                    return Err(ErrorCode::ENHANCE_YOUR_CALM);
                }
                self.resize_windows(value)?;
            }
            setting::MAX_FRAME_SIZE if !(DEFAULT_MAX_FRAME..=0xff_ffff).contains(&value) => {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            setting::MAX_FRAME_SIZE => self.peer.max_frame = value,
            setting::ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(ErrorCode::PROTOCOL_ERROR),
            setting::ENABLE_CONNECT_PROTOCOL => self.peer.extended_connect = value == 1,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn settings(&mut self, flags: u8, payload: &[u8]) -> Result<(), ErrorCode> {
        if flags & flag::ACK != 0 {
            return match payload {
                [] => Ok(()),
                _ => Err(ErrorCode::FRAME_SIZE_ERROR),
            };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        for one in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([one[0], one[1]]);
            self.setting(name, number(&one[2..]))?;
        }
        self.write(kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }
}
