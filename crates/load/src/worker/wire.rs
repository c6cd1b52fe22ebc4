//! What a connection's bytes mean to the generator: one state for each protocol, with bytes in and answers out.

use std::sync::Arc;

use crate::http2::{Client, Shape};
use crate::options::{LoadOptions, Protocol};
use crate::response::Reader;

/// The protocol's state of one connection.
#[derive(Debug)]
pub(super) enum Wire {
    Http1 {
        reader: Reader,
        written: usize,
    },
    Http2 {
        shape: Arc<Shape>,
        lanes: usize,
        client: Box<Client>,
    },
    /// Request and response are so many bytes.
    Tcp {
        written: usize,
        missing: u64,
    },
}

impl Wire {
    pub(super) fn new(options: &LoadOptions, shape: &Arc<Shape>) -> Self {
        match options.protocol {
            Protocol::Http1 => Self::Http1 {
                reader: Reader::new(options.method == "HEAD"),
                written: 0,
            },
            Protocol::Http2 | Protocol::Grpc => Self::Http2 {
                shape: Arc::clone(shape),
                lanes: options.streams,
                client: Box::new(Client::new(Arc::clone(shape), options.streams)),
            },
            Protocol::TcpRr | Protocol::TcpBulk => Self::Tcp {
                written: 0,
                missing: 0,
            },
        }
    }

    /// For a new connection.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Http1 { reader, written } => {
                reader.reset();
                *written = 0;
            }
            Self::Http2 {
                shape,
                lanes,
                client,
            } => **client = Client::new(Arc::clone(shape), *lanes),
            Self::Tcp { written, missing } => (*written, *missing) = (0, 0),
        }
    }
}
