//! `voile fortio load …`: Fortio's words, so that a script changes by one word. They are put into ours and run as `voile load`;
//! what has another meaning here is refused or said, never taken in silence.

use std::process::ExitCode;

use clap::Parser as _;

use super::load;

/// Send load as `fortio load` is told to, by its flags where they mean the same.
///
/// All connections send in phase unless -uniform is given, as Fortio's do; latency counts from when each request was due,
/// which Fortio does not show (docs/reference/load.md). -json and -a write Fortio's JSON.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `load`, then Fortio's flags and the URL.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "load [FLAGS] URL"
    )]
    words: Vec<String>,
}

/// The same, told in our words.
#[derive(Debug, clap::Parser)]
struct Ours {
    #[command(flatten)]
    load: load::Args,
}

/// How a flag of Fortio's is taken.
#[derive(Debug, Clone, Copy)]
enum Taken {
    /// It has a value, and is this option of ours.
    As(&'static str),
    /// It has a value, and is dealt with below.
    Value,
    /// It has none (or `=true`, `=false`), and is dealt with below.
    Switch,
    /// It changes nothing here: with a value, and without.
    Nothing,
    NoSwitch,
}

/// Fortio's flags, as version 1.66 has them. What is missing is refused.
const FLAGS: &[(&str, Taken)] = &[
    ("qps", Taken::Value),
    ("t", Taken::Value),
    ("n", Taken::Value),
    ("c", Taken::As("--connections")),
    ("s", Taken::As("--streams")),
    ("H", Taken::As("--header")),
    ("X", Taken::As("--method")),
    ("payload", Taken::As("--data")),
    ("payload-size", Taken::As("--payload-size")),
    ("payload-file", Taken::Value),
    ("content-type", Taken::Value),
    ("user", Taken::Value),
    ("timeout", Taken::As("--timeout")),
    ("connection-reuse", Taken::As("--connection-reuse")),
    ("cacert", Taken::As("--cacert")),
    ("cert", Taken::As("--cert")),
    ("key", Taken::As("--key")),
    ("labels", Taken::As("--labels")),
    ("json", Taken::Value),
    ("data-dir", Taken::Value),
    ("uniform", Taken::Switch),
    ("nocatchup", Taken::Switch),
    ("keepalive", Taken::Switch),
    ("k", Taken::Switch),
    ("https-insecure", Taken::Switch),
    ("h2", Taken::Switch),
    ("grpc", Taken::Switch),
    ("ping", Taken::Switch),
    ("compression", Taken::Switch),
    ("calc-qps", Taken::Switch),
    ("a", Taken::Switch),
    // Our histogram is finer than any of these, and our percentiles are fixed.
    ("r", Taken::Nothing),
    ("offset", Taken::Nothing),
    ("p", Taken::Nothing),
    ("loglevel", Taken::Nothing),
    ("httpbufferkb", Taken::Nothing),
    ("gomaxprocs", Taken::Nothing),
    ("runid", Taken::Nothing),
    ("quiet", Taken::NoSwitch),
    ("stdclient", Taken::NoSwitch),
    ("log-errors", Taken::NoSwitch),
    ("allow-initial-errors", Taken::NoSwitch),
    ("sequential-warmup", Taken::NoSwitch),
    ("httpccch", Taken::NoSwitch),
    ("no-reresolve", Taken::NoSwitch),
];

/// What was said of the flags that need more than another name.
#[derive(Debug, Default)]
struct Said {
    words: Vec<String>,
    values: Vec<(&'static str, String)>,
    switches: Vec<(&'static str, bool)>,
    url: Option<String>,
}

impl Said {
    fn value(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn on(&self, name: &str) -> bool {
        let found = self.switches.iter().rev().find(|(known, _)| *known == name);
        found.is_some_and(|(_, on)| *on)
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
fn read(words: &[String]) -> Result<Said, String> {
    let mut said = Said::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix('-') else {
            if said.url.replace(word.clone()).is_some() {
                return Err(format!("{word}: one URL is enough; flags stand before it"));
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
                "-{name}: not taken from Fortio; see `voile load --help` for what there is"
            ));
        };
        if let Taken::Switch | Taken::NoSwitch = taken {
            let on = given.as_deref().map_or(Ok(true), |text| match text {
                "true" | "1" | "t" => Ok(true),
                "false" | "0" | "f" => Ok(false),
                _ => Err(format!("-{name}={text}: expected true or false")),
            })?;
            said.switches.push((name, on));
            continue;
        }
        let value = given.or_else(|| words.next().cloned());
        let value = value.ok_or_else(|| format!("-{name}: a value is missing"))?;
        match taken {
            // What our parser must not take for a flag of its own is joined.
            Taken::As(ours) => said.words.push(format!("{ours}={value}")),
            _ => said.values.push((name, value)),
        }
    }
    Ok(said)
}

/// The words of `voile load`, and whether to say something.
fn ours(words: &[String], stem: &str) -> Result<(Vec<String>, Vec<String>), String> {
    let said = read(words)?;
    let mut notes = Vec::new();
    let mut out = said.words.clone();
    let mut say = |word: &str| out.push(word.to_owned());
    say("--arrival");
    say(if said.on("uniform") {
        "uniform"
    } else {
        "fortio"
    });
    if said.on("nocatchup") {
        notes.push("-nocatchup: requests that are due are always sent here; their latency counts from when they were due".to_owned());
    }
    let (rate, duration) = pace(&said)?;
    say(&format!("--rate={rate}"));
    say(&format!("--duration={duration}"));
    if said
        .switches
        .iter()
        .any(|(name, on)| *name == "keepalive" && !on)
    {
        say("--no-keepalive");
    }
    if said.on("k") || said.on("https-insecure") {
        say("--insecure");
    }
    if said.on("compression") {
        say("--header=Accept-Encoding: gzip");
    }
    if let Some(path) = said.value("payload-file") {
        say(&format!("--data=@{path}"));
    }
    if let Some(kind) = said.value("content-type") {
        say(&format!("--header=Content-Type: {kind}"));
        say("--method=POST");
    }
    if let Some(user) = said.value("user") {
        say(&format!("--header={}", voile_load::options::basic(user)));
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
    say(&url(&said)?);
    Ok((out, notes))
}

/// Rate and duration, as our options have them. Fortio's are 8 a second for 5 s.
fn pace(said: &Said) -> Result<(String, String), String> {
    let rate = said.number("qps")?.unwrap_or(8.0).max(0.0);
    let duration = said.value("t").unwrap_or("5s");
    let Some(count) = said.number("n")?.filter(|count| *count > 0.0) else {
        if matches!(duration, "0" | "0s") {
            return Err("-t 0: say how long; Ctrl-C ends a run before that".to_owned());
        }
        return Ok((rate.to_string(), duration.to_owned()));
    };
    if said.on("calc-qps") {
        let span = voile_load::parse_duration(duration)?.as_secs_f64();
        return Ok(((count / span).to_string(), duration.to_owned()));
    }
    if rate <= 0.0 {
        return Err("-n: needs a rate (-qps) or a time (-calc-qps with -t): here a run is so many requests a second for so long".to_owned());
    }
    let nanoseconds = (count / rate * 1e9).ceil();
    Ok((rate.to_string(), format!("{nanoseconds}ns")))
}

/// The URL with the scheme that the flags ask for.
fn url(said: &Said) -> Result<String, String> {
    let url = said.url.as_deref().ok_or("a URL is missing")?;
    let swapped = |from: &str, to: &str| url.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    if said.on("grpc") {
        let bare = swapped("https://", "grpcs://").or_else(|| swapped("http://", "grpc://"));
        let bare = bare.unwrap_or_else(|| format!("grpc://{url}"));
        let method = if said.on("ping") {
            "/fgrpc.PingServer/Ping"
        } else {
            ""
        };
        return Ok(bare.trim_end_matches('/').to_owned() + method);
    }
    if said.on("ping") {
        return Err("-ping: goes with -grpc".to_owned());
    }
    if url.starts_with("udp://") {
        return Err(format!("{url}: UDP is not spoken"));
    }
    if said.on("h2") {
        let other = swapped("https://", "h2://").or_else(|| swapped("http://", "h2c://"));
        return other.ok_or_else(|| format!("{url}: -h2 goes with http:// and https://"));
    }
    Ok(url.to_owned())
}

pub(crate) fn run(args: Args) -> ExitCode {
    let words = match args.words.split_first() {
        Some((first, rest)) if first == "load" => rest,
        _ => {
            eprintln!(
                "voile fortio: only `voile fortio load …` is taken; `voile echo` stands for its server"
            );
            return ExitCode::from(2);
        }
    };
    let stem = file_stem();
    let parsed = ours(words, &stem).and_then(|(words, notes)| {
        for note in notes {
            eprintln!("voile fortio: {note}");
        }
        let name = "voile fortio load".to_owned();
        Ours::try_parse_from(std::iter::once(name).chain(words)).map_err(|error| error.to_string())
    });
    match parsed {
        Ok(ours) => load::run(ours.load),
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

    #[test]
    fn fortios_words_are_put_into_ours() {
        for (theirs, wanted) in [
            (
                "http://a:1/",
                Ok("--arrival fortio --rate=8 --duration=5s http://a:1/"),
            ),
            (
                "-qps 100 -c 16 -t 1m30s -uniform -H k:v http://a:1/",
                Ok(
                    "--connections=16 --header=k:v --arrival uniform --rate=100 --duration=1m30s http://a:1/",
                ),
            ),
            (
                "--qps=0 -keepalive=false -k -h2 -json - https://a/",
                Ok(
                    "--arrival fortio --rate=0 --duration=5s --no-keepalive --insecure --format=fortio h2://a/",
                ),
            ),
            (
                "-n 50 -qps 100 -grpc -ping -s 2 -quiet -p 50,99 a:8079",
                Ok(
                    "--streams=2 --arrival fortio --rate=100 --duration=500000000ns grpc://a:8079/fgrpc.PingServer/Ping",
                ),
            ),
            (
                "-calc-qps -n 50 -t 5s -user u:p tcp://a:1",
                Ok(
                    "--arrival fortio --rate=10 --duration=5s --header=Authorization: Basic dTpw tcp://a:1",
                ),
            ),
            ("-abort-on 503 http://a/", Err("-abort-on")),
            ("-n 5 -qps 0 http://a/", Err("-n")),
            ("-t 0 http://a/", Err("-t 0")),
            ("-qps many http://a/", Err("not a number")),
            ("-uniform=maybe http://a/", Err("true or false")),
            ("-c", Err("a value is missing")),
            ("http://a/ http://b/", Err("one URL")),
            ("-c 4", Err("a URL is missing")),
            ("udp://a:1", Err("UDP")),
        ] {
            let words: Vec<String> = theirs.split(' ').map(str::to_owned).collect();
            let found = ours(&words, "now").map(|(words, _)| words.join(" "));
            match (&found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{theirs}"),
                (Err(why), Err(word)) => assert!(why.contains(word), "{theirs}: {why}"),
                _ => panic!("{theirs}: {found:?}"),
            }
        }
    }
}
