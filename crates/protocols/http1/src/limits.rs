//! Every limit of the codec, by name, with its unit and its reason.
//!
//! Offsets into a head are kept in 16 bits, so no limit on heads may reach 64 KiB.

/// Largest message head (start line, fields and the empty line), in bytes. Envoy's default; more is answered 431.
pub const MAX_HEAD_BYTES: usize = 60 * 1024;

/// Largest number of field lines in a client's head. Envoy's default; more is answered 431.
pub const MAX_HEADERS: usize = 100;

/// Field lines that proxies on the way may add (`x-forwarded-for`, `x-request-id`, a trace, identity, the routes' own): the
/// next proxy does not count them against the client.
pub const MAX_ADDED_HEADERS: usize = 28;

/// Largest number of field lines in a head that the codec reads: a server's, or one that a proxy of the mesh passed
/// on. The caller limits other clients by [`MAX_HEADERS`].
pub const MAX_FORWARDED_HEADERS: usize = MAX_HEADERS + MAX_ADDED_HEADERS;

/// Longest request line, in bytes without its CRLF. RFC 9112 section 3 asks for at least 8000; more is answered 414.
pub const MAX_REQUEST_LINE_BYTES: usize = 32 * 1024;

/// Most empty lines skipped before a request line. RFC 9112 section 2.2 asks for one; some old clients send two.
pub const MAX_LEADING_EMPTY_LINES: usize = 2;

/// Most options one message may list in `Connection`: each is compared with every field name, so the product is bounded.
pub const MAX_CONNECTION_OPTIONS: usize = 16;

/// Most hexadecimal digits of a chunk size: 2^60 - 1 bytes, far from overflow, and no room for padding tricks.
pub const MAX_CHUNK_SIZE_DIGITS: u8 = 15;

/// Most bytes of chunk extensions in one body: they carry nothing we use, and unbounded they are a way to keep us busy.
pub const MAX_CHUNK_EXTENSION_BYTES: u32 = 4 * 1024;

/// Most bytes of a trailer section.
pub const MAX_TRAILER_BYTES: u32 = 8 * 1024;
