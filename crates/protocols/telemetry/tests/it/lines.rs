//! The format language: format, entry, expected line. One entry of a request and one of an opaque connection.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use voile_model::log_filter::LogFilter;
use voile_model::log_format::{HeaderSource, LogFormat};
use voile_telemetry::access_log::{
    AccessLogEntry, DryRunEntry, Fields, FileLog, HttpLogFields, Logger, NoFields, PolicyMarks,
    Renderer, Sink, TlsFacts, passes,
};

/// Fields of a hostile client and a plain server.
struct Sent;

impl Fields for Sent {
    fn field(&self, direction: HeaderSource, name: &str) -> Option<&[u8]> {
        Some(match (direction, name) {
            (HeaderSource::Request, "user-agent") => b"a \"quoted\"\\ one\nGET / forged",
            (HeaderSource::Request, "x-bytes") => b"\xff\x00caf\xc3\xa9",
            (HeaderSource::Request, "x-request-id") => b"r-1",
            (HeaderSource::Request, "x-empty") => b"",
            (HeaderSource::Response, "content-type") => b"text/plain",
            (HeaderSource::Trailer, "grpc-message") => b"late",
            _ => return None,
        })
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn request(look: impl FnOnce(&AccessLogEntry<'_>)) {
    let http = HttpLogFields {
        method: "POST",
        path: "/books?id=7&empty=&id=8",
        authority: "shop.example",
        version: "HTTP/1.1",
        code: 200,
        request_head: 100,
        response_head: 50,
        grpc_status: Some(5),
        fields: &Sent,
        request_duration: Some(Duration::from_micros(1500)),
        response_duration: Some(Duration::from_millis(7)),
        decision_duration: None,
        queue_duration: None,
        upstream_duration: None,
        attempts: 2,
        trace_id: "0af7651916cd43dd8448eb211c80319c",
    };
    look(&AccessLogEntry {
        http: Some(http),
        start: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        duration: Duration::from_micros(12_900),
        flags: "UF",
        details: "via_upstream",
        termination: "",
        upstream_failure: "no\tway",
        downstream_failure: "",
        received: 5,
        sent: 1024,
        upstream: Some(address("10.0.0.2:8080")),
        upstream_local: Some(address("10.0.0.1:40000")),
        cluster: "outbound|80||server",
        local: address("[fd00::1]:80"),
        remote: address("127.0.0.1:5000"),
        server_name: "",
        route: "default",
        tls: Some(TlsFacts {
            version: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            peer: "spiffe://td/ns/a/sa/b",
            own: "spiffe://td/ns/c/sa/d",
        }),
        marks: PolicyMarks {
            audited: true,
            allow: None,
            deny: Some(DryRunEntry {
                allowed: false,
                rule: "ns[shop]-policy[deny]-rule[0]",
            }),
        },
    });
}

fn opaque(look: impl FnOnce(&AccessLogEntry<'_>)) {
    request(|entry| {
        look(&AccessLogEntry {
            http: None,
            flags: "-",
            details: "",
            upstream_failure: "",
            route: "",
            upstream: None,
            tls: None,
            marks: PolicyMarks::default(),
            ..*entry
        });
    });
}

fn text(format: &str) -> Renderer {
    Renderer::new(LogFormat::text(format).expect(format), false)
}

/// Format, its text for the request, and for the opaque connection.
const COMMANDS: &[(&str, &str, &str)] = &[
    (
        "%DYNAMIC_METADATA(envoy.common:access_log_hint)%",
        "true",
        "-",
    ),
    (
        "%DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_allow_shadow_engine_result)% \
         %DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_allow_shadow_effective_policy_id)%",
        "- -",
        "- -",
    ),
    (
        "%DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_deny_shadow_engine_result)% \
         %DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_deny_shadow_effective_policy_id)%",
        "denied ns[shop]-policy[deny]-rule[0]",
        "- -",
    ),
    (
        "%START_TIME%",
        "2023-11-14T22:13:20.123Z",
        "2023-11-14T22:13:20.123Z",
    ),
    ("%START_TIME(%s.%3f)%", "1700000000.123", "1700000000.123"),
    (
        "%START_TIME(%Y/%m/%dT%H:%M:%E3S%z %a %b %j %e %F %T %%)%",
        "2023/11/14T22:13:20.123+0000 Tue Nov 318 14 2023-11-14 22:13:20 %",
        "2023/11/14T22:13:20.123+0000 Tue Nov 318 14 2023-11-14 22:13:20 %",
    ),
    (
        "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "POST /books?id=7&empty=&id=8",
        "- -",
    ),
    (
        "%REQ(:PATH):6% %REQ_WITHOUT_QUERY(:PATH)% %PATH%",
        "/books /books /books?id=7&empty=&id=8",
        "- - -",
    ),
    (
        "%REQ(:AUTHORITY)% %REQ(HOST)% %REQ(:SCHEME)%",
        "shop.example shop.example https",
        "- - -",
    ),
    (
        "%QUERY_PARAM(id)% %QUERY_PARAM(none)% %QUERY_PARAM(empty)%",
        "7 - -",
        "- - -",
    ),
    (
        "%PROTOCOL% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%",
        "HTTP/1.1 200 via_upstream",
        "- 0 -",
    ),
    (
        "%RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG%",
        "UF UpstreamConnectionFailure",
        "- -",
    ),
    (
        "%BYTES_RECEIVED% %BYTES_SENT% %DURATION%",
        "5 1024 12",
        "5 1024 12",
    ),
    (
        "%REQUEST_DURATION% %RESPONSE_DURATION% %RESPONSE_TX_DURATION%",
        "1 7 5",
        "- - -",
    ),
    (
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% %RESP(Content-Type)% %RESP(A?B)%",
        "7 text/plain -",
        "- - -",
    ),
    (
        "%TRAILER(grpc-message)% %GRPC_STATUS% %GRPC_STATUS(NUMBER)% %GRPC_STATUS_NUMBER%",
        "late NotFound 5 5",
        "- - - -",
    ),
    (
        "%UPSTREAM_HOST% %UPSTREAM_REMOTE_PORT% %UPSTREAM_CLUSTER_RAW%",
        "10.0.0.2:8080 8080 outbound|80||server",
        "- - outbound|80||server",
    ),
    (
        "%UPSTREAM_LOCAL_ADDRESS% %UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%",
        "10.0.0.1:40000 10.0.0.1",
        "10.0.0.1:40000 10.0.0.1",
    ),
    (
        "%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%",
        "[fd00::1]:80 fd00::1 80",
        "[fd00::1]:80 fd00::1 80",
    ),
    (
        "%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
        "127.0.0.1:5000 127.0.0.1",
        "127.0.0.1:5000 127.0.0.1",
    ),
    (
        "%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_LOCAL_URI_SAN%",
        "spiffe://td/ns/a/sa/b spiffe://td/ns/c/sa/d",
        "- -",
    ),
    (
        "%DOWNSTREAM_TLS_VERSION% %DOWNSTREAM_TLS_CIPHER%",
        "TLSv1.3 TLS_AES_128_GCM_SHA256",
        "- -",
    ),
    (
        "%REQUESTED_SERVER_NAME% %ROUTE_NAME% %TRACE_ID%",
        "- default 0af7651916cd43dd8448eb211c80319c",
        "- - -",
    ),
    (
        "%UPSTREAM_REQUEST_ATTEMPT_COUNT% %ACCESS_LOG_TYPE%",
        "2 DownstreamEnd",
        "- TcpConnectionEnd",
    ),
    (
        "%DOWNSTREAM_WIRE_BYTES_RECEIVED% %DOWNSTREAM_WIRE_BYTES_SENT% %REQUEST_HEADERS_BYTES%",
        "105 1074 100",
        "5 1024 -",
    ),
    ("100%% %METHOD%", "100% POST", "100% -"),
    ("%ENVIRONMENT(VOILE_HAS_NO_SUCH_VARIABLE)%", "-", "-"),
    // A stranger's value ends neither its quotes nor its line.
    (
        "\"%REQ(USER-AGENT)%\"",
        r#""a \"quoted\"\\ one\x0aGET / forged""#,
        "\"-\"",
    ),
    (
        "%REQ(X-BYTES)% %REQ(X-EMPTY)%",
        "\u{fffd}\\x00café -",
        "- -",
    ),
    ("%UPSTREAM_TRANSPORT_FAILURE_REASON%", "no\\x09way", "-"),
];

#[test]
fn each_command_says_what_envoy_says() {
    for (format, of_request, of_connection) in COMMANDS {
        let renderer = text(format);
        request(|entry| assert_eq!(renderer.line(entry), format!("{of_request}\n"), "{format}"));
        opaque(|entry| {
            assert_eq!(
                renderer.line(entry),
                format!("{of_connection}\n"),
                "{format}"
            );
        });
    }
}

#[test]
fn the_default_text_line_is_istios() {
    let renderer = Renderer::new(LogFormat::default_text(), false);
    request(|entry| {
        let expected = "[2023-11-14T22:13:20.123Z] \"POST /books?id=7&empty=&id=8 HTTP/1.1\" 200 UF via_upstream - \
            \"no\\x09way\" 5 1024 12 7 \"-\" \"a \\\"quoted\\\"\\\\ one\\x0aGET / forged\" \"r-1\" \"shop.example\" \
            \"10.0.0.2:8080\" outbound|80||server 10.0.0.1:40000 [fd00::1]:80 127.0.0.1:5000 - default\n";
        assert_eq!(renderer.line(entry), expected);
    });
}

#[test]
fn json_keeps_types_and_nesting_and_says_null() {
    let format = r#"{"code": "%RESPONSE_CODE%", "both": "%METHOD% %RESPONSE_CODE%", "deep": {"agent": "%REQ(USER-AGENT)%",
        "list": ["%DURATION%", 1.5, true, null, "plain"]}, "none": "%REQ(X-NONE)%", "bad": "%REQ(X-BYTES)%"}"#;
    let json = |omit| Renderer::new(LogFormat::json(format).expect("a format"), omit);
    let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    request(|entry| {
        let line = json(false).line(entry);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let expected = serde_json::json!({
            "code": 200, "both": "POST 200", "none": null, "bad": "\u{fffd}\u{0}café",
            "deep": {"agent": "a \"quoted\"\\ one\nGET / forged", "list": [12, 1.5, true, null, "plain"]},
        });
        assert_eq!(parse(&line), expected);
        let omitted = parse(&json(true).line(entry));
        assert_eq!(omitted.get("none"), None);
    });
    opaque(|entry| {
        let line = parse(&json(false).line(entry));
        assert_eq!((&line["code"], &line["both"]), (&0.into(), &"- 0".into()));
    });
    let default = Renderer::new(LogFormat::default_json(), false);
    request(|entry| assert_eq!(parse(&default.line(entry))["upstream_service_time"], 7));
}

#[test]
fn formats_that_are_wrong_name_what_is_wrong() {
    for (format, named) in [
        ("%RESPONSE_CDE%", "`%RESPONSE_CDE%`"),
        ("%START_TIME(%Q)%", "`%Q`"),
        ("%START_TIME(%10f)%", "`%10f`"),
        ("%REQ%", "`%REQ%` needs"),
        ("%REQ()%", "no header"),
        ("%REQ(a b)%", "`a b`"),
        ("%REQ(a):0%", "`0` is no length"),
        ("%REQ(a", "not closed"),
        ("%DURATION(x)%", "does not take"),
        ("100% sure", "not closed"),
        ("%CEL(request.path)%", "internal data of Envoy"),
        ("%FILTER_STATE(a:PLAIN)%", "internal data of Envoy"),
    ] {
        let error = LogFormat::text(format).expect_err(format);
        assert!(error.message.contains(named), "{format}: {error}");
    }
    // YAML reads more numbers than JSON may hold; they would make every line something that no reader of JSON takes.
    for number in [".5", "-.5", "5.", "007", "+1", "0x1f", ".inf", ".nan"] {
        let error = LogFormat::json(&format!("{{\"a\": {number}}}")).expect_err(number);
        assert!(error.message.contains("no value of JSON"), "{error}");
    }
    for number in ["0", "-0", "12", "0.5", "-1.25e-3", "1E+5"] {
        let format = LogFormat::json(&format!("{{\"a\": {number}}}"));
        assert!(format.is_ok(), "{number}");
    }
    for format in ["[1]", "\"text\"", "{\"a\": ", ""] {
        assert!(LogFormat::json(format).is_err(), "{format}");
    }
}

#[test]
fn a_format_travels_as_text_and_comes_back_the_same() {
    for format in [LogFormat::default_text(), LogFormat::default_json()] {
        let again = match format.is_json() {
            true => LogFormat::json(format.source()),
            false => LogFormat::text(format.source()),
        };
        assert_eq!(again.as_ref(), Ok(&format));
    }
    // A line feed is six characters of the text that travels. YAML, which reads it again, bounds keys.
    let with_key = |feeds: usize| LogFormat::json(&format!("{{\"{}\": 1}}", "\\n".repeat(feeds)));
    let longest = with_key(166).expect("998 characters");
    assert_eq!(LogFormat::json(longest.source()).as_ref(), Ok(&longest));
    let refused = with_key(167).expect_err("1,004 characters");
    assert!(
        refused.message.contains("has more than 1000 characters"),
        "{refused}"
    );
}

#[test]
fn filters_decide_as_cel_does() {
    for (expression, of_request, of_connection) in [
        ("response.code == 200", true, false),
        ("response.code >= 400 || response.code == 200", true, false),
        ("response.code != 404", true, false),
        // Absent on one side, decided by the other.
        (
            "response.code >= 400 || connection.mtls == false",
            false,
            true,
        ),
        ("connection.mtls", true, false),
        ("!connection.mtls", false, true),
        ("!(response.code == 404)", true, false),
        (
            "request.path.startsWith('/books') && request.method in ['GET', 'POST']",
            true,
            false,
        ),
        (
            "request.url_path == '/books' && request.query.contains('id=7')",
            true,
            false,
        ),
        (
            "request.headers['user-agent'].endsWith(\"forged\")",
            true,
            false,
        ),
        ("request.headers['X-None'] == 'a'", false, false),
        ("has(request.headers['x-request-id'])", true, false),
        (
            "'x-none' in request.headers || !has(response.headers['content-type'])",
            false,
            true,
        ),
        (
            "response.headers['content-type'] == 'text/plain'",
            true,
            false,
        ),
        ("response.flags != 0", true, false),
        ("response.grpc_status == 5", true, false),
        (
            "request.duration > duration('10ms') && request.duration < duration('1s')",
            true,
            true,
        ),
        (
            "request.total_size == 105 && response.total_size == 1074",
            true,
            false,
        ),
        (
            "upstream.port == 8080 && upstream.address == '10.0.0.2:8080'",
            true,
            false,
        ),
        ("source.port == 5000 && destination.port == 80", true, true),
        (
            "connection.uri_san_peer_certificate.startsWith('spiffe://td/')",
            true,
            false,
        ),
        ("true", true, true),
        ("xds.cluster_name == 'outbound|80||server'", true, true),
    ] {
        let filter =
            LogFilter::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        request(|entry| assert_eq!(passes(&filter, entry), of_request, "{expression}"));
        opaque(|entry| assert_eq!(passes(&filter, entry), of_connection, "{expression}"));
    }
}

#[test]
fn expressions_that_are_wrong_name_what_is_wrong() {
    let deep = format!("{}true{}", "(".repeat(100), ")".repeat(100));
    for (expression, named) in [
        ("", "too early"),
        ("response.cod == 200", "`response.cod`"),
        ("response.code == '200'", "a number is compared with text"),
        ("response.code", "neither true nor false"),
        ("request.path.matches('a')", "`matches()`"),
        ("size(request.path) > 3", "`size()`"),
        ("response.code == 200 ? true : false", "`? :`"),
        ("response.code == 2.5", "`2.5`"),
        ("request.path == 'a", "no closing quote"),
        ("request.method in ['GET', 1]", "looked for among"),
        ("connection.mtls > true", "does not order"),
        ("response.code = 200", "`=`"),
        ("a && && b", "`a`"),
        (&deep, "nested deeper"),
        ("response.code == 200 ) ", "`)`"),
        ("has('x')", "`has`"),
        ("duration('soon') > duration('1s')", "`soon`"),
    ] {
        let error = LogFilter::parse(expression).expect_err(expression);
        assert!(error.to_string().contains(named), "{expression}: {error}");
    }
}

#[test]
fn a_file_gets_every_line_that_passes_and_follows_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
    let (file, writing) = FileLog::start(path.to_str().expect("a path")).expect("opened");
    let renderer = text("%REQ(:METHOD)% %REQ(X-REQUEST-ID)%");
    let filter = LogFilter::parse("request.method == 'POST'").expect("a filter");
    let logger = Logger::new(Some(filter), Sink::File(file.clone(), renderer.into()));
    assert!(logger.wants().request_id && !logger.wants().response);
    let wait = |path: &std::path::Path, lines: usize| {
        let begun = std::time::Instant::now();
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if text.lines().count() >= lines {
                return text;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{text}");
            std::thread::yield_now();
        }
    };
    opaque(|entry| logger.log(entry));
    for _ in 0..3000 {
        request(|entry| logger.log(entry));
    }
    assert!(wait(&path, 3000).lines().all(|line| line == "POST r-1"));
    std::fs::rename(&path, &moved).expect("moved");
    request(|entry| logger.log(entry));
    assert_eq!(wait(&path, 1), "POST r-1\n");
    assert_eq!(file.dropped(), 0);
    drop((logger, file));
    assert!(writing.finish());
}

#[test]
fn no_fields_have_no_values() {
    assert_eq!(NoFields.field(HeaderSource::Request, "host"), None);
}
