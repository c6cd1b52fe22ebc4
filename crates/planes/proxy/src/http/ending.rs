//! How an exchange ends, and what that means for its client, its record and its streams: one table for the engines of both
//! versions. It decides, and moves nothing.

use voile_http1::{BodyError, Reject};
use voile_http2::{ErrorCode, Failure};
use voile_traffic::Attempt;

use super::reply::LocalReply;
use super::role::{BODY_TOO_LARGE, ResponseFlag, Revocation};

/// End of an exchange, or of one of its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeEnd {
    /// The response was relayed whole.
    Done,
    /// The client gave up, or broke its stream. To a connection of HTTP/1.1 only the end of the connection happens.
    Client(Failure),
    /// The client's body is not what its head promised.
    RequestBody(BodyError),
    /// The client's body is longer than an external service may be shown.
    TooLarge,
    /// The upstream's connection or stream ended before the whole response.
    Upstream(Failure),
    /// The head of the response is not HTTP.
    ResponseHead(Reject),
    /// The body of the response is not what its head promised.
    ResponseBody(BodyError),
    /// More interim responses than are allowed.
    Interim,
    /// No bytes moved for too long, or too slowly.
    Idle,
    /// The upstream did not begin its response in time.
    Timeout,
    /// All the time that there was for the response is over.
    Expired,
    /// A whole head that was held back, since another attempt may be wished for. Polling goes on after it is accepted.
    Held(Attempt),
    /// The leave of the exchange was revoked.
    Revoked,
}

/// The end of the client's connection.
pub(crate) const CLIENT_GONE: ExchangeEnd = ExchangeEnd::Client(Failure::Connection);

impl ExchangeEnd {
    /// Our reply to a client that has nothing of a response; its flag and details are recorded also where the response began
    /// (`begun`).
    pub(crate) fn reply(self, begun: bool, revocation: Revocation) -> LocalReply<'static> {
        use ResponseFlag as Flag;
        let (status, flag, details) = match self {
            Self::Done | Self::Held(_) => (200, Flag::None, "via_upstream"),
            Self::Client(Failure::Reset(_) | Failure::Unprocessed) => {
                (0, Flag::DownstreamRemoteReset, "http2.remote_reset")
            }
            Self::Client(Failure::Violation(_)) => {
                (0, Flag::DownstreamProtocolError, "http2.violation")
            }
            Self::Client(Failure::Connection) => (
                0,
                Flag::DownstreamConnectionTermination,
                "downstream_remote_disconnect",
            ),
            Self::RequestBody(error) => (400, Flag::DownstreamProtocolError, error.reason()),
            Self::TooLarge => (413, Flag::DownstreamProtocolError, BODY_TOO_LARGE),
            Self::Upstream(Failure::Reset(_) | Failure::Unprocessed) => {
                (503, Flag::UpstreamRemoteReset, "upstream_remote_reset")
            }
            Self::Upstream(Failure::Violation(_)) => {
                (502, Flag::UpstreamProtocolError, "http2.violation")
            }
            Self::Upstream(Failure::Connection) => {
                let details = match begun {
                    false => "upstream_reset_before_response",
                    true => "upstream_reset_after_response_started",
                };
                (503, Flag::UpstreamConnectionTermination, details)
            }
            Self::ResponseHead(reject) => (502, Flag::UpstreamProtocolError, reject.reason()),
            Self::ResponseBody(error) => (502, Flag::UpstreamProtocolError, error.reason()),
            Self::Interim => (
                502,
                Flag::UpstreamProtocolError,
                "too_many_interim_responses",
            ),
            Self::Idle => (408, Flag::StreamIdleTimeout, "stream_idle_timeout"),
            Self::Timeout | Self::Expired => {
                (504, Flag::UpstreamRequestTimeout, "response_timeout")
            }
            Self::Revoked => (revocation.status, revocation.flag, revocation.details),
        };
        let mut reply = LocalReply::new(status, flag, details);
        if self == Self::Revoked {
            reply.reason = revocation.told;
        }
        reply
    }

    /// Code for the stream of the side that goes on.
    pub(crate) fn code(self) -> ErrorCode {
        match self {
            Self::Client(Failure::Reset(code) | Failure::Violation(code))
            | Self::Upstream(Failure::Reset(code) | Failure::Violation(code)) => code,
            Self::Client(Failure::Unprocessed) | Self::Upstream(Failure::Unprocessed) => {
                ErrorCode::REFUSED_STREAM
            }
            Self::Upstream(Failure::Connection) | Self::ResponseHead(_) | Self::ResponseBody(_) => {
                ErrorCode::INTERNAL_ERROR
            }
            Self::Interim | Self::RequestBody(_) => ErrorCode::PROTOCOL_ERROR,
            _ => ErrorCode::CANCEL,
        }
    }
}
