//! HPACK (RFC 7541): fields to few bytes and back.

mod decode;
mod encode;
mod huffman;
pub(crate) mod known;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use decode::Decoder;
pub(crate) use encode::Encoder;
pub use huffman::decode as unhuffman;

/// Size of the dynamic tables in bytes, in the RFC's count: the protocol's default, which we do not raise.
pub(crate) const TABLE_BYTES: usize = 4096;
