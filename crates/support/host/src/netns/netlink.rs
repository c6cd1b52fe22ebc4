//! As much of rtnetlink as a mesh needs: requests that make things, each acknowledged. Every number is Linux's, from
//! `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_link.h`; they never change.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

pub(super) const NEW_LINK: u16 = 16;
pub(super) const NEW_ADDRESS: u16 = 20;
pub(super) const NEW_ROUTE: u16 = 24;
pub(super) const NEW_RULE: u16 = 32;
pub(super) const SET_NEIGHBOURS: u16 = 67;

/// Make it, and fail when it is there.
pub(super) const CREATE: u16 = 0x400 | 0x200;
/// Change it.
pub(super) const CHANGE: u16 = 0;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
const NESTED: u16 = 0x8000;
/// An acknowledgement repeats the request; ours are short.
const ANSWER_BYTES: usize = 8192;

/// A request under construction: header, fixed part, attributes.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]); // the length, known at the end
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(REQUEST | ACKNOWLEDGE | flags).to_ne_bytes());
        bytes.extend_from_slice(&1_u32.to_ne_bytes()); // sequence: one at a time
        bytes.extend_from_slice(&0_u32.to_ne_bytes()); // to the kernel
        bytes.extend_from_slice(fixed);
        Self(bytes)
    }

    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.0, kind, value);
        self
    }

    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(super) fn nested(self, kind: u16, inner: &[u8]) -> Self {
        self.bytes(kind | NESTED, inner)
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Appends one attribute, padded to four bytes.
pub(super) fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// A connection to the kernel's routing tables, in the namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is protocol 0
        )?;
        Ok(Self(socket))
    }

    /// Sends one request and waits for its acknowledgement.
    pub(super) fn request(&self, message: Message) -> io::Result<()> {
        let bytes = message.finish();
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &bytes, SendFlags::empty(), &kernel)?;
        let mut buffer = [MaybeUninit::uninit(); ANSWER_BYTES];
        let ((answer, _), _) = recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty())?;
        outcome(answer)
    }
}

/// Returns the result in an acknowledgement.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let short = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "netlink: the answer is too short",
        )
    };
    let kind = answer.get(4..6).ok_or_else(short)?;
    if u16::from_ne_bytes([kind[0], kind[1]]) != ERROR {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "netlink: the answer is not an acknowledgement",
        ));
    }
    let code = answer
        .get(HEADER_BYTES..HEADER_BYTES + 4)
        .ok_or_else(short)?;
    match i32::from_ne_bytes([code[0], code[1], code[2], code[3]]) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_padded_and_knows_its_length() {
        let bytes = Message::new(NEW_LINK, CREATE, &[9; 16])
            .text(3, "eth0")
            .number(10, 7)
            .finish();
        assert_eq!(bytes.len(), 16 + 16 + 12 + 8);
        assert_eq!(&bytes[..4], 52_u32.to_ne_bytes());
        assert_eq!(
            &bytes[32..36],
            [9_u16.to_ne_bytes(), 3_u16.to_ne_bytes()].concat()
        );
        assert_eq!(&bytes[36..44], b"eth0\0\0\0\0");
    }

    #[test]
    fn an_answer_is_an_acknowledgement_or_an_error() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = vec![0; 4];
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&[0; 10]);
            bytes.extend_from_slice(&code.to_ne_bytes());
            bytes
        };
        assert!(outcome(&answer(ERROR, 0)).is_ok());
        let denied = outcome(&answer(ERROR, -libc::EPERM)).expect_err("denied");
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        assert!(outcome(&answer(NEW_LINK, 0)).is_err());
        assert!(outcome(&answer(ERROR, 0)[..18]).is_err());
        assert!(outcome(&[]).is_err());
    }
}
