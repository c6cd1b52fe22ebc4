//! `docs/results.md` is written from the committed records, so it cannot say anything else. A check draws it from the records
//! that it names; `VOILE_BLESS=1` writes it anew from the newest of each experiment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use voile_report::claims;
use voile_report::plots::{Plot, sections};
use voile_report::record::{Record, Summary};
use voile_report::words::{bytes, duration, interval, ratio};

/// A part of the page: the experiment, its heading, its question, and the plots that answer it, by the beginnings of their
/// titles.
struct Part {
    experiment: &'static str,
    heading: &'static str,
    asks: &'static str,
    plots: &'static [&'static str],
}

/// Interpretations of records, written by people. An interpretation belongs to one record, so it is left out if a newer record
/// stands in that one's place.
const READINGS: [(&str, &str); 5] = [
    (
        "2026-11-23-best-practices",
        "In the article's situation, with all connections sending at once, two of Voile's sidecars add 0.58 ms at the median over 16 connections and 1.6 ms over 64, Envoy's \
         2.3 and 7.6 ms; published were 3 and 7 ms, of Istio 1.2 on the machines of 2019. So Envoy's hold what was published for 64 connections, at p99 too, and stay below it for 16. The shape is the article's: what is added grows with the number of \
         connections, and most of it is waiting for the requests that were sent in the same instant; a request costs less CPU the more are sent together, 59 µs in each of Voile's sidecars over 2 connections and 29 over 64 (Envoy's 210 and 110). \
         With a question to an authorizer and an entry of the access log over gRPC for every request, which is what Mixer was, Voile's add 3.2 ms and Envoy's 9.4 where 12 were published. CPU is a thirteenth of what was published for Voile and \
         a quarter for Envoy: 0.5 of a CPU at 1000 requests a second was telemetry in the proxy and beside it, and an older processor. Memory: 14 MiB against 72. That a mesh of a thousand services costs a request nothing cannot be told below the \
         100 µs that are judged (−29 µs [−317–172]); its sidecars hold 11 MiB, less than those of the small mesh, and why was not looked for.",
    ),
    (
        "2026-11-23-protocol-detection",
        "Detection costs nothing that could be seen: over 21 loads CPU per sidecar is 0.93 to 1.12 of that with declared ports and the median 0.88 to 1.11, within rounds. Of 63 ratios six can be told from 1, to either side, where three are chance; \
         Envoy's, over six loads, are 0.95 to 1.05 and 0.89 to 1.07, and none can be told. In plaintext with 64 connections, where the article found about 1 ms, the difference at the median \
         is −13 µs [−232–124]: the claim does not hold here, because the first bytes are looked at once for each connection and the connections stay open. What cannot be \
         told is whether the gap under mutual TLS is below the 3 % that we call trivial: all connections sending at once make medians that differ by more than that between \
         rounds. `speed-detection`, with even arrival, is the finer record: 0.99 of the CPU and of the median, within 9 and 4 %.",
    ),
    (
        "2026-11-22-security-policies-quick",
        "Voile's sidecars use the same CPU whatever the number of rules: 0.94 to 1.03 of it with a thousand paths, addresses, principals or policies and with ten thousand paths, within rounds; Envoy's \
         server sidecar, given the same resources as RBAC filters, uses 1.2 to 1.7 times as much with a thousand addresses, paths or policies (the interval reaches below 1 for paths), 6 times with a thousand principals and with ten thousand paths. \
         Verdicts were checked in every slice, refusals included. Rules that ask tokens: a thousand requestPrincipals cost 1.48 [1.19–1.75] of a thousand paths, because a token is looked at; \
         with a thousand issuers a request costs 68 µs of CPU in each of Voile's sidecars, 64 with one, and 10.1 ms in each of Envoy's, which asks them one after the other, so all are asked for 25 requests a second there. \
         That what 1000 principals cost is less than what 10 do does not hold for Envoy here. Ten thousand path rules take, of what a process asked for itself, \
         49.5 MiB in Envoy's server sidecar and 1.3 in Voile's. All connections send at once, so the medians are mostly waiting, and differences below half a millisecond cannot be told.",
    ),
    (
        "2026-11-23-data-planes",
        "Every lighter data plane is ahead of Envoy at the median and at p90, at each number of connections, and at p99 wherever it can be told. Voile's two sidecars add 189 to 213 µs \
         at the median whether 2 or 64 connections carry the 1000 requests, nginx's 230 to 286, HAProxy's 229 to 294, Envoy's 485 to 629. A request costs 84 to 91 µs of CPU in \
         each of Voile's sidecars, 107 to 121 in nginx's, 118 to 140 in HAProxy's, 245 to 285 in Envoy's: each request comes by itself here, which costs twice and more of what one costs that comes with fifteen others \
         (`best-practices`, on the same machine in the same hour). A sidecar holds 13, 41, 17 and 67 MiB. So the claim made for Pipy \
         holds here for three others; being further ahead at high concurrency does not show, with requests spread evenly nothing waits. What a sidecar that was just started costs is on the cells that begin cold.",
    ),
    (
        "2026-11-23-routing-quick-2",
        "A route is found as cheaply among ten thousand as alone: a request costs Voile's client sidecar 0.90 [0.79–1.21] of what one route costs with ten thousand exact paths, 0.96 [0.76–1.16] with ten thousand prefixes and 0.98 [0.94–1.11] with a thousand \
         routes by header. That it is less than 1 µs more, which is asked, cannot be told end to end: rounds differ by more than that, and instruction counts say what is below the noise \
         (docs/decisions/0026). Envoy's, with the same routes in its table, takes 2.45 [1.98–2.79] and 2.53 [1.81–2.87] times as much, some 300 µs more a request, when the last of them is hit, and no more when the first is: it asks them in turn. \
         With ten thousand routes Voile's sidecar holds 33 to 36 MiB where it holds 12 with one, Envoy's 85 to 86 where it holds 67. Of ten endpoints of which one takes 50 ms and the others 5, \
         Voile's default balancer makes a p99 of 5.4 ms [5.3–7.2]; Envoy's round robin and its least request make 50, since a slow one is asked as long as it has little in flight.",
    ),
];

const SWEPT: &[&str] = &["p50: ", "p99: ", "cores of the client", "RSS of the client"];

const PARTS: [Part; 19] = [
    Part {
        experiment: "speed-mtls",
        heading: "Two sidecars over mutual TLS, beside nginx and HAProxy",
        asks: "What does a request cost through two sidecars, from 2 to 64 connections?",
        plots: SWEPT,
    },
    Part {
        experiment: "best-practices",
        heading: "Istio's article of 2019: modes, connections, rate",
        asks: "What do one sidecar and two add, with all connections in phase, and what do they use as the rate rises?",
        plots: SWEPT,
    },
    Part {
        experiment: "protocol-detection",
        heading: "Istio's article of 2020: protocol detection",
        asks: "What does it cost to find out by the first bytes what is spoken?",
        plots: &["p50: ", "p99: "],
    },
    Part {
        experiment: "data-planes",
        heading: "A comparison of data planes, after FSM's of 2023",
        asks: "Which data plane adds least, each sidecar kept to one CPU and 512 MiB?",
        plots: SWEPT,
    },
    Part {
        experiment: "limits",
        heading: "One CPU and 512 MiB for each sidecar",
        asks: "What does each data plane do with what Istio gives a sidecar?",
        plots: &["requests per second: both"],
    },
    Part {
        experiment: "netns",
        heading: "Network namespaces and transparent capture",
        asks: "What changes when nobody is told of a proxy?",
        plots: &[],
    },
    Part {
        experiment: "node",
        heading: "Two node proxies",
        asks: "What does encryption and identity between nodes cost, without sidecars, beside ztunnel?",
        plots: &["requests per second: node"],
    },
    Part {
        experiment: "node-bulk",
        heading: "Bytes in bulk through two node proxies",
        asks: "How much goes through tunnels for a core of the proxies?",
        plots: &["throughput per core"],
    },
    Part {
        experiment: "node-waypoint",
        heading: "A waypoint between two node proxies",
        asks: "What does it cost to have requests read on their way, and what does Envoy's way of doing it?",
        plots: &[],
    },
    Part {
        experiment: "security-policies",
        heading: "Istio's article of 2020: security policies",
        asks: "What does mutual TLS cost beside plaintext, and what do rules cost by their number?",
        plots: &["cores of the server", "RSS of the server"],
    },
    Part {
        experiment: "policy-cost",
        heading: "A policy of a thousand rules",
        asks: "What do a thousand mixed rules add to the latency of requests that the last one lets in, or that none is for?",
        plots: &[],
    },
    Part {
        experiment: "routing",
        heading: "Routes by their number, and a slow endpoint",
        asks: "What do ten thousand routes of one host cost a request, and what does one slow endpoint among ten do to the tail?",
        plots: &["cores of the client", "RSS of the client"],
    },
    Part {
        experiment: "performance-and-scalability",
        heading: "Istio's documentation: performance and scalability, as far as it is built",
        asks: "What do sidecars add and use from 500 to 1500 requests per second?",
        plots: SWEPT,
    },
    Part {
        experiment: "speed-saturation",
        heading: "As many requests as go",
        asks: "How many requests go through two sidecars with mutual TLS?",
        plots: &["requests per second: both"],
    },
    Part {
        experiment: "speed-grpc",
        heading: "gRPC",
        asks: "What does a unary call cost?",
        plots: &["both: two sidecars"],
    },
    Part {
        experiment: "speed-bulk",
        heading: "Bytes in bulk",
        asks: "How fast do bytes go, for each core that the sidecars use?",
        plots: &["throughput per core"],
    },
    Part {
        experiment: "speed-telemetry",
        heading: "What telemetry costs",
        asks: "What do Istio's metrics cost, on against off?",
        plots: &[],
    },
    Part {
        experiment: "speed-idle",
        heading: "Doing nothing",
        asks: "What does a sidecar hold and use that is left alone?",
        plots: &["RSS of a sidecar", "CPU of a sidecar"],
    },
    Part {
        experiment: "aa",
        heading: "The noise",
        asks: "One cell measured twice in every round, under two labels: how far apart are the halves?",
        plots: &["voile, both"],
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The records that the page is drawn from, by the experiment's name without `-quick`.
fn chosen(named: Option<&BTreeSet<String>>) -> BTreeMap<String, (String, Record)> {
    let mut chosen: BTreeMap<String, (String, Record)> = BTreeMap::new();
    for folder in super::records::committed() {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !folder.join(voile_lab::RECORD).is_file()
            || named.is_some_and(|named| !named.contains(&name))
        {
            continue;
        }
        let mut record = voile_lab::read(&folder).expect("it is read");
        voile_report::summarise::summarise(&mut record);
        let experiment = record.experiment.name.clone();
        let key = experiment.trim_end_matches("-quick").to_owned();
        // A whole run says more than a quick one; of equals the newer.
        let rank = |record: &Record| {
            let whole = !record.experiment.name.ends_with("-quick");
            (whole, record.experiment.started_at.clone())
        };
        let better = chosen
            .get(&key)
            .is_none_or(|(_, known)| rank(&record) > rank(known));
        if better {
            chosen.insert(key, (name, record));
        }
    }
    chosen
}

fn draw(chosen: &BTreeMap<String, (String, Record)>) -> (String, BTreeMap<String, String>) {
    let mut page = "# What the records say\n\nWritten from the records under [`benchmarks/records`](../benchmarks/records/README.md) by a test \
                    (`VOILE_BLESS=1 cargo test -p voile-lab --test it results`), which fails when page and records differ. Brackets hold 95 % intervals over \
                    rounds. How it is measured: [METHODOLOGY](../benchmarks/METHODOLOGY.md); what may bias it: [BIAS](../benchmarks/BIAS.md).\n\nAbsolute times belong to the \
                    machine and to loopback; ratios within one record travel better.\n"
        .to_owned();
    let mut files = BTreeMap::new();
    for part in &PARTS {
        let _ = write!(page, "\n## {}\n\n{}\n", part.heading, part.asks);
        let Some((folder, record)) = chosen.get(part.experiment) else {
            let _ = writeln!(
                page,
                "\nNo record is committed yet; `voile bench {} --quick` takes one.",
                part.experiment
            );
            continue;
        };
        about(&mut page, folder, record);
        if let Some((_, words)) = READINGS.iter().find(|(of, _)| of == folder) {
            let _ = writeln!(page, "{words}\n");
        }
        for sentence in told(record) {
            let _ = writeln!(page, "- {sentence}");
        }
        cells(&mut page, record);
        published(&mut page, record);
        let drawn = sections(record);
        let wanted = |plot: &&Plot| part.plots.iter().any(|word| plot.title.starts_with(word));
        let mut shown: Vec<&str> = Vec::new();
        for plot in drawn
            .iter()
            .flat_map(|section| &section.plots)
            .filter(wanted)
        {
            if shown.contains(&plot.title.as_str()) {
                continue;
            }
            shown.push(&plot.title);
            let name = format!("{}-{}.svg", part.experiment, plot.id);
            let _ = writeln!(page, "\n![{}](results/{name})", plot.title);
            files.insert(name, voile_report::picture::svg_file(&plot.svg));
        }
    }
    (page, files)
}

fn about(page: &mut String, folder: &str, record: &Record) {
    let (experiment, environment) = (&record.experiment, &record.environment);
    let versions = environment
        .versions
        .iter()
        .filter(|(name, _)| *name != "voile");
    let versions: Vec<String> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let beside = match versions.is_empty() {
        true => String::new(),
        false => format!(", beside {}", versions.join(", ")),
    };
    let _ = writeln!(
        page,
        "\nRecord [`{folder}`](../benchmarks/records/{folder}/report.html) of {}: {} cores of an {}, {} rounds, profile {}{beside}. `{}`\n",
        experiment.started_at.split('T').next().unwrap_or_default(),
        environment.cores,
        environment.cpu,
        experiment.rounds_done,
        environment.profile,
        experiment.command
    );
}

/// The record's findings in words; of a long series of loads only the noise and the valid slices.
fn told(record: &Record) -> Vec<String> {
    let sentences = voile_report::findings::sentences(record);
    let many = sentences.len() > 5;
    let of_all = |sentence: &String| {
        let parts = ["A/A", "slices are valid", "within rounds, over"];
        parts.iter().any(|part| sentence.contains(part))
    };
    sentences
        .into_iter()
        .filter(|sentence| !many || of_all(sentence))
        .collect()
}

/// The heaviest path at the usual load, as a table; saturation and idleness are in their plots.
fn cells(page: &mut String, record: &Record) {
    let usual = |s: &&Summary| {
        s.mode == "both" && s.runs_valid > 0 && s.figures.contains_key("sidecar.cpu_us_per_request")
    };
    let heaviest = record.summary.iter().filter(usual).filter(|s| s.rate > 0.0);
    let Some(load) = heaviest.max_by_key(|s| {
        (
            s.tls,
            s.rate as u32 == 1000,
            s.connections == 16,
            s.connections,
        )
    }) else {
        return;
    };
    let key = load.key();
    let same = |s: &&Summary| s.key().same_but_contestant(&key);
    let _ = write!(
        page,
        "\n{}:\n\n| | p50 | p99 | added p50 | CPU per request and sidecar | RSS per sidecar | CPU, Voile's divided by it |\n|---|---|---|---|---|---|---|\n",
        voile_report::words::title(&key)
    );
    let ours = record
        .summary
        .iter()
        .filter(same)
        .find(|s| s.contestant == "voile");
    for summary in record
        .summary
        .iter()
        .filter(same)
        .filter(|s| s.runs_valid > 0)
    {
        let figure = |name: &str, show: fn(f64) -> String| {
            summary
                .figures
                .get(name)
                .map_or_else(|| "–".to_owned(), |found| interval(found, show))
        };
        let beside = ours.and_then(|ours| {
            ours.ratios
                .get(&summary.contestant)?
                .get("sidecar.cpu_us_per_request")
        });
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            summary.contestant,
            figure("latency_us.p50", duration),
            figure("latency_us.p99", duration),
            figure("added_us.p50", duration),
            figure("sidecar.cpu_us_per_request", duration),
            figure("sidecar.rss_bytes", bytes),
            beside.map_or_else(|| "–".to_owned(), |found| interval(found, ratio))
        );
    }
}

fn published(page: &mut String, record: &Record) {
    let judged = claims::judge(record);
    if judged.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "\n{} The figures published are of other machines.\n\n| published | whose | seen here | verdict |\n|---|---|---|---|\n",
        claims::count(&judged)
    );
    for (claim, measured) in &judged {
        for (at, one) in measured.iter().enumerate() {
            let claim = if at == 0 { claim.claim.as_str() } else { "" };
            let seen = match one.load.is_empty() {
                true => one.seen.clone(),
                false => format!("{} ({})", one.seen, one.load),
            };
            let _ = writeln!(
                page,
                "| {claim} | {} | {seen} | {} |",
                one.contestant,
                one.verdict.in_words()
            );
        }
    }
}

#[test]
fn the_page_of_results_says_what_the_records_say() {
    let (page_path, plots) = (root().join("docs/results.md"), root().join("docs/results"));
    if std::env::var_os("VOILE_BLESS").is_some() {
        let (page, files) = draw(&chosen(None));
        fs::create_dir_all(&plots).expect("a folder");
        for entry in fs::read_dir(&plots).expect("the folder").flatten() {
            fs::remove_file(entry.path()).expect("an old plot");
        }
        fs::write(&page_path, page).expect("written");
        for (name, file) in files {
            fs::write(plots.join(name), file).expect("written");
        }
        return;
    }
    let committed = fs::read_to_string(&page_path).expect("docs/results.md");
    let named: BTreeSet<String> = committed
        .split("](../benchmarks/records/")
        .skip(1)
        .filter_map(|rest| rest.split('/').next())
        .map(str::to_owned)
        .collect();
    let (page, files) = draw(&chosen(Some(&named)));
    let difference = page
        .lines()
        .zip(committed.lines())
        .find(|(drawn, shown)| drawn != shown);
    assert!(
        page == committed,
        "docs/results.md differs from its records (VOILE_BLESS=1 writes it): {difference:?}"
    );
    for (name, file) in &files {
        let shown = fs::read_to_string(plots.join(name)).unwrap_or_default();
        assert!(
            shown == *file,
            "docs/results/{name} differs from its record"
        );
    }
    let there = fs::read_dir(&plots).expect("docs/results").count();
    assert_eq!(there, files.len(), "plots that no part of the page shows");
}
