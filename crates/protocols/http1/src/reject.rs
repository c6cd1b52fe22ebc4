//! Why a message is refused. Each reason has one status and one sentence; the connection is always closed after it.

/// A defect that makes a message unacceptable. For a response, every one of them means 502.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reject {
    /// The request line is not `METHOD SP target SP HTTP/1.x`.
    RequestLine,
    /// The method is not a token without lower-case letters.
    Method,
    /// The target has a forbidden byte, a fragment, or a form its method does not allow.
    Target,
    /// The request line is longer than [`crate::MAX_REQUEST_LINE_BYTES`].
    TargetTooLong,
    /// HTTP, but neither 1.0 nor 1.1.
    Version,
    /// The status line is not `HTTP/1.x SP 3DIGIT SP reason`.
    StatusLine,
    /// The head is larger than [`crate::MAX_HEAD_BYTES`].
    HeadTooLarge,
    /// More field lines than [`crate::MAX_HEADERS`], or [`crate::MAX_FORWARDED_HEADERS`].
    TooManyHeaders,
    /// LF without CR before it.
    BareLf,
    /// A field line that is malformed: no colon, blank before it, folding, a control character.
    HeaderLine,
    /// A name that a careless receiver takes for a framing field (`Transfer_Encoding`).
    AmbiguousName,
    /// No `Host`, several, or one that is not an authority.
    Host,
    /// `Content-Length` that is not one plain decimal number, or several of them.
    ContentLength,
    /// `Content-Length` and `Transfer-Encoding` together.
    LengthAndEncoding,
    /// `Transfer-Encoding` where chunked is absent, repeated or not last, or in HTTP/1.0.
    TransferEncoding,
    /// A transfer coding that is not chunked.
    UnknownCoding,
    /// `Connection` names a field that is not the connection's to remove, or too many.
    ConnectionOption,
    /// An expectation other than `100-continue`.
    Expectation,
    /// `CONNECT` with a body, which it cannot have.
    Connect,
    /// A 2xx to `CONNECT` that is framed as an answer to any request is: its server goes on to read requests.
    FramedTunnel,
    /// 101 without having been asked, or to something else.
    UnexpectedUpgrade,
}

impl Reject {
    /// The status a client is answered.
    pub fn status(self) -> u16 {
        match self {
            Self::TargetTooLong => 414,
            Self::HeadTooLarge | Self::TooManyHeaders => 431,
            Self::Version => 505,
            Self::UnknownCoding => 501,
            Self::Expectation => 417,
            _ => 400,
        }
    }

    /// One word for logs and for the reply's body.
    pub fn reason(self) -> &'static str {
        match self {
            Self::RequestLine => "malformed_request_line",
            Self::Method => "invalid_method",
            Self::Target => "invalid_request_target",
            Self::TargetTooLong => "request_line_too_long",
            Self::Version => "unsupported_http_version",
            Self::StatusLine => "malformed_status_line",
            Self::HeadTooLarge => "head_too_large",
            Self::TooManyHeaders => "too_many_headers",
            Self::BareLf => "bare_line_feed",
            Self::HeaderLine => "malformed_header_line",
            Self::AmbiguousName => "ambiguous_header_name",
            Self::Host => "invalid_host",
            Self::ContentLength => "invalid_content_length",
            Self::LengthAndEncoding => "content_length_with_transfer_encoding",
            Self::TransferEncoding => "invalid_transfer_encoding",
            Self::UnknownCoding => "unknown_transfer_coding",
            Self::ConnectionOption => "invalid_connection_option",
            Self::Expectation => "unknown_expectation",
            Self::Connect => "connect_with_body",
            Self::FramedTunnel => "connect_answered_as_a_request",
            Self::UnexpectedUpgrade => "unexpected_switching_protocols",
        }
    }
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Reject {}
