//! `voile echo`: a server whose answers are chosen by the query.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use voile_load::echo::{Echo, EchoOptions, ServerTls, ServerTlsOptions, Stall};
use voile_load::{LoadTarget, Scheme, Stop, parse_duration};

/// Serve HTTP/1.1, HTTP/2 and gRPC answers of chosen size, delay and status.
///
/// HTTP/2 is recognised by its preface. gRPC: voile.echo.v1.Echo sends
/// messages back (Unary, Stream, Collect, Repeat); grpc.health.v1.Health, Fortio's
/// fgrpc.PingServer/Ping and reflection are served, too. WebSocket messages come
/// back, or as many bytes as `size` of the upgrade says.
///
/// The query of each request chooses its answer:
///   size=1024          a body of that many bytes; without it the request's own
///                      body comes back
///   delay=2ms          wait (at most 60s) before answering
///   status=503         answer with that status
///   close=true         close the connection after the answer (or a percentage:
///                      close=5)
///   header=Name:Value  add a header field; may be repeated
///   grpc-status=14     end a gRPC call with that status
///   gzip=true          compress the answer for clients that accept it (or a
///                      percentage: gzip=50)
///   delay-per-request=100us
///                      wait that long for this request and for each one
///                      that waits already: slower under load
///   messages=100       messages that voile.echo.v1.Echo/Repeat answers with
///   deny=/admin        as an external authorizer (gRPC,
///                      envoy.service.auth.v3.Authorization/Check): deny
///                      requests whose path begins so, allow all others; may
///                      be repeated; mostly given by --query
/// size, delay, status and grpc-status take lists with percentages, too:
/// delay=2ms:10,5ms:5 waits 2 ms in 10 % of requests, 5 ms in 5 %, and not at all
/// in the rest. All may come in a field `echo-query` instead. /debug answers with
/// the request's head as it arrived.
///
/// With --call the server is a service that depends on others: each request first
/// calls those URLs, in order, passing trace headers on, and answers
/// {"service":NAME,"calls":[{"url","status","body"|"error"}]}; the status is 502
/// if a callee failed or did not answer 2xx.
///
/// Prints `listening on ADDRESS` to stderr for each address. Ends on SIGINT or
/// SIGTERM, answering requests begun.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct EchoArgs {
    /// Address to serve HTTP on; port 0 takes a free one. May be repeated, as the other addresses.
    #[arg(long, required_unless_present_any = ["listen_tls", "tcp", "tcp_tls", "tcp_sink", "tcp_source", "udp"], num_args = 1.., value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// Address to serve the same on over TLS (1.3 or 1.2; ALPN h2 or http/1.1). May be repeated.
    #[arg(long, value_name = "ADDR")]
    listen_tls: Vec<SocketAddr>,
    /// TLS: the certificate and its chain, in PEM. Without it a self-signed certificate is made.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// TLS: the key of --cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// TLS: write the self-signed certificate to this file, for clients that trust it (--cacert).
    #[arg(long, value_name = "FILE", conflicts_with = "cert")]
    write_cert: Option<PathBuf>,
    /// TLS: names and addresses of the self-signed certificate [default: localhost, 127.0.0.1, ::1]. May be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "cert")]
    tls_name: Vec<String>,
    /// TLS: require client certificates from these authorities, in PEM.
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Worker threads; connections are balanced over them.
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Body size of answers whose query has no `size`; without it the request's body is echoed.
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// Delay of answers whose query has no `delay`.
    #[arg(long, default_value = "0", value_parser = parse_duration, value_name = "DURATION")]
    delay: Duration,
    /// Answer requests without a query as if they had this one: status=503:10&delay=2ms.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "QUERY"
    )]
    query: String,
    /// Pause periodically: 5s:200ms answers nothing for 200 ms every 5 s.
    #[arg(long, value_parser = Stall::parse, value_name = "EVERY:FOR")]
    stall: Option<Stall>,
    /// Name, put into answers as `x-voile-echo` and, with --call, as `service`.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// URL to call before answering. May be repeated.
    #[arg(long = "call", value_name = "URL", value_parser = callee)]
    calls: Vec<LoadTarget>,
    /// Address to serve raw TCP on: all bytes are echoed, half-close included.
    #[arg(long, value_name = "ADDR")]
    tcp: Vec<SocketAddr>,
    /// Address to serve the same on over TLS: `tls://` of `voile load`.
    #[arg(long, value_name = "ADDR")]
    tcp_tls: Vec<SocketAddr>,
    /// Address to serve UDP on: each datagram goes back to where it came from.
    #[arg(long, value_name = "ADDR")]
    udp: Vec<SocketAddr>,
    /// Address of a sink: it reads everything, and every 256 KiB sends the number of bytes read, as eight bytes.
    #[arg(long, value_name = "ADDR")]
    tcp_sink: Vec<SocketAddr>,
    /// Address of a source: it sends continuously.
    #[arg(long, value_name = "ADDR")]
    tcp_source: Vec<SocketAddr>,
}

fn callee(url: &str) -> Result<LoadTarget, String> {
    let target = LoadTarget::parse(url)?;
    match target.scheme {
        Scheme::Http => Ok(target),
        _ => Err(format!("{url}: services are called by http://")),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err("expected printable ASCII without spaces".to_owned())
}

/// Reads or makes the server's certificate, if it serves TLS.
fn secure(args: &EchoArgs) -> Result<Option<ServerTls>, String> {
    if args.listen_tls.is_empty() && args.tcp_tls.is_empty() {
        let given = args.cert.is_some()
            || args.write_cert.is_some()
            || args.client_ca.is_some()
            || !args.tls_name.is_empty();
        return if given {
            Err("--cert, --write-cert, --tls-name and --client-ca go with --listen-tls or --tcp-tls".to_owned())
        } else {
            Ok(None)
        };
    }
    let usual = ["localhost", "127.0.0.1", "::1"]
        .map(str::to_owned)
        .to_vec();
    let options = ServerTlsOptions {
        files: args.cert.clone().zip(args.key.clone()),
        names: if args.tls_name.is_empty() {
            usual
        } else {
            args.tls_name.clone()
        },
        write: args.write_cert.clone(),
        clients: args.client_ca.clone(),
    };
    options.load().map(Some)
}

pub(crate) fn run(args: EchoArgs) -> ExitCode {
    if args
        .size
        .is_some_and(|size| size > voile_load::echo::MAX_SIZE)
    {
        eprintln!(
            "voile echo: --size is at most {}",
            voile_load::echo::MAX_SIZE
        );
        return ExitCode::from(2);
    }
    let tls = match secure(&args) {
        Ok(tls) => tls,
        Err(why) => {
            eprintln!("voile echo: {why}");
            return ExitCode::from(2);
        }
    };
    let options = EchoOptions {
        listen: args.listen,
        listen_tls: args.listen_tls,
        tls,
        threads: args.threads,
        size: args.size,
        delay: args.delay,
        query: args.query,
        stall: args.stall,
        name: args.name,
        calls: args.calls,
        tcp: args.tcp,
        tcp_tls: args.tcp_tls,
        udp: args.udp,
        sink: args.tcp_sink,
        source: args.tcp_source,
        log: None,
    };
    let ended = Stop::new().and_then(|stop| {
        stop.on_signals()?;
        let echo = Echo::bind(options)?;
        for address in echo.addresses()? {
            eprintln!("voile echo: listening on {address}");
        }
        echo.run(&stop)
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voile echo: {error}");
            ExitCode::from(1)
        }
    }
}
