//! `voile load`: options in, one result out (table, JSON or Fortio's JSON), and an exit code that says whether the
//! run may be believed.

mod words;

use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use voile_load::fortio::FortioForm;
use voile_load::grpc::ANY_MESSAGES;
use voile_load::options::{DEFAULT_TCP_BYTES, ReplayedTrace, UNTIL_STOPPED, parse_sizes, pattern};
use voile_load::trace::{MAX_RECORDED, Trace};
use voile_load::{
    ArrivalPattern, Bulk, LoadCondition, LoadOptions, LoadProtocol, LoadTarget, ProfileSegment,
    Progress, Resolve, Stop, TlsOptions, bulk, capacity, comparison, describe::Method,
    parse_duration,
};

use words::{
    ArrivalName, EXAMPLES, Format, ProtocolName, TlsArgs, interval, parse_header, parse_messages,
    parse_reuse, parse_target,
};

/// Send load to a URL on a schedule and measure latency from the instant each request was due.
///
/// Open loop: requests are due at --rate whatever the server does. A request that finds no connection free waits,
/// and its latency counts from when it was due; `service` time, from the actual send, is shown beside it. Requests
/// without an answer at the end are errors, and their age is a sample: nothing is dropped.
///
/// Percentiles are of requests that were answered as expected; failures are told apart, by cause. A run that missed its
/// rate by more than 1 %, or in which more than 1 % of requests failed, is INVALID: it is printed, with the reasons. The
/// generator measures its own lateness, and says when latencies are partly its own.
///
/// Exit codes: 0 valid, 1 invalid, failed or a threshold crossed, 2 wrong usage. JSON fields: docs/reference/load.md.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    /// URL of requests; names are resolved once.
    /// http://HOST[:PORT][/PATH][?QUERY]  HTTP/1.1, or --protocol http2
    /// h2c://HOST[:PORT][/PATH][?QUERY]   HTTP/2, by prior knowledge
    /// grpc://HOST:PORT[/SERVICE/METHOD]  gRPC calls; else the health check
    /// tcp://HOST:PORT                    --payload-size bytes there and back,
    ///                                    or --protocol tcp-bulk
    /// udp://HOST:PORT                    the same in datagrams; one that is
    ///                                    lost is a timeout
    /// ws://HOST[:PORT][/PATH]            WebSocket: messages of as many bytes
    /// https://, h2://, grpcs://, wss://, tls://  the same over TLS
    #[arg(verbatim_doc_comment, required_unless_present = "read")]
    url: Option<String>,
    /// Send requests there too: WEIGHT times as often as to the first URL (1), as 3=http://HOST/PATH. May be repeated. URLs may begin
    /// differently (http, grpc, tcp, ...); each address and protocol has connections of its own, by weight.
    #[arg(
        long = "target",
        value_name = "[WEIGHT=]URL",
        help_heading = "Requests"
    )]
    targets: Vec<String>,
    /// Connect to this address instead of the resolved one; or ip4 or ip6: to an address of that kind. Usually the
    /// first IPv4 address of a name is taken, and IPv6 if it has none; once, for the whole run.
    #[arg(long, value_name = "IP|KIND", value_parser = Resolve::parse, default_value = "ip", hide_default_value = true, help_heading = "Requests")]
    resolve: Resolve,
    /// Protocol, if the URL's scheme leaves a choice.
    #[arg(long, value_enum, value_name = "PROTOCOL", help_heading = "Requests")]
    protocol: Option<ProtocolName>,
    /// Requests per second over all connections; 0 = maximum, each connection sending as soon as it is answered.
    /// Over time: 100..2000 is a ramp, 100,500,1000 are steps that share the duration; with lengths (which then are the
    /// duration): 100@5s,100..1000@30s,0@1s.
    #[arg(
        long,
        short = 'r',
        allow_negative_numbers = true,
        default_value = "100",
        value_name = "N|PROFILE",
        verbatim_doc_comment,
        help_heading = "Schedule"
    )]
    rate: String,
    /// Number of requests due at once; the rate of requests stays the same.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Schedule")]
    burst: u64,
    /// Send at recorded times instead, a line a request: seconds first, or an access log (common and combined format,
    /// Envoy's and Istio's, or JSON with a time). Lasts as long as the trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "duration", "warmup", "burst", "arrival"], help_heading = "Schedule")]
    replay: Option<PathBuf>,
    /// Also send the recorded requests: the method and path of each line (`1.25 GET /a?b`, or as the log has them), to
    /// the host of the URL.
    #[arg(long, requires = "replay", conflicts_with_all = ["targets", "method"], help_heading = "Schedule")]
    replay_requests: bool,
    /// Factor to the recorded speed.
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "FACTOR",
        requires = "replay",
        help_heading = "Schedule"
    )]
    replay_speed: f64,
    /// Connections, each with at most one request in flight (HTTP/2 and gRPC: --streams).
    #[arg(
        long,
        short = 'c',
        default_value_t = 4,
        value_name = "N",
        help_heading = "Connections"
    )]
    connections: usize,
    /// HTTP/2 and gRPC: requests in flight on each connection, at most.
    #[arg(
        long,
        short = 's',
        default_value_t = 1,
        value_name = "N",
        help_heading = "Connections"
    )]
    streams: usize,
    /// Time to measure [default: 10s]; 0: until Ctrl-C.
    #[arg(long, short = 'd', value_parser = parse_duration, value_name = "DURATION", help_heading = "Schedule")]
    duration: Option<Duration>,
    /// End after so many requests instead: with a rate, when so many have been due; without (--rate 0), when so many
    /// have been answered.
    #[arg(long, short = 'n', value_name = "N", conflicts_with_all = ["duration", "replay", "find_capacity"], help_heading = "Schedule")]
    requests: Option<u64>,
    /// Time to send the same load first, without counting it.
    #[arg(long, default_value = "0", value_parser = parse_duration, value_name = "DURATION", help_heading = "Schedule")]
    warmup: Duration,
    /// Generator threads; connections and schedule are divided among them.
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        help_heading = "Connections"
    )]
    threads: usize,
    /// Spread of requests over time.
    #[arg(long, value_enum, default_value_t = ArrivalName::Uniform, help_heading = "Schedule")]
    arrival: ArrivalName,
    /// Seed of `--arrival poisson`.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Schedule")]
    seed: u64,
    /// Longest wait for a response after it was sent; then the connection is closed and an error counted.
    #[arg(long, default_value = "3s", value_parser = parse_duration, value_name = "DURATION", help_heading = "Checks")]
    timeout: Duration,
    /// Request method.
    #[arg(
        long,
        short = 'X',
        default_value = "GET",
        value_name = "METHOD",
        help_heading = "Requests"
    )]
    method: String,
    /// Request header; `Host` replaces the URL's. May be repeated.
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = parse_header, help_heading = "Requests")]
    headers: Vec<(String, String)>,
    /// Request header whose value is the next line of the file in each request, starting over at the end: for tokens
    /// that must differ, as 'Authorization: @FILE'.
    #[arg(long, value_name = "NAME: @FILE", value_parser = parse_header, help_heading = "Requests")]
    header_each: Option<(String, String)>,
    /// HTTP/1: replace `{uuid}` in the URL's path and query and in --data by a new UUID in each request.
    #[arg(long, help_heading = "Requests")]
    uuids: bool,
    /// Send a body of that many bytes. gRPC: a message whose payload field has that many. TCP: that many bytes are a
    /// request (default 64). Several: 100..2000 (16 sizes, evenly spread), or with weights 1024:90,65536:10.
    #[arg(
        long,
        value_name = "BYTES|SIZES",
        conflicts_with = "data",
        help_heading = "Requests"
    )]
    payload_size: Option<String>,
    /// Send this body; @FILE reads it from a file. gRPC: what begins with `{` is the request message in JSON, or
    /// several after each other to be sent in turn; its description comes from the server (reflection) or from
    /// --descriptors.
    #[arg(long, value_name = "TEXT|@FILE", help_heading = "Requests")]
    data: Option<String>,
    /// gRPC: descriptions of the messages, as `protoc --include_imports -o FILE` writes them, for servers without reflection.
    #[arg(
        long,
        value_name = "FILE",
        requires = "data",
        help_heading = "Requests"
    )]
    descriptors: Option<PathBuf>,
    /// tcp-bulk: receive bytes from a server that sends continuously, instead of sending them.
    #[arg(long, help_heading = "Requests")]
    pull: bool,
    /// Open a connection for each request.
    #[arg(long, help_heading = "Connections")]
    no_keepalive: bool,
    /// Close each connection after a number of answers between these, drawn anew for each, as Fortio's -connection-reuse.
    #[arg(long, value_name = "MIN:MAX", value_parser = parse_reuse, conflicts_with = "no_keepalive", help_heading = "Connections")]
    connection_reuse: Option<(u64, u64)>,
    /// gRPC: messages that a call sends and that its answer must bring, for streaming methods: 100:100, 100:1, 1:100.
    /// Without it, each message of --data is sent once, and a stream of answers may bring as many as it likes.
    #[arg(long, value_name = "OUT:IN", value_parser = parse_messages, help_heading = "Requests")]
    messages: Option<(u32, u32)>,
    /// gRPC, a method with streams both ways: each lane keeps a call open, and a request is a message of it, sent when the last
    /// one was answered. Latency is that of a message. With N a call ends after so many, and another begins.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["messages", "targets"], help_heading = "Requests")]
    interleave: Option<u32>,
    /// Source address of the connections.
    #[arg(long, value_name = "IP", help_heading = "Connections")]
    bind: Option<IpAddr>,
    /// Count a response with a body (gRPC: message) of another length as an error (kind `size`). TCP: that many bytes
    /// are an answer (default: as many as were sent).
    #[arg(long, value_name = "BYTES", help_heading = "Checks")]
    expect_size: Option<u64>,
    /// Count a response with another status as an error (kind `status`); without it, any but 2xx is. gRPC: its status,
    /// of which any but 0 is.
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(0..=599), help_heading = "Checks")]
    expect_status: Option<u16>,
    /// Find the highest rate at which these bounds hold, such as 'p99<5ms,errors<0.1%' (p50, p99, p99.9, mean, max, errors),
    /// beginning at --rate, with probes of --duration (3s): the whole curve of latency against load, and its knee.
    #[arg(long, value_name = "BOUNDS", conflicts_with_all = ["replay", "abort"], help_heading = "Checks")]
    find_capacity: Option<String>,
    /// Precision of the capacity, in percent.
    #[arg(
        long,
        default_value_t = 5.0,
        value_name = "PERCENT",
        requires = "find_capacity",
        help_heading = "Checks"
    )]
    precision: f64,
    /// End the run when one of these is true of a second of it, such as 'errors>5%,p99>1s'; or at the first answer with
    /// a status, as 'status=503', or request without an answer, 'status=none'.
    #[arg(long, value_name = "CONDITIONS", help_heading = "Checks")]
    abort: Option<String>,
    /// Conditions on the whole run, such as 'p99<20ms,errors<0.1%' (p50, p99, p99.9, mean, max, errors): the result shows each
    /// with ✓ or ✗, and the exit code is 1 if one is crossed.
    #[arg(
        long,
        value_name = "BOUNDS",
        conflicts_with = "find_capacity",
        help_heading = "Checks"
    )]
    threshold: Option<String>,
    /// End the run if requests fail and none has been answered for so long from the start; 0: never.
    #[arg(long, default_value = "3s", value_parser = parse_duration, value_name = "DURATION", help_heading = "Checks")]
    give_up: Duration,
    #[command(flatten)]
    tls: TlsArgs,
    /// Send nothing; show saved results of `voile load -o json` or of Fortio beside each other. May be repeated.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "url",
        help_heading = "Output"
    )]
    read: Vec<PathBuf>,
    /// The older word for `-o json`.
    #[arg(long, conflicts_with = "output", hide = true, help_heading = "Output")]
    json: bool,
    /// Output format.
    #[arg(long, short, alias = "format", value_enum, default_value_t = Format::Text, help_heading = "Output")]
    output: Format,
    /// Write the result to this file instead of stdout.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// JSON: count in intervals of this length as well (at least 10ms), each with its histogram.
    #[arg(long, default_value = "0", value_parser = interval, value_name = "DURATION", help_heading = "Output")]
    interval: Duration,
    /// Labels, carried into Fortio's JSON.
    #[arg(long, default_value = "", value_name = "TEXT", help_heading = "Output")]
    labels: String,
    /// Print a line each second to stderr, even if that is not a terminal (on one, a picture is drawn otherwise).
    #[arg(long, help_heading = "Output")]
    progress: bool,
}

/// Shows results that were written before.
fn read(args: &LoadArgs) -> Result<(), String> {
    let one = |path: &PathBuf| {
        let told = |error| format!("read {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(told)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        comparison::parse(&name.to_string_lossy(), &text)
    };
    let results = args.read.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    print(args, &comparison::table(&results))
}

pub(crate) fn run(args: &LoadArgs) -> ExitCode {
    let form = FortioForm {
        labels: args.labels.clone(),
        ..FortioForm::default()
    };
    run_in(args, &form)
}

/// Runs, and writes Fortio's JSON, if that is asked for, in such a form.
pub(crate) fn run_in(args: &LoadArgs, form: &FortioForm) -> ExitCode {
    if !args.read.is_empty() {
        return match read(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("voile load: {why}");
                ExitCode::from(2)
            }
        };
    }
    let options = match options(args).and_then(|options| writable(args).map(|()| options)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("voile load: {why}");
            return ExitCode::from(2);
        }
    };
    let progress = progress(args);
    let ended = Stop::new()
        .and_then(|stop| stop.on_signals().map(|()| stop))
        .map_err(|error| error.to_string())
        .and_then(|stop| match options.protocol {
            _ if args.find_capacity.is_some() => {
                find_capacity(args, &options, &stop, progress != Progress::Quiet)
            }
            LoadProtocol::TcpBulk => run_bulk(args, &options, &stop, progress != Progress::Quiet),
            _ => run_requests(args, form, &options, &stop, progress),
        });
    let problems = match ended {
        Ok(problems) => problems,
        Err(why) => {
            eprintln!("voile load: {why}");
            return ExitCode::from(1);
        }
    };
    // On a terminal, the table above has them.
    let shown = format(args) == Format::Text && args.out.is_none();
    if !(shown && std::io::stdout().is_terminal()) {
        for problem in &problems {
            eprintln!("voile load: {problem}");
        }
    }
    ExitCode::from(u8::from(!problems.is_empty()))
}

/// Reasons as problems of a run.
fn invalid(reasons: Vec<String>) -> Vec<String> {
    let said = |reason| format!("run INVALID: {reason}");
    reasons.into_iter().map(said).collect()
}

/// Selects the progress output: a picture on a terminal that can show one. Lines if `--progress` asks for them or only half of
/// the output is a terminal.
fn progress(args: &LoadArgs) -> Progress {
    let (told, shown) = (
        std::io::stderr().is_terminal(),
        std::io::stdout().is_terminal(),
    );
    let dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    match (told && shown && !dumb, told || args.progress) {
        (true, _) if !args.progress => Progress::Picture,
        (_, true) => Progress::Lines,
        _ => Progress::Quiet,
    }
}

/// Runs, prints, and returns why the figures may not be believed, and the thresholds that are crossed.
fn run_requests(
    args: &LoadArgs,
    form: &FortioForm,
    options: &LoadOptions,
    stop: &Stop,
    progress: Progress,
) -> Result<Vec<String>, String> {
    let result = voile_load::run(options, stop, progress).map_err(|error| error.to_string())?;
    let text = match format(args) {
        Format::Text => result.to_table(),
        Format::Json => result.to_json() + "\n",
        Format::Fortio => result.to_fortio(form) + "\n",
    };
    print(args, &text)?;
    let crossed = result.thresholds.iter().filter(|one| !one.holds);
    let crossed = crossed.map(|one| format!("threshold {} crossed: {}", one.threshold, one.found));
    let crossed: Vec<_> = crossed.collect();
    Ok([invalid(result.invalid_reasons), crossed].concat())
}

/// Searches, prints, and returns why there is no answer.
fn find_capacity(
    args: &LoadArgs,
    options: &LoadOptions,
    stop: &Stop,
    progress: bool,
) -> Result<Vec<String>, String> {
    let bounds = LoadCondition::parse(args.find_capacity.as_deref().unwrap_or_default(), '<')?;
    let mut say = |probe: &capacity::Probe| {
        if progress {
            let verdict = if probe.holds { "holds" } else { &probe.why };
            eprintln!(
                "{:>10.1}/s  p99 {:>8} µs  {verdict}",
                probe.rate, probe.p99_us
            );
        }
    };
    let precision = args.precision / 100.0;
    let found = capacity::find(options, &bounds, precision, stop, &mut say);
    let found = found.map_err(|error| error.to_string())?;
    let text = match format(args) {
        Format::Text => found.to_table(),
        Format::Json | Format::Fortio => found.to_json() + "\n",
    };
    print(args, &text)?;
    let mut reasons = Vec::new();
    if found.capacity_rps <= 0.0 && !found.limited_by.is_empty() {
        reasons.push(format!(
            "the bounds do not hold at any rate: {}",
            found.limited_by
        ));
    }
    if found.generator_limited {
        reasons.push("the generator was the bottleneck".to_owned());
    }
    if found.interrupted {
        reasons.push("the search was interrupted".to_owned());
    }
    Ok(invalid(reasons))
}

fn run_bulk(
    args: &LoadArgs,
    options: &LoadOptions,
    stop: &Stop,
    progress: bool,
) -> Result<Vec<String>, String> {
    let result = bulk::run(options, stop, progress).map_err(|error| error.to_string())?;
    let text = match format(args) {
        Format::Text => result.to_table(),
        Format::Json | Format::Fortio => result.to_json() + "\n",
    };
    print(args, &text)?;
    Ok(invalid(result.invalid_reasons))
}

fn format(args: &LoadArgs) -> Format {
    if args.json { Format::Json } else { args.output }
}

/// Returns an error if the chosen format has no place for the measured figures.
fn has_place(args: &LoadArgs, protocol: LoadProtocol) -> Result<(), String> {
    let of = match protocol {
        _ if args.output != Format::Fortio => return Ok(()),
        _ if args.find_capacity.is_some() => "a search",
        LoadProtocol::TcpBulk => "the figures of tcp-bulk",
        _ => return Ok(()),
    };
    Err(format!("-o fortio cannot express {of}"))
}

fn options(args: &LoadArgs) -> Result<LoadOptions, String> {
    let url = args.url.as_deref().unwrap_or_default();
    let mut options = LoadOptions::new(LoadTarget::resolved(url, args.resolve)?);
    if let Some(protocol) = args.protocol {
        options.protocol = protocol.spoken();
    }
    options.streams = args.streams;
    options.connections = args.connections;
    let usual = match args.find_capacity {
        Some(_) => capacity::PROBE,
        None => options.duration,
    };
    options.duration = match args.duration.unwrap_or(usual) {
        Duration::ZERO => UNTIL_STOPPED,
        duration => duration,
    };
    arrive(args, &mut options)?;
    count(args, &mut options)?;
    judge(args, &mut options)?;
    options.warmup = args.warmup;
    options.threads = args.threads;
    options.arrival = match args.arrival {
        ArrivalName::Uniform => ArrivalPattern::Uniform,
        ArrivalName::Poisson => ArrivalPattern::Poisson,
        ArrivalName::Fortio => ArrivalPattern::Fortio,
    };
    options.seed = args.seed;
    options.timeout = args.timeout;
    has_place(args, options.protocol)?;
    if args.pull && options.protocol != LoadProtocol::TcpBulk {
        return Err("--pull requires --protocol tcp-bulk".to_owned());
    }
    options.bulk = if args.pull { Bulk::Pull } else { Bulk::Push };
    options.http10 = args.protocol == Some(ProtocolName::Http10);
    let once = options.http10 || args.protocol == Some(ProtocolName::TcpCrr);
    options.keepalive = !(args.no_keepalive || once);
    options.bind = args.bind;
    options.method.clone_from(&args.method);
    options.headers.clone_from(&args.headers);
    options.body = body(args)?;
    if let Some(text) = &args.payload_size {
        options.sizes = parse_sizes(text).map_err(|why| format!("payload-size {why}"))?;
    }
    if let [(size, _)] = options.sizes[..] {
        options.body = pattern(size);
        options.sizes.clear();
    }
    let more = args.targets.iter();
    let more = more.map(|text| parse_target(text, args.resolve));
    options.more = more.collect::<Result<_, _>>()?;
    options.reuse = args.connection_reuse;
    options.interval = args.interval;
    options.messages = args.messages.unwrap_or(options.messages);
    let empty = options.body.is_empty() && options.sizes.is_empty();
    if matches!(options.protocol, LoadProtocol::TcpRr | LoadProtocol::Udp) && empty {
        options.body = pattern(DEFAULT_TCP_BYTES);
    }
    if !empty && options.method == "GET" {
        "POST".clone_into(&mut options.method);
    }
    options.interleave = args.interleave;
    if let Some((name, file)) = &args.header_each {
        options.each = Some((name.clone(), words::lines(file)?));
    }
    options.uuids = args.uuids;
    secure(&args.tls, &mut options)?;
    describe(args, &mut options)?;
    options.expect_size = args.expect_size;
    options.expect_status = args.expect_status;
    options.check()?;
    Ok(options)
}

/// Returns true if data is the JSON of gRPC messages, and not a payload.
fn in_json(args: &LoadArgs, options: &LoadOptions, data: &[u8]) -> bool {
    let braced = data.trim_ascii_start().starts_with(b"{");
    options.protocol == LoadProtocol::Grpc && args.data.is_some() && braced
}

/// Makes gRPC messages of JSON, for each target by its own method.
fn describe(args: &LoadArgs, options: &mut LoadOptions) -> Result<(), String> {
    if !in_json(args, options, &options.body) {
        return match args.descriptors {
            Some(_) => Err("descriptors: require gRPC and --data in JSON".to_owned()),
            None => Ok(()),
        };
    }
    let json = String::from_utf8(std::mem::take(&mut options.body))
        .map_err(|_| "data: JSON must be UTF-8".to_owned())?;
    let targets =
        std::iter::once(&options.target).chain(options.more.iter().map(|(_, target)| target));
    let mut ready = Vec::new();
    for target in targets {
        if options.spoken_at(target) != LoadProtocol::Grpc {
            ready.push(Vec::new());
            continue;
        }
        let method = Method::find(target, options.tls.as_ref(), args.descriptors.as_deref())?;
        let messages = method
            .messages(&json)
            .map_err(|why| format!("data: {why}"))?;
        if args.interleave.is_some() && messages.len() > 1 {
            return Err("data: --interleave allows one message only".to_owned());
        }
        let (many, answers) = method.streaming();
        // Only the server knows the number of answers in a stream.
        let open = answers && args.interleave.is_none();
        let wanted = if open { ANY_MESSAGES } else { 1 };
        let usual = (messages.len() as u32, wanted);
        let (sent, wanted) = args.messages.unwrap_or(usual);
        if (sent > 1 && !many)
            || (wanted != 1 && !answers)
            || (args.interleave.is_some() && !(many && answers))
        {
            return Err(format!(
                "{}: the method does not stream in this direction",
                target.url
            ));
        }
        if args.interleave.is_none() {
            options.messages = (sent, wanted);
        }
        ready.push(messages);
    }
    options.ready = ready;
    Ok(())
}

/// Reads what goes with a URL over TLS.
fn secure(tls: &TlsArgs, options: &mut LoadOptions) -> Result<(), String> {
    let load = |target: &LoadTarget, protocol: LoadProtocol| {
        let asked = TlsOptions {
            cacert: tls.cacert.clone(),
            cert: tls.cert.clone(),
            key: tls.key.clone(),
            insecure: tls.insecure,
            server_name: tls.tls_name.clone(),
            resume: tls.tls_resume,
        };
        let loaded = asked.load(protocol, target);
        loaded.map_err(|why| format!("TLS: {why}"))
    };
    if options.target.scheme.secure() {
        options.tls = Some(load(&options.target, options.protocol)?);
    }
    for (_, target) in &options.more {
        let protocol = options.spoken_at(target);
        let own = target.scheme.secure().then(|| load(target, protocol));
        options.more_tls.push(own.transpose()?);
    }
    Ok(())
}

/// Reads the conditions of `--abort`, `--threshold` and `--find-capacity`. Reads them before the run, so that
/// wrong words cost no time.
fn judge(args: &LoadArgs, options: &mut LoadOptions) -> Result<(), String> {
    if let Some(text) = &args.abort {
        let (statuses, others): (Vec<_>, Vec<_>) = text
            .split(',')
            .map(str::trim)
            .partition(|part| part.starts_with("status"));
        let status = |text: &str| {
            let code = text.strip_prefix("status=");
            match code {
                Some("none") => Ok(None),
                _ => code
                    .and_then(|code| code.parse().ok())
                    .map(Some)
                    .ok_or_else(|| {
                        format!("abort `{text}`: expected such as status=503 or status=none")
                    }),
            }
        };
        let statuses = statuses.into_iter().map(status);
        options.abort_on = statuses.collect::<Result<_, _>>()?;
        if !others.is_empty() {
            let others = LoadCondition::parse(&others.join(","), '>');
            options.abort = others.map_err(|why| format!("abort {why}"))?;
        }
    }
    options.give_up = args.give_up;
    if let Some(text) = &args.threshold {
        if options.protocol == LoadProtocol::TcpBulk {
            return Err("threshold: tcp-bulk has no requests to judge".to_owned());
        }
        let conditions = LoadCondition::parse(text, '<');
        options.thresholds = conditions.map_err(|why| format!("threshold {why}"))?;
    }
    if let Some(text) = &args.find_capacity {
        LoadCondition::parse(text, '<').map_err(|why| format!("find-capacity {why}"))?;
        if options.duration >= UNTIL_STOPPED {
            return Err("find-capacity: the duration of a probe must be more than 0".to_owned());
        }
        if !options.parts.is_empty() || options.rate <= 0.0 {
            return Err("find-capacity needs one start rate above 0".to_owned());
        }
        if !(0.5..=50.0).contains(&args.precision) {
            return Err(format!("precision {}: expected 0.5 to 50", args.precision));
        }
    }
    Ok(())
}

/// Instants are rounded: the request after the last must not be due before the end. A tenth of the shortest period.
const ROUNDING: Duration = Duration::from_nanos(10);

/// Sets the number of requests that ends the run.
fn count(args: &LoadArgs, options: &mut LoadOptions) -> Result<(), String> {
    let Some(requests) = args.requests else {
        return Ok(());
    };
    if requests == 0 {
        return Err("requests 0: expected at least 1".to_owned());
    }
    if options.rate <= 0.0 {
        options.duration = UNTIL_STOPPED;
        options.requests = Some(requests);
        return Ok(());
    }
    if !options.parts.is_empty() || matches!(args.arrival, ArrivalName::Poisson) {
        return Err(
            "requests: the number of due requests follows from the rates, or is random; use a duration"
                .to_owned(),
        );
    }
    let seconds = requests as f64 / options.rate;
    options.duration = Duration::try_from_secs_f64(seconds)
        .ok()
        .map(|duration| duration.saturating_sub(ROUNDING))
        .filter(|duration| !duration.is_zero() && *duration < UNTIL_STOPPED)
        .ok_or_else(|| {
            format!("requests {requests}: this many take {seconds:.1} s, which is not supported")
        })?;
    Ok(())
}

/// When requests are due: a rate, a profile of rates, or a recorded trace.
fn arrive(args: &LoadArgs, options: &mut LoadOptions) -> Result<(), String> {
    options.burst = args.burst;
    if let Some(path) = &args.replay {
        if !(args.replay_speed.is_finite() && args.replay_speed > 0.0) {
            return Err(format!(
                "replay-speed {}: expected more than 0",
                args.replay_speed
            ));
        }
        let told = |why: &dyn std::fmt::Display| format!("replay {}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| told(&error))?;
        let trace = Trace::parse(&text, args.replay_speed).map_err(|why| told(&why))?;
        if args.replay_requests {
            if let Some(line) = trace.nameless {
                return Err(told(&format!("line {line}: no method and path in it")));
            }
            if trace.which.is_empty() {
                let most = format!("more than {MAX_RECORDED} different requests");
                return Err(told(&most));
            }
            options.recorded = Some(ReplayedTrace {
                requests: trace.requests.into(),
                which: trace.which.into(),
            });
        }
        options.set_replay(trace.instants);
        return Ok(());
    }
    let parts = ProfileSegment::parse(&args.rate).map_err(|why| format!("rate {why}"))?;
    if args.duration.is_some() && parts.iter().any(|part| part.length.is_some()) {
        return Err("duration: the lengths of the rate's parts already set it".to_owned());
    }
    options.set_parts(parts);
    Ok(())
}

fn body(args: &LoadArgs) -> Result<Vec<u8>, String> {
    match args.data.as_deref() {
        None => Ok(Vec::new()),
        Some(data) => match data.strip_prefix('@') {
            Some(path) => std::fs::read(path).map_err(|error| format!("read {path}: {error}")),
            None => Ok(data.as_bytes().to_vec()),
        },
    }
}

/// Checks that the result file can be written. The check comes before the run: afterwards the result would
/// be lost.
fn writable(args: &LoadArgs) -> Result<(), String> {
    let Some(path) = &args.out else { return Ok(()) };
    let there = path.exists();
    let opened = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    opened.map_err(|error| format!("write {}: {error}", path.display()))?;
    if !there {
        // It comes with its contents. Should it not go away, it is written over.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn print(args: &LoadArgs, text: &str) -> Result<(), String> {
    match &args.out {
        Some(path) => std::fs::write(path, text).map_err(|error| {
            // The result must not be lost if the file cannot be written.
            let _ = std::io::stdout().write_all(text.as_bytes());
            format!("write {}: {error}; the result is on stdout", path.display())
        }),
        None => crate::commands::print(text.as_bytes())
            .map_err(|error| format!("write to stdout: {error}")),
    }
}
