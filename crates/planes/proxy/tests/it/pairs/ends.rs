//! The table, by what ends the exchange.

use super::client::{Body, Request};
use super::server::Server;
use super::{Case, Event, Limit, PLAIN, POST, check_table};

const UNSIZED: Request = Request {
    body: Body::Unsized,
    ..POST
};

const UNFINISHED: Request = Request {
    body: Body::Unfinished,
    ..POST
};

const CALL: Request = Request {
    grpc: true,
    ..UNSIZED
};

const CONNECT: Request = Request {
    method: "CONNECT",
    body: Body::None,
    ..POST
};

/// Nothing comes from the server.
const SILENT: Case = Case {
    server: Server::Silent,
    ..PLAIN
};

/// Half of an answer comes from the server.
const HALF: Case = Case {
    server: Server::Stops,
    ..PLAIN
};

/// The server stops reading within the upload.
const UNREAD: Case = Case {
    request: Request {
        body: Body::Large,
        ..POST
    },
    server: Server::Unreading,
    ..PLAIN
};

/// A path that the role decides about in its own way.
fn to(path: &'static str) -> Case {
    PLAIN.request(Request { path, ..POST })
}

#[test]
fn an_exchange_that_ends_well_is_recorded_with_its_bytes() {
    check_table(&[
        (
            "a sized answer",
            PLAIN,
            "all | 200 - via_upstream 5/2 1: 200",
        ),
        // The client's wire counts: that of HTTP/1.1 frames such an answer in chunks.
        (
            "an answer without a length",
            PLAIN.server(Server::AnswersUnsized),
            "1→1 1→2 | 200 - via_upstream 5/12 1: 200
             2→1 2→2 | 200 - via_upstream 5/2 1: 200",
        ),
        (
            "an answer without a body",
            PLAIN.server(Server::AnswersEmpty),
            "all | 200 - via_upstream 5/0 1: 200",
        ),
        // The same on the way up.
        (
            "an upload without a length",
            PLAIN.request(UNSIZED),
            "1→1 1→2 | 200 - via_upstream 15/2 1: 200
             2→1 2→2 | 200 - via_upstream 5/2 1: 200",
        ),
        // HTTP/1.1 carries no gRPC of a client.
        (
            "a gRPC call",
            PLAIN.request(CALL).server(Server::AnswersCall),
            "1→1 | 200 - via_upstream 20/36 1: 200
             1→2 | 200 - via_upstream 20/20 1: 200
             2→1 2→2 | 200 - via_upstream 10/10 1 grpc 0 1/1: 200",
        ),
        (
            "as many hints as are allowed",
            PLAIN.server(Server::Hints(32)),
            "all | 200 - via_upstream 5/2 1: 200",
        ),
    ]);
}

#[test]
fn a_server_that_breaks_off_gives_no_whole_answer() {
    check_table(&[
        (
            "one hint more",
            PLAIN.server(Server::Hints(33)),
            "all | 502 UPE too_many_interim_responses 5/27 1: 502",
        ),
        (
            "it closes before its answer",
            PLAIN.server(Server::ClosesBefore),
            "all | 503 UC upstream_reset_before_response 5/31 1: 503",
        ),
        (
            "it closes within the head",
            PLAIN.server(Server::ClosesWithinHead),
            "all | 503 UC upstream_reset_before_response 5/31 1: 503",
        ),
        (
            "it closes within the body",
            PLAIN.server(Server::ClosesWithinBody),
            "1→1 1→2 | 200 UC upstream_reset_after_response_started 5/4 1: 200, closed
             2→1 2→2 | 200 UC upstream_reset_after_response_started 5/4 1: 200, INTERNAL_ERROR",
        ),
        (
            "it resets its connection before its answer",
            PLAIN.server(Server::ResetsBefore),
            "all | 503 UC upstream_reset_before_response 5/31 1: 503",
        ),
        (
            "it resets its connection within the body",
            PLAIN.server(Server::ResetsWithinBody),
            "1→1 1→2 | 200 UC upstream_reset_after_response_started 5/4 1: 200, closed
             2→1 2→2 | 200 UC upstream_reset_after_response_started 5/4 1: 200, INTERNAL_ERROR",
        ),
        // A reset goes on as a reset to a client that has streams (decision 0006).
        (
            "it resets the stream before its answer",
            PLAIN.server(Server::ResetsStreamBefore),
            "1→2 | 503 UR upstream_remote_reset 5/22 1: 503
             2→2 | 0 UR upstream_remote_reset 5/0 1: INTERNAL_ERROR",
        ),
        (
            "it resets the stream within the body",
            PLAIN.server(Server::ResetsStreamWithinBody),
            "1→2 | 200 UR upstream_remote_reset 5/4 1: 200, closed
             2→2 | 200 UR upstream_remote_reset 5/4 1: 200, INTERNAL_ERROR",
        ),
        (
            "it says something that is no head",
            PLAIN.server(Server::Babbles),
            "1→1 2→1 | 502 UPE malformed_status_line 5/22 1: 502
             1→2 2→2 | 502 UPE http2.violation 5/16 1: 502",
        ),
        (
            "it breaks the framing of its body",
            PLAIN.server(Server::BreaksBody),
            "1→1 | 200 UPE invalid_chunk_size 5/9 1: 200, closed
             1→2 | 200 UPE http2.violation 5/4 1: 200, closed
             2→1 | 200 UPE invalid_chunk_size 5/4 1: 200, INTERNAL_ERROR
             2→2 | 200 UPE http2.violation 5/4 1: 200, PROTOCOL_ERROR",
        ),
    ]);
}

#[test]
fn a_server_that_cannot_be_reached_is_answered_for() {
    check_table(&[
        // The body of a stream is not read before there is a connection.
        (
            "nobody listens",
            PLAIN.server(Server::Missing),
            "1→1 1→2 | 503 UF upstream_connection_failure 5/19 1: 503
             2→1 2→2 | 503 UF upstream_connection_failure 0/19 1: 503",
        ),
        (
            "to a gRPC call",
            PLAIN.request(CALL).server(Server::Missing),
            "1→1 1→2 | 200 UF upstream_connection_failure 20/0 1 grpc 14 0/0: 200
             2→1 2→2 | 200 UF upstream_connection_failure 0/0 1 grpc 14 0/0: 200",
        ),
        (
            "to a tunnel of gRPC",
            PLAIN
                .request(Request {
                    grpc: true,
                    ..CONNECT
                })
                .server(Server::Missing),
            "1→1 1→2 | 503 UF upstream_connection_failure 0/19 1: 503
             2→1 2→2 | 503 UF upstream_connection_failure 0/19 1 grpc - 0/0: 503",
        ),
        (
            "again",
            PLAIN.server(Server::Missing).retry("connect-failure"),
            "1→1 1→2 | 503 UF upstream_connection_failure 5/19 2: 503
             2→1 2→2 | 503 UF upstream_connection_failure 0/19 2: 503",
        ),
    ]);
}

#[test]
fn an_attempt_is_repeated_where_that_is_harmless_or_wished() {
    check_table(&[
        (
            "each server refuses",
            PLAIN.server(Server::Refuses),
            "1→2 | 503 UR upstream_remote_reset 5/22 3: 503
             2→2 | 0 UR upstream_remote_reset 5/0 3: REFUSED_STREAM",
        ),
        (
            "the first server refuses",
            PLAIN.server(Server::RefusesOnce),
            "1→2 2→2 | 200 - via_upstream 5/2 2: 200",
        ),
        (
            "the first server leaves",
            PLAIN.server(Server::LeavesOnce),
            "1→2 2→2 | 200 - via_upstream 5/2 2: 200",
        ),
        (
            "a status that is wished again",
            PLAIN.server(Server::FailsOnce).retry("503"),
            "all | 200 - via_upstream 5/2 2: 200",
        ),
        (
            "a gRPC status that is wished again",
            PLAIN
                .request(CALL)
                .server(Server::FailsCallOnce)
                .retry("unavailable"),
            "1→1     | 200 - via_upstream 20/36 2: 200
             1→2     | 200 - via_upstream 20/20 2: 200
             2→1 2→2 | 200 - via_upstream 10/10 2 grpc 0 1/1: 200",
        ),
        (
            "a used connection, idempotent",
            PLAIN
                .request(Request {
                    method: "PUT",
                    ..POST
                })
                .server(Server::ClosesUsed),
            "all | 200 - via_upstream 5/2 2: 200",
        ),
        (
            "a used connection",
            PLAIN.server(Server::ClosesUsed),
            "all | 503 UC upstream_reset_before_response 5/31 1: 503",
        ),
        (
            "a used connection, wished again",
            PLAIN.server(Server::ClosesUsed).retry("reset"),
            "all | 200 - via_upstream 5/2 2: 200",
        ),
    ]);
}

#[test]
fn a_client_that_gives_up_ends_its_exchange() {
    check_table(&[
        (
            "before the answer",
            SILENT.event(Event::Leaves),
            "1→1 1→2 | 0 DC downstream_remote_disconnect 5/0 1: left
             2→1 2→2 | 0 DR http2.remote_reset 5/0 1: left",
        ),
        (
            "within the answer",
            HALF.event(Event::LeavesWithin),
            "1→1 1→2 | 200 DC downstream_remote_disconnect 5/4 1: left
             2→1 2→2 | 200 DR http2.remote_reset 5/4 1: left",
        ),
        (
            "its connection ends before the answer",
            SILENT.event(Event::Disconnects),
            "all | 0 DC downstream_remote_disconnect 5/0 1: left",
        ),
        (
            "its connection ends within the answer",
            HALF.event(Event::DisconnectsWithin),
            "all | 200 DC downstream_remote_disconnect 5/4 1: left",
        ),
        // The body of a stream is not read before there is a connection.
        (
            "while a connection is opened",
            PLAIN.server(Server::Unreachable).event(Event::Leaves),
            "1→1 1→2 | 0 DC downstream_remote_disconnect 5/0 1: left
             2→1 2→2 | 0 DR http2.remote_reset 0/0 1: left",
        ),
        (
            "while a connection is opened, within its body",
            PLAIN
                .request(UNFINISHED)
                .server(Server::Unreachable)
                .event(Event::Leaves),
            "1→1 1→2 | 0 DC downstream_remote_disconnect 5/0 1: left
             2→1 2→2 | 0 DR http2.remote_reset 0/0 1: left",
        ),
        // A connection of HTTP/1.1 that ends behind more than one buffer is not noticed before there is a connection.
        (
            "while a connection is opened, with a long body",
            PLAIN
                .request(Request {
                    body: Body::Large,
                    ..POST
                })
                .server(Server::Unreachable)
                .event(Event::Leaves),
            "2→1 2→2 | 0 DR http2.remote_reset */0 1: left",
        ),
        (
            "it breaks the framing of its body",
            SILENT.request(Request {
                body: Body::Broken,
                ..POST
            }),
            "1→1 1→2 | 400 DPE invalid_chunk_size 10/19 1: 400
             2→1 2→2 | 0 DPE http2.violation 5/0 1: PROTOCOL_ERROR",
        ),
    ]);
}

#[test]
fn a_revoked_leave_ends_the_exchange() {
    check_table(&[
        (
            "before the answer",
            SILENT.event(Event::Revoked),
            "all | 403 UAEX rbac_access_denied_permit_revoked 5/20 1: 403",
        ),
        (
            "within the answer",
            HALF.event(Event::RevokedWithin),
            "1→1 1→2 | 200 UAEX rbac_access_denied_permit_revoked 5/4 1: 200, closed
             2→1 2→2 | 200 UAEX rbac_access_denied_permit_revoked 5/4 1: 200, CANCEL",
        ),
    ]);
}

#[test]
fn the_role_decides_at_once_or_after_it_asked() {
    check_table(&[
        (
            "it refuses",
            to("/refused"),
            "1→1 1→2 | 403 UAEX refused_by_role 5/20 0: 403
             2→1 2→2 | 403 UAEX refused_by_role 0/20 0: 403",
        ),
        (
            "it asks, and forwards",
            to("/asked"),
            "all | 200 - via_upstream 5/2 1: 200",
        ),
        (
            "it asks, and refuses",
            to("/asked/refused"),
            "1→1 1→2 | 403 UAEX refused_by_role 5/20 0: 403
             2→1 2→2 | 403 UAEX refused_by_role 0/20 0: 403",
        ),
        (
            "it asks, and refuses a gRPC call",
            PLAIN.request(Request {
                path: "/asked/refused",
                ..CALL
            }),
            "1→1 1→2 | 200 UAEX refused_by_role 20/0 0 grpc 7 0/0: 200
             2→1 2→2 | 200 UAEX refused_by_role 0/0 0 grpc 7 0/0: 200",
        ),
        (
            "it asks twice about the body",
            to("/asked/twice/9"),
            "all | 200 - via_upstream 5/2 1: 200",
        ),
        (
            "the body is longer than the question takes",
            to("/asked/3"),
            "all | 413 DPE request_payload_too_large 5/26 0: 413",
        ),
        (
            "the body does not come",
            PLAIN
                .request(Request {
                    path: "/asked/9",
                    ..UNFINISHED
                })
                .limit(Limit::Idle),
            "all | 408 SI stream_idle_timeout 5/20 0: 408",
        ),
        (
            "the client leaves before the service answers",
            to("/asked/in-vain").event(Event::Leaves),
            "1→1 1→2 | 0 DC downstream_remote_disconnect 5/0 0: left
             2→1 2→2 | 0 DR http2.remote_reset 0/0 0: left",
        ),
    ]);
}

#[test]
fn a_limit_ends_the_exchange() {
    check_table(&[
        (
            "a connect",
            PLAIN.server(Server::Unreachable).limit(Limit::Connect),
            "1→1 1→2 | 503 UF upstream_connection_failure 5/25 1: 503
             2→1 2→2 | 503 UF upstream_connection_failure 0/25 1: 503",
        ),
        (
            "an answer, while a connection is opened",
            PLAIN.server(Server::Unreachable).limit(Limit::Answer),
            "1→1 1→2 | 504 UT response_timeout 5/17 1: 504
             2→1 2→2 | 504 UT response_timeout 0/17 1: 504",
        ),
        (
            "the head of an answer",
            SILENT.limit(Limit::Head),
            "all | 504 UT response_timeout 5/17 1: 504",
        ),
        (
            "the head of an answer to a gRPC call",
            SILENT.request(CALL).limit(Limit::Head),
            "1→1 1→2 | 200 UT response_timeout 20/0 1 grpc 14 0/0: 200
             2→1 2→2 | 200 UT response_timeout 10/0 1 grpc 14 1/0: 200",
        ),
        (
            "an answer",
            SILENT.limit(Limit::Answer),
            "all | 504 UT response_timeout 5/17 1: 504",
        ),
        // An HTTP/1.1 server takes all of it here; of an HTTP/1.1 client it is not read.
        (
            "an answer to an upload that the server does not read",
            SILENT
                .request(Request {
                    body: Body::Large,
                    ..POST
                })
                .limit(Limit::Answer),
            "1→1 2→1 2→2 | 504 UT response_timeout */17 1: 504",
        ),
        (
            "an answer that began",
            HALF.limit(Limit::Answer),
            "1→1 1→2 | 200 UT response_timeout 5/4 1: 200, closed
             2→1 2→2 | 200 UT response_timeout 5/4 1: 200, CANCEL",
        ),
        (
            "each of two attempts",
            SILENT.retry("gateway-error").limit(Limit::EachTry),
            "all | 504 UT response_timeout 5/17 2: 504",
        ),
    ]);
}

#[test]
fn a_limit_ends_the_exchange_of_a_slow_client() {
    check_table(&[
        (
            "an upload without bytes",
            SILENT.request(UNFINISHED).limit(Limit::Idle),
            "all | 408 SI stream_idle_timeout 5/20 1: 408",
        ),
        // A gRPC caller may be quiet; HTTP/1.1 carries none.
        (
            "an upload of gRPC without bytes",
            SILENT
                .request(Request {
                    grpc: true,
                    ..UNFINISHED
                })
                .limit(Limit::Idle)
                .event(Event::LeavesIfUnlimited),
            "1→1 1→2 | 200 SI stream_idle_timeout 10/0 1 grpc 4 0/0: 200
             2→1 2→2 | 0 DR http2.remote_reset 10/0 1 grpc - 1/0: left",
        ),
        // It is a conversation then.
        (
            "an upload without bytes, once the answer began",
            HALF.request(UNFINISHED)
                .limit(Limit::Idle)
                .event(Event::LeavesIfUnlimited),
            "1→1 1→2 | 200 DC downstream_remote_disconnect 5/4 1: left
             2→1 2→2 | 200 DR http2.remote_reset 5/4 1: left",
        ),
        (
            "an upload that the server stops reading",
            UNREAD.limit(Limit::Upload),
            "all | 408 SI stream_idle_timeout */20 1: 408",
        ),
        // A connection that ends with unread bytes is reset; from HTTP/1.1 to HTTP/2 few of them are left, or none.
        (
            "an upload that the server stops reading, once its answer began",
            UNREAD.server(Server::StopsUnreading).limit(Limit::Upload),
            "1→1     | 200 SI stream_idle_timeout */4 1: 200, reset
             2→1 2→2 | 200 SI stream_idle_timeout */4 1: 200, CANCEL",
        ),
        // The client may take its time then.
        (
            "an upload that the server stops reading, to an idle client's limit",
            UNREAD.limit(Limit::Idle).event(Event::LeavesIfUnlimited),
            "1→1 1→2 | 0 DC downstream_remote_disconnect */0 1: left
             2→1 2→2 | 0 DR http2.remote_reset */0 1: left",
        ),
        (
            "an upload that is too slow",
            SILENT.request(UNFINISHED).limit(Limit::Rate),
            "all | 408 SI stream_idle_timeout 5/20 1: 408",
        ),
        (
            "a tunnel without bytes",
            PLAIN
                .request(CONNECT)
                .server(Server::Grants)
                .limit(Limit::Tunnel),
            "1→1 1→2 | 200 SI stream_idle_timeout 0/0 1: 200, reset
             2→1 2→2 | 200 SI stream_idle_timeout 0/0 1: 200, CANCEL",
        ),
    ]);
}
