//! One run whose targets speak different protocols, some of them over TLS.

use std::time::Duration;

use voile_load::echo::{EchoOptions, ServerTlsOptions};
use voile_load::{LoadOptions, LoadTarget, Stop, TlsOptions};

use crate::server::{PATIENCE, Served, loopback};

#[test]
fn a_result_names_the_method_that_is_sent_and_none_of_bytes() {
    let http = Served::echo(EchoOptions::default());
    let tcp = Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    });
    for (url, heading) in [
        (format!("http://{}/", http.address), "GET http://"),
        (format!("grpc://{}/", http.address), "POST grpc://"),
        (format!("ws://{}/", http.address), "GET ws://"),
        (format!("tcp://{}", tcp.address), "tcp://"),
    ] {
        let mut options = LoadOptions::new(LoadTarget::parse(&url).unwrap());
        if options.target.url.starts_with("tcp") {
            options.body = vec![0; 64];
        }
        options.duration = Duration::from_millis(50);
        options.timeout = PATIENCE;
        let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
        let table = result.to_table();
        assert!(table.starts_with(heading), "{table}");
    }
}

#[test]
fn each_target_is_spoken_to_in_its_own_way() {
    let http = Served::echo(EchoOptions::default());
    let tcp = Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    });
    let made = ServerTlsOptions {
        names: vec!["127.0.0.1".to_owned()],
        ..ServerTlsOptions::default()
    };
    let sealed = Served::at(EchoOptions {
        listen_tls: vec![loopback()],
        tls: Some(made.load().unwrap()),
        ..EchoOptions::default()
    });
    let target = |url: String| LoadTarget::parse(&url).unwrap();
    let mut options = LoadOptions::new(target(format!("http://{}/?size=100", http.address)));
    options.more = vec![
        // The same address, and another protocol: connections of its own.
        (
            2.0,
            target(format!("grpc://{}/voile.echo.v1.Echo/Unary", http.address)),
        ),
        (1.0, target(format!("tcp://{}", tcp.address))),
        (1.0, target(format!("https://{}/", sealed.address))),
        (1.0, target(format!("ws://{}/chat", http.address))),
    ];
    let trusting = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    let (_, over_tls) = &options.more[2];
    let tls = trusting
        .load(options.spoken_at(over_tls), over_tls)
        .unwrap();
    options.more_tls = vec![None, None, Some(tls), None];
    (options.rate, options.connections) = (600.0, 10);
    options.duration = Duration::from_millis(500);
    options.timeout = PATIENCE;
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    assert_eq!(
        (result.ok, result.errors_total),
        (300, 0),
        "{:?}",
        result.errors
    );
    let told: Vec<_> = result
        .targets
        .iter()
        .map(|target| target.protocol)
        .collect();
    assert_eq!(told, ["http1", "grpc", "tcp-rr", "http1", "websocket"]);
    for (target, weight) in result.targets.iter().zip([50, 100, 50, 50, 50u64]) {
        assert!(
            target.ok.abs_diff(weight) <= weight / 3,
            "{}: {}",
            target.url,
            target.ok
        );
    }
    // Options that one of the targets cannot satisfy are refused before anything is sent.
    options.streams = 2;
    assert!(options.check().unwrap_err().contains("streams"));
    (options.streams, options.more_tls) = (1, Vec::new());
    assert!(options.check().unwrap_err().contains("TLS options require"));
}
