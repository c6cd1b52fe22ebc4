//! The HTTP/1.1 codec, without I/O
