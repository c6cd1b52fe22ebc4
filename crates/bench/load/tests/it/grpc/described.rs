//! gRPC by description: JSON into messages by reflection and by file, streams answered message by message, and grpcurl against
//! the echo server.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use voile_load::describe::Method;
use voile_load::echo::EchoOptions;
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop};
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::server::{PATIENCE, Served, stranger};

const STREAM: &str = "voile.echo.v1.Echo/Stream";

fn target(server: &Served, path: &str) -> LoadTarget {
    LoadTarget::parse(&format!("grpc://{}/{path}", server.address)).unwrap()
}

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

#[test]
fn json_becomes_the_message_that_the_server_describes() {
    let server = Served::echo(EchoOptions::default());
    let committed = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/served.binpb"));
    for (path, json, wanted) in [
        (
            "voile.echo.v1.Echo/Unary",
            r#"{"payload":"aGk="}"#,
            Ok(vec![&b"\x0a\x02hi"[..]]),
        ),
        (
            "voile.echo.v1.Echo/Stream?delay=1ms",
            r#"{} {"payload":"YQ=="}"#,
            Ok(vec![b"", b"\x0a\x01a"]),
        ),
        (
            "fgrpc.PingServer/Ping",
            r#"{"seq":"7","delayNanos":5}"#,
            Ok(vec![b"\x08\x07\x20\x05"]),
        ),
        (
            "voile.echo.v1.Echo/Unary",
            r#"{"nothing":1}"#,
            Err("unrecognized field name 'nothing'"),
        ),
        (
            "voile.echo.v1.Echo/Unary",
            r#"{"payload":"#,
            Err("not JSON"),
        ),
        (
            "voile.echo.v1.Echo/Unary",
            " ",
            Err("expected a voile.echo.v1.Message"),
        ),
        (
            "voile.echo.v1.Echo/Shout",
            "{}",
            Err("no method Shout, only Unary, Stream, Collect, Repeat"),
        ),
        ("voile.Nobody/Unary", "{}", Err("voile.Nobody is not")),
        ("voile.echo.v1.Echo", "{}", Err("name the method")),
    ] {
        for file in [None, Some(committed.as_path())] {
            let target = target(&server, path);
            let found = Method::find(&target, None, file).and_then(|method| method.messages(json));
            match (&found, &wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{path}"),
                (Err(why), Err(word)) => assert!(why.contains(word), "{path}: {why}"),
                _ => panic!("{path} {json}: {found:?}"),
            }
        }
    }
}

#[test]
fn servers_without_descriptions_are_named_with_the_reason() {
    let stranger = stranger(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let url = format!("grpc://{stranger}/a.B/C");
    let why = Method::find(&LoadTarget::parse(&url).unwrap(), None, None).unwrap_err();
    assert!(
        why.contains("not HTTP/2") && why.contains("--descriptors"),
        "{why}"
    );
    // The server knows gRPC, but not this service.
    let server = Served::echo(EchoOptions::default());
    let why = Method::find(&target(&server, "a.B/C"), None, None).unwrap_err();
    assert!(why.contains("a.B is not served here"), "{why}");
    let missing = Method::find(&target(&server, "a.B/C"), None, Some("/no/such".as_ref()));
    assert!(missing.unwrap_err().contains("descriptors /no/such"));
}

#[test]
fn messages_of_a_call_are_answered_one_by_one() {
    let server = Served::echo(EchoOptions::default());
    for (each, streams, body) in [(0, 1, 3), (1, 2, 0), (5, 3, 100_000)] {
        let mut options = LoadOptions::new(target(&server, STREAM));
        options.interleave = Some(each);
        (options.rate, options.connections, options.streams) = (400.0, 2, streams);
        options.duration = Duration::from_millis(500);
        options.timeout = PATIENCE;
        options.body = vec![b'x'; body];
        // The field's key and length come before the payload, where there is one.
        options.expect_size = Some(match body {
            0 => 0,
            3 => 5,
            _ => 100_004,
        });
        let result = run(&options);
        let told = (result.ok, result.errors_total, result.errors.clone());
        assert_eq!(
            told,
            (200, 0, result.errors.clone()),
            "{each} a call: {:?}",
            result.errors
        );
        assert_eq!(
            result.first_byte_us.count, 200,
            "each answer has a first byte"
        );
        assert_eq!(result.connects, 0, "connections stay");
    }
}

#[test]
fn a_message_that_waits_for_its_answer_is_one_latency() {
    let server = Served::echo(EchoOptions::default());
    let mut options = LoadOptions::new(target(&server, &format!("{STREAM}?delay=30ms")));
    options.interleave = Some(0);
    (options.rate, options.connections) = (20.0, 2);
    options.duration = Duration::from_millis(500);
    options.timeout = PATIENCE;
    options.body = vec![b'x'; 10];
    let result = run(&options);
    assert_eq!(result.ok, 10, "{:?}", result.errors);
    assert!(result.latency_us.p50 >= 30_000, "{:?}", result.latency_us);
}

#[test]
fn a_call_that_fails_between_messages_fails_the_next_one() {
    let server = Served::echo(EchoOptions::default());
    // A method that takes one message only: the second finds the call over.
    for (path, wanted) in [
        (format!("{STREAM}?grpc-status=14"), "status"),
        ("voile.echo.v1.Echo/Nothing".to_owned(), "unanswered"),
    ] {
        let mut options = LoadOptions::new(target(&server, &path));
        options.interleave = Some(0);
        (options.rate, options.connections) = (20.0, 1);
        options.duration = Duration::from_millis(500);
        options.timeout = PATIENCE;
        let result = run(&options);
        assert_eq!(result.ok, 0, "{path}: {:?}", result.errors);
        assert!(
            result.errors.contains_key(wanted),
            "{path}: {:?}",
            result.errors
        );
    }
}

#[test]
fn grpcurl_needs_no_proto_files() {
    let Some(grpcurl) = program(Prerequisite::Grpcurl, "grpcurl") else {
        return;
    };
    let server = Served::echo(EchoOptions::default());
    let address = server.address.to_string();
    let ask = |arguments: &[&str]| {
        let output = Command::new(&grpcurl)
            .arg("-plaintext")
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let services = ask(&[&address, "list"]);
    for service in [
        "voile.echo.v1.Echo",
        "grpc.health.v1.Health",
        "fgrpc.PingServer",
    ] {
        assert!(services.contains(service), "{services}");
    }
    let one = ask(&[
        "-d",
        r#"{"payload":"aGk="}"#,
        &address,
        "voile.echo.v1.Echo/Unary",
    ]);
    assert!(one.contains("aGk="), "{one}");
    let many = r#"{"payload":"YQ=="}{"payload":"Yg=="}"#;
    let many = ask(&["-d", many, &address, STREAM]);
    assert!(many.contains("YQ==") && many.contains("Yg=="), "{many}");
    let health = ask(&[&address, "grpc.health.v1.Health/Check"]);
    assert!(health.contains("SERVING"), "{health}");
    let nobody = ask(&[&address, "describe", "no.Such"]);
    assert!(
        nobody.contains("not served here") || nobody.contains("not found"),
        "{nobody}"
    );
}

#[test]
fn a_stream_of_answers_may_bring_as_many_as_it_likes() {
    let server = Served::echo(EchoOptions::default());
    for (answers, wanted, good) in [
        (1, voile_load::grpc::ANY_MESSAGES, true),
        (7, voile_load::grpc::ANY_MESSAGES, true),
        (7, 7, true),
        (7, 1, false),
    ] {
        let path = format!("voile.echo.v1.Echo/Repeat?messages={answers}");
        let mut options = LoadOptions::new(target(&server, &path));
        (options.rate, options.messages) = (200.0, (1, wanted));
        options.duration = Duration::from_millis(100);
        options.timeout = PATIENCE;
        options.body = b"hi".to_vec();
        let result = run(&options);
        let told = (result.ok, result.errors_total);
        assert_eq!(told, if good { (20, 0) } else { (0, 20) }, "{path}");
    }
}
