//! `voile fortio load …`: Fortio's words, so that a script changes by one word. They are put into ours and run as `voile load`;
//! what has another meaning here is refused or said, never taken in silence.

mod flags;

use std::process::ExitCode;

use clap::Parser as _;
use voile_load::fortio::FortioForm;
use voile_load::options::pattern;

use crate::commands::lab::load;
use flags::{FLAGS, FlagHandling};

/// Send load like `fortio load`, with its flags where they mean the same.
///
/// All connections send in phase unless -uniform is given, as Fortio's do; latency counts from when each request was due,
/// which Fortio does not show (docs/reference/load.md). -json and -a write Fortio's JSON.
#[derive(Debug, clap::Args)]
pub(crate) struct FortioArgs {
    /// `load`, then Fortio's flags and the URL.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "load [FLAGS] URL"
    )]
    words: Vec<String>,
}

/// Placeholder that each request replaces with a UUID.
const UUID: &str = "{uuid}";

/// The same, told in our words.
#[derive(Debug, clap::Parser)]
struct VoileOptions {
    #[command(flatten)]
    load: load::LoadArgs,
}

/// Values of the flags that need more than another name.
#[derive(Debug, Default)]
struct FortioFlags {
    words: Vec<String>,
    values: Vec<(&'static str, String)>,
    switches: Vec<(&'static str, bool)>,
    url: Option<String>,
}

impl FortioFlags {
    fn value(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn on(&self, name: &str) -> bool {
        let found = self.switches.iter().rev().find(|(known, _)| *known == name);
        found.is_some_and(|(_, on)| *on)
    }

    /// As many as Fortio has unless told.
    fn connections(&self) -> f64 {
        let told = self.words.iter().rev();
        let mut told = told.filter_map(|word| word.strip_prefix("--connections="));
        told.next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(4.0)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, String> {
        let parsed = self.value(name).map(|text| {
            text.parse()
                .map_err(|_| format!("-{name} {text}: not a number"))
        });
        parsed.transpose()
    }
}

/// Reads Fortio's words.
fn read(words: &[String]) -> Result<FortioFlags, String> {
    let mut said = FortioFlags::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix('-') else {
            if said.url.replace(word.clone()).is_some() {
                return Err(format!("{word}: only one URL is allowed, after the flags"));
            }
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (name, given) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        let known = FLAGS.iter().find(|(known, _)| *known == name);
        let Some((name, taken)) = known.copied() else {
            return Err(format!(
                "-{name}: unknown flag of `fortio load`; see `voile load --help`"
            ));
        };
        if let FlagHandling::Refused(instead) = taken {
            return Err(format!("-{name}: {instead}"));
        }
        if let FlagHandling::Switch | FlagHandling::NoSwitch | FlagHandling::RefusedSwitch(_) =
            taken
        {
            let on = given.as_deref().map_or(Ok(true), |text| match text {
                "true" | "1" | "t" => Ok(true),
                "false" | "0" | "f" => Ok(false),
                _ => Err(format!("-{name}={text}: expected true or false")),
            })?;
            match taken {
                FlagHandling::RefusedSwitch(instead) if on => {
                    return Err(format!("-{name}: {instead}"));
                }
                _ => said.switches.push((name, on)),
            }
            continue;
        }
        let value = given.or_else(|| words.next().cloned());
        let value = value.ok_or_else(|| format!("-{name}: a value is missing"))?;
        match taken {
            // Joins name and value, so that our parser does not take the value for a flag.
            FlagHandling::As(ours) => said.words.push(format!("{ours}={value}")),
            _ => said.values.push((name, value)),
        }
    }
    Ok(said)
}

/// Fortio's arguments in terms of `voile load`.
#[derive(Debug)]
struct TranslatedOptions {
    /// The words of `voile load`.
    words: Vec<String>,
    /// Format of the result file.
    form: FortioForm,
    /// Notes on flags that mean less here.
    notes: Vec<String>,
}

fn ours(words: &[String], stem: &str) -> Result<TranslatedOptions, String> {
    let said = read(words)?;
    let mut notes = Vec::new();
    let mut out = said.words.clone();
    let mut say = |word: &str| out.push(word.to_owned());
    let arrival = if said.on("uniform") {
        "uniform"
    } else {
        "fortio"
    };
    say(&format!("--arrival={arrival}"));
    if said.on("nocatchup") {
        notes.push("-nocatchup is ignored: due requests are always sent; their latency counts from when they were due".to_owned());
    }
    for word in pace(&said)? {
        say(&word);
    }
    let url = url(&said)?;
    for word in manner(&said, &url)?.into_iter().chain(payload(&said)?) {
        say(&word);
    }
    if has_uuid(&said, &url)? {
        say("--uuids");
    }
    let file = said.value("json").map(str::to_owned).or_else(|| {
        let folder = said.value("data-dir").unwrap_or(".");
        said.on("a").then(|| format!("{folder}/{stem}.json"))
    });
    if let Some(file) = file {
        say("--format=fortio");
        if file != "-" {
            say(&format!("--out={file}"));
        }
    }
    say(&url);
    Ok(TranslatedOptions {
        words: out,
        form: form(&said)?,
        notes,
    })
}

/// Arguments for connections and for the end of the run.
fn manner(said: &FortioFlags, url: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut say = |word: String| words.push(word);
    let off = |name: &str| {
        said.switches
            .iter()
            .any(|(known, on)| *known == name && !on)
    };
    let http10 = said.on("http1.0");
    if http10 {
        say("--protocol=http1.0".to_owned());
    } else if off("keepalive") {
        say("--no-keepalive".to_owned());
    }
    if said.on("k") || said.on("https-insecure") {
        say("--insecure".to_owned());
    }
    if said.on("allow-initial-errors") {
        say("--give-up=0".to_owned());
    }
    if said.on("compression") {
        say("--header=Accept-Encoding: gzip".to_owned());
    }
    if let Some(user) = said.value("user") {
        say(format!("--header={}", voile_load::options::basic(user)));
    }
    let patience = if url.starts_with("udp://") {
        "udp-timeout"
    } else {
        "timeout"
    };
    if let Some(timeout) = said.value(patience) {
        say(format!("--timeout={timeout}"));
    }
    if let Some(status) = said.value("abort-on") {
        let status = if status == "-1" { "none" } else { status };
        say(format!("--abort=status={status}"));
    }
    if let Some(threads) = said.number("gomaxprocs")?.filter(|threads| *threads >= 1.0) {
        let connections = said.connections();
        say(format!("--threads={}", threads.min(connections)));
    }
    if let Some(method) = said.value("dns-method").filter(|method| *method != "first") {
        return Err(format!(
            "-dns-method {method}: a name is resolved once, to one address; `voile load --target` supports several"
        ));
    }
    Ok(words)
}

/// Arguments for the body and headers of each request.
fn payload(said: &FortioFlags) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut say = |word: String| words.push(word);
    if let Some(kind) = said.value("content-type") {
        say(format!("--header=Content-Type: {kind}"));
        if !said.words.iter().any(|word| word.starts_with("--method=")) {
            say("--method=POST".to_owned());
        }
    }
    let size = said.number("payload-size")?.filter(|size| *size > 0.0);
    let delay = said.value("grpc-ping-delay");
    if let Some(service) = said.value("healthservice").filter(|name| !name.is_empty()) {
        if !said.on("grpc") || said.on("ping") {
            return Err("-healthservice: requires -grpc, without -ping".to_owned());
        }
        say(format!(
            "--data={}",
            serde_json::json!({"service": service})
        ));
    } else if let Some(delay) = delay {
        if !said.on("ping") {
            return Err("-grpc-ping-delay: requires -grpc -ping".to_owned());
        }
        let nanoseconds = voile_load::parse_duration(delay)?.as_nanos().to_string();
        let text = match (size, said.value("payload-file"), said.value("payload")) {
            (Some(size), ..) => String::from_utf8(pattern(size as usize)).unwrap_or_default(),
            (_, Some(path), _) => std::fs::read_to_string(path)
                .map_err(|error| format!("-payload-file {path}: {error}"))?,
            (.., text) => text.unwrap_or_default().to_owned(),
        };
        let message = serde_json::json!({"payload": text, "delayNanos": nanoseconds});
        say(format!("--data={message}"));
    } else if let Some(size) = size {
        say(format!("--payload-size={size}"));
    } else if let Some(path) = said.value("payload-file") {
        say(format!("--data=@{path}"));
    } else if let Some(text) = said.value("payload") {
        if text.starts_with('@') {
            return Err(
                "-payload: a value that begins with @ would name a file; use -payload-file"
                    .to_owned(),
            );
        }
        say(format!("--data={text}"));
    } else if said.value("grpc-method").is_some() {
        // An empty message; what the method takes is asked of the server.
        say("--data={}".to_owned());
    }
    Ok(words)
}

/// Returns true if URL or payload ask for another UUID in each request, which Fortio does over
/// HTTP.
fn has_uuid(said: &FortioFlags, url: &str) -> Result<bool, String> {
    let payload = match (said.value("payload-file"), said.value("payload")) {
        (Some(path), _) => std::fs::read(path).unwrap_or_default(),
        (None, text) => text.unwrap_or_default().into(),
    };
    let asked = url.contains(UUID) || String::from_utf8_lossy(&payload).contains(UUID);
    match url.split_once("://") {
        Some(("h2" | "h2c", _)) if asked => {
            Err(format!("{UUID}: supported over HTTP/1 only; remove -h2"))
        }
        Some(("http" | "https", _)) => Ok(asked),
        _ => Ok(false),
    }
}

/// Format of Fortio's result file.
fn form(said: &FortioFlags) -> Result<FortioForm, String> {
    let mut form = FortioForm {
        labels: said.value("labels").unwrap_or_default().to_owned(),
        run_id: said.number("runid")?.unwrap_or_default() as i64,
        exactly: said.number("n")?.unwrap_or_default().max(0.0) as u64,
        ..FortioForm::default()
    };
    if let Some(list) = said.value("p") {
        let each = list.split(',').map(|text| {
            let percent = text.trim().parse::<f64>().ok();
            percent
                .filter(|percent| (0.0..=100.0).contains(percent))
                .ok_or_else(|| format!("-p {text}: expected percentiles such as 50,99.9"))
        });
        form.percentiles = each.collect::<Result<_, _>>()?;
    }
    if let Some(seconds) = said.number("r")? {
        if seconds <= 0.0 {
            return Err(format!("-r {seconds}: expected more than 0 seconds"));
        }
        // The resolution is at least 1 µs: our histogram is not finer.
        form.resolution_us = ((seconds * 1e6).round() as u64).max(1);
    }
    if let Some(offset) = said.value("offset") {
        form.offset_us = voile_load::parse_duration(offset)?.as_micros() as u64;
    }
    Ok(form)
}

/// Rate and length of the run, as our options have them. Fortio's are 8 a second for 5 s, and 0 is "until Ctrl-C".
fn pace(said: &FortioFlags) -> Result<Vec<String>, String> {
    let mut rate = said.number("qps")?.unwrap_or(8.0).max(0.0);
    let duration = said.value("t").unwrap_or("5s");
    let count = said.number("n")?.filter(|count| *count > 0.0);
    let length = match count {
        None => format!("--duration={duration}"),
        Some(count) if said.on("calc-qps") => {
            let span = voile_load::parse_duration(duration)?.as_secs_f64();
            if span <= 0.0 {
                return Err("-calc-qps: needs a time (-t) above 0".to_owned());
            }
            rate = count / span;
            format!("--duration={duration}")
        }
        Some(count) => format!("--requests={count}"),
    };
    Ok(vec![format!("--rate={rate}"), length])
}

/// The URL with the scheme that the flags ask for.
fn url(said: &FortioFlags) -> Result<String, String> {
    let url = said.url.as_deref().ok_or("a URL is missing")?;
    let swapped = |from: &str, to: &str| url.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    if said.on("grpc") {
        let bare = swapped("https://", "grpcs://").or_else(|| swapped("http://", "grpc://"));
        let bare = bare.unwrap_or_else(|| format!("grpc://{url}"));
        let named = said.value("grpc-method").filter(|name| !name.is_empty());
        if named.is_some() && (said.on("ping") || said.value("healthservice").is_some()) {
            return Err("-grpc-method: not allowed with -ping or -healthservice".to_owned());
        }
        let named = named.map(|name| format!("/{}", name.trim_start_matches('/')));
        let method = if let Some(named) = &named {
            named
        } else if said.on("ping") {
            "/fgrpc.PingServer/Ping"
        } else if said.value("healthservice").is_some() {
            "/grpc.health.v1.Health/Check"
        } else {
            ""
        };
        return Ok(bare.trim_end_matches('/').to_owned() + method);
    }
    if said.on("ping") {
        return Err("-ping: requires -grpc".to_owned());
    }
    if said.value("grpc-method").is_some() {
        return Err("-grpc-method: requires -grpc".to_owned());
    }
    if said.on("h2") {
        let other = swapped("https://", "h2://").or_else(|| swapped("http://", "h2c://"));
        return other.ok_or_else(|| format!("{url}: -h2 requires http:// or https://"));
    }
    Ok(url.to_owned())
}

pub(crate) fn run(args: FortioArgs) -> ExitCode {
    let words = match args.words.split_first() {
        Some((first, rest)) if first == "load" => rest,
        _ => {
            eprintln!(
                "voile fortio: only `voile fortio load …` is supported; for Fortio's server use `voile echo`"
            );
            return ExitCode::from(2);
        }
    };
    let stem = file_stem();
    let parsed = ours(words, &stem).and_then(|meant| {
        for note in &meant.notes {
            eprintln!("voile fortio: {note}");
        }
        let name = "voile fortio load".to_owned();
        let words = std::iter::once(name).chain(meant.words);
        let parsed = VoileOptions::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok((parsed.load, meant.form))
    });
    match parsed {
        Ok((args, form)) => load::run_in(&args, &form),
        Err(why) => {
            eprintln!("voile fortio: {why}");
            ExitCode::from(2)
        }
    }
}

/// The name of a file that -a writes: the time in milliseconds since 1970.
fn file_stem() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or_else(
        |_| "0".to_owned(),
        |since| format!("voile-{}", since.as_millis()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fortio's words and ours, or a word of why not.
    const WORDS: &[(&str, Result<&str, &str>)] = &[
        (
            "http://a:1/",
            Ok("--arrival=fortio --rate=8 --duration=5s http://a:1/"),
        ),
        (
            "-qps 100 -c 16 -t 1m30s -uniform -H k:v http://a:1/",
            Ok(
                "--connections=16 --header=k:v --arrival=uniform --rate=100 --duration=1m30s http://a:1/",
            ),
        ),
        (
            "--qps=0 -keepalive=false -k -h2 -json - https://a/",
            Ok(
                "--arrival=fortio --rate=0 --duration=5s --no-keepalive --insecure --format=fortio h2://a/",
            ),
        ),
        (
            "-n 50 -qps 100 -grpc -ping -s 2 -quiet -p 50,99 a:8079",
            Ok(
                "--streams=2 --arrival=fortio --rate=100 --requests=50 grpc://a:8079/fgrpc.PingServer/Ping",
            ),
        ),
        (
            "-calc-qps -n 50 -t 5s -user u:p tcp://a:1",
            Ok(
                "--arrival=fortio --rate=10 --duration=5s --header=Authorization: Basic dTpw tcp://a:1",
            ),
        ),
        (
            "-abort-on 503 -n 5 -qps 0 -gomaxprocs 9 http://a/",
            Ok("--arrival=fortio --rate=0 --requests=5 --abort=status=503 --threads=4 http://a/"),
        ),
        (
            "-t 0 -abort-on -1 -http1.0 -resolve 127.0.0.1 http://a/",
            Ok(
                "--resolve=127.0.0.1 --arrival=fortio --rate=8 --duration=0 --protocol=http1.0 --abort=status=none http://a/",
            ),
        ),
        (
            "-payload-size 10 -timeout 9s -udp-timeout 1s udp://a:1",
            Ok("--arrival=fortio --rate=8 --duration=5s --timeout=1s --payload-size=10 udp://a:1"),
        ),
        (
            "-grpc -ping -grpc-ping-delay 2ms -payload hi a:1",
            Ok(
                "--arrival=fortio --rate=8 --duration=5s --data={\"delayNanos\":\"2000000\",\"payload\":\"hi\"} grpc://a:1/fgrpc.PingServer/Ping",
            ),
        ),
        (
            "-grpc -healthservice x a:1",
            Ok(
                "--arrival=fortio --rate=8 --duration=5s --data={\"service\":\"x\"} grpc://a:1/grpc.health.v1.Health/Check",
            ),
        ),
        (
            "-jitter=false -L=false http://a/",
            Ok("--arrival=fortio --rate=8 --duration=5s http://a/"),
        ),
        (
            "-allow-initial-errors http://a/",
            Ok("--arrival=fortio --rate=8 --duration=5s --give-up=0 http://a/"),
        ),
        (
            "-grpc -grpc-method a.B/C -payload {\"n\":1} h:1",
            Ok("--arrival=fortio --rate=8 --duration=5s --data={\"n\":1} grpc://h:1/a.B/C"),
        ),
        (
            "-grpc -grpc-method a.B/C h:1",
            Ok("--arrival=fortio --rate=8 --duration=5s --data={} grpc://h:1/a.B/C"),
        ),
        ("-grpc-method a.B/C http://a/", Err("requires -grpc")),
        (
            "-grpc -ping -grpc-method a.B/C h:1",
            Err("not allowed with -ping"),
        ),
        (
            "http://a/{uuid}",
            Ok("--arrival=fortio --rate=8 --duration=5s --uuids http://a/{uuid}"),
        ),
        (
            "-payload {uuid} https://a/",
            Ok("--arrival=fortio --rate=8 --duration=5s --data={uuid} --uuids https://a/"),
        ),
        ("-h2 http://a/{uuid}", Err("HTTP/1 only")),
        ("-jitter http://a/", Err("--arrival poisson")),
        ("-unix-socket /x http://a/", Err("-unix-socket")),
        ("-http-port 1 http://a/", Err("voile echo")),
        ("-dns-method rr http://a/", Err("-dns-method rr")),
        ("-p 101 http://a/", Err("-p 101")),
        ("-wat http://a/", Err("-wat")),
        ("-qps many http://a/", Err("not a number")),
        ("-uniform=maybe http://a/", Err("true or false")),
        ("-c", Err("a value is missing")),
        ("http://a/ http://b/", Err("one URL")),
        ("-c 4", Err("a URL is missing")),
    ];

    #[test]
    fn fortios_words_are_put_into_ours() {
        for (theirs, wanted) in WORDS {
            let words: Vec<String> = theirs.split(' ').map(str::to_owned).collect();
            let found = ours(&words, "now").map(|meant| meant.words.join(" "));
            match (&found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{theirs}"),
                (Err(why), Err(word)) => assert!(why.contains(word), "{theirs}: {why}"),
                _ => panic!("{theirs}: {found:?}"),
            }
        }
    }
}
