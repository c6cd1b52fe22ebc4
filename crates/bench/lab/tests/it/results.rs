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

/// A part of the page: the experiment, its heading and subject, and the plots that it shows, by the beginnings of their titles.
struct Part {
    experiment: &'static str,
    heading: &'static str,
    subject: &'static str,
    plots: &'static [&'static str],
}

/// Interpretations of records, written by people. An interpretation belongs to one record, so it is left out if a newer record
/// stands in that one's place.
const READINGS: [(&str, &str); 4] = [
    (
        "2026-11-23-best-practices",
        "The situation is the article's: all connections send at once. Two of Voile's sidecars add 0.58 ms at the median \
         over 16 connections and 1.6 ms over 64. Two of Envoy's add 2.3 and 7.6 ms. The article published 3 and 7 ms, for \
         Istio 1.2 on machines of 2019. Envoy's figures hold for 64 connections, at p99 too, and are lower than published \
         for 16.\n\n\
         The shape is the article's: added latency grows with the number of connections. Most of it is time in a queue \
         behind the requests of the same instant. Requests that are sent together cost less CPU each: 59 µs in each of \
         Voile's sidecars over 2 connections and 29 µs over 64 (Envoy's: 210 and 110 µs).\n\n\
         Mixer asked an authorizer and wrote an access log entry over gRPC for every request. With both, Voile's sidecars \
         add 3.2 ms and Envoy's 9.4 ms; the article published 12 ms. Voile uses a thirteenth of the published CPU and \
         Envoy a quarter. The article's 0.5 CPU at 1000 requests per second includes telemetry in and beside the proxy, \
         on an older processor. A sidecar of Voile's holds 14 MiB and one of Envoy's 72 MiB.\n\n\
         This record cannot show that a mesh of a thousand services adds less than 100 µs to a request (−29 µs \
         [−317–172]). Sidecars of that mesh hold 11 MiB, less than those of the small mesh. The reason is unknown.",
    ),
    (
        "2026-11-23-protocol-detection",
        "Detection has no visible cost. Over 21 loads, within rounds, CPU per sidecar is 0.93 to 1.12 of that with \
         declared ports, and the median 0.88 to 1.11. Of 63 ratios, six differ from 1, in both directions; chance \
         explains three. Envoy's, over six loads, are 0.95 to 1.05 and 0.89 to 1.07, and none differs from 1.\n\n\
         The article found about 1 ms in plaintext with 64 connections. Here the difference at the median is −13 µs \
         [−232–124], so the claim does not hold. Voile looks at the first bytes once for each connection, and the \
         connections stay open. This record cannot show that the difference under mutual TLS is below 3 %, the bound for \
         a trivial cost: with all connections sending at once, medians differ by more between rounds.\n\n\
         `2026-11-21-speed-detection-4` has even arrival and less noise. Under mutual TLS, detection takes 1.04 \
         [0.96–1.11] of the CPU and 1.01 [0.96–1.03] of the median there.",
    ),
    (
        "2026-11-22-security-policies-quick",
        "The number of rules does not change the CPU of Voile's sidecars. Within rounds it is 0.94 to 1.03 of the CPU \
         with few rules, for a thousand paths, addresses, principals or policies and for ten thousand paths. Envoy's \
         server sidecar gets the same resources as RBAC filters. It uses 1.2 to 1.7 times as much CPU with a thousand \
         addresses, paths or policies (for paths the interval reaches below 1), and 6 times as much with a thousand \
         principals or ten thousand paths. Every slice checks the verdicts, refusals included.\n\n\
         A thousand requestPrincipals cost 1.48 [1.19–1.75] of a thousand paths, because the sidecar reads a token. With \
         a thousand issuers a request costs 68 µs of CPU in each of Voile's sidecars, and 64 µs with one issuer. It costs \
         10.1 ms in each of Envoy's, which tries the issuers one after the other; that load is therefore 25 requests per \
         second for all. The claim that 1000 principals cost less than 10 does not hold for Envoy here.\n\n\
         Ten thousand path rules take 49.5 MiB of private memory in Envoy's server sidecar and 1.3 MiB in Voile's. All \
         connections send at once, so the medians are mostly queueing time. Differences below half a millisecond are not \
         visible.",
    ),
    (
        "2026-11-23-data-planes",
        "Each lighter data plane adds less latency than Envoy at the median and at p90, at every number of connections, \
         and at p99 wherever the noise permits a verdict. At the median, two sidecars of Voile's add 189 to 213 µs, \
         whether 2 or 64 connections carry the 1000 requests. Nginx's add 230 to 286 µs, HAProxy's 229 to 294 µs and \
         Envoy's 485 to 629 µs.\n\n\
         A request costs 84 to 91 µs of CPU in each of Voile's sidecars, 107 to 121 µs in nginx's, 118 to 140 µs in \
         HAProxy's and 245 to 285 µs in Envoy's. Each request arrives alone here. It costs more than twice as much as a \
         request that arrives with fifteen others (`best-practices`, same machine and hour). A sidecar holds 13, 41, 17 \
         and 67 MiB.\n\n\
         The claim made for Pipy therefore holds here for three other data planes. A larger lead at high concurrency is \
         not visible: evenly spread requests do not queue. The cells with a cold start show the cost of a sidecar that \
         has just started.",
    ),
];

const SWEPT: &[&str] = &["p50: ", "p99: ", "cores of the client", "RSS of the client"];

const PARTS: [Part; 19] = [
    Part {
        experiment: "speed-mtls",
        heading: "Two sidecars over mutual TLS, beside nginx and HAProxy",
        subject: "Cost of a request through two sidecars, over 2 to 64 connections.",
        plots: SWEPT,
    },
    Part {
        experiment: "best-practices",
        heading: "Istio's article of 2019: modes, connections, rate",
        subject: "Latency that one and two sidecars add with all connections in phase, and their CPU and memory at rising rates.",
        plots: SWEPT,
    },
    Part {
        experiment: "protocol-detection",
        heading: "Istio's article of 2020: protocol detection",
        subject: "Cost of detecting the protocol by a connection's first bytes.",
        plots: &["p50: ", "p99: "],
    },
    Part {
        experiment: "data-planes",
        heading: "A comparison of data planes, after FSM's of 2023",
        subject: "Added latency of each data plane, with one CPU and 512 MiB for each sidecar.",
        plots: SWEPT,
    },
    Part {
        experiment: "limits",
        heading: "One CPU and 512 MiB for each sidecar",
        subject: "Throughput of each data plane with the resources that Istio gives a sidecar.",
        plots: &["requests per second: both"],
    },
    Part {
        experiment: "netns",
        heading: "Network namespaces and transparent capture",
        subject: "Cost of transparent capture, where client and server know of no proxy.",
        plots: &[],
    },
    Part {
        experiment: "node",
        heading: "Two node proxies",
        subject: "Cost of encryption and identity between nodes without sidecars, beside ztunnel.",
        plots: &["requests per second: node"],
    },
    Part {
        experiment: "node-bulk",
        heading: "Bulk throughput of two node proxies",
        subject: "Throughput of the tunnels for each core that the proxies use.",
        plots: &["throughput per core"],
    },
    Part {
        experiment: "node-waypoint",
        heading: "A waypoint between two node proxies",
        subject: "Cost of handling HTTP in a waypoint, beside Envoy in its place.",
        plots: &[],
    },
    Part {
        experiment: "security-policies",
        heading: "Istio's article of 2020: security policies",
        subject: "Cost of mutual TLS beside plaintext, and cost of rules by their number.",
        plots: &["cores of the server", "RSS of the server"],
    },
    Part {
        experiment: "policy-cost",
        heading: "A policy of a thousand rules",
        subject: "Latency that a thousand mixed rules add to requests that the last rule allows, or that no rule matches.",
        plots: &[],
    },
    Part {
        experiment: "routing",
        heading: "Routes by their number, and a slow endpoint",
        subject: "Cost of ten thousand routes of one host, and the effect of one slow endpoint among ten on tail latency.",
        plots: &["cores of the client", "RSS of the client"],
    },
    Part {
        experiment: "performance-and-scalability",
        heading: "Istio's documentation: performance and scalability",
        subject: "Latency that sidecars add, and their CPU and memory, from 500 to 1500 requests per second. The preset covers the parts of the page that Voile implements.",
        plots: SWEPT,
    },
    Part {
        experiment: "speed-saturation",
        heading: "Saturation",
        subject: "Highest request rate through two sidecars with mutual TLS.",
        plots: &["requests per second: both"],
    },
    Part {
        experiment: "speed-grpc",
        heading: "gRPC",
        subject: "Cost of a unary call.",
        plots: &["both: two sidecars"],
    },
    Part {
        experiment: "speed-bulk",
        heading: "Bulk throughput",
        subject: "Throughput for each core that the sidecars use.",
        plots: &["throughput per core"],
    },
    Part {
        experiment: "speed-telemetry",
        heading: "Cost of telemetry",
        subject: "Cost of Istio's metrics, on against off.",
        plots: &[],
    },
    Part {
        experiment: "speed-idle",
        heading: "Idle sidecars",
        subject: "Memory and CPU of a sidecar without traffic.",
        plots: &["RSS of a sidecar", "CPU of a sidecar"],
    },
    Part {
        experiment: "aa",
        heading: "Noise",
        subject: "Difference between two measurements of the same cell, made in every round under two labels.",
        plots: &["voile, both"],
    },
];

/// Columns of the page's prose.
const COLUMNS: usize = 100;

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
        // A whole run says more than a quick one, and a run with peers more than one beside another build; of equals the newer.
        let rank = |record: &Record| {
            let whole = !record.experiment.name.ends_with("-quick");
            let mut terms = record.contestants.iter().flat_map(|c| &c.terms);
            let beside_build = terms.any(|term| term == "another build");
            (whole, !beside_build, record.experiment.started_at.clone())
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
    let mut page = "# Results\n\nA test generates this page from the records under [`benchmarks/records`](../benchmarks/records/README.md). \
                    It fails when page and records differ; `VOILE_BLESS=1 cargo test -p voile-lab --test it results` \
                    writes the page anew. Brackets hold 95 % intervals over rounds. [METHODOLOGY](../benchmarks/METHODOLOGY.md) \
                    describes the measurements and [BIAS](../benchmarks/BIAS.md) their possible bias.\n\nAbsolute times belong to \
                    the machine and to loopback. Ratios within one record travel better.\n"
        .to_owned();
    let mut files = BTreeMap::new();
    for part in &PARTS {
        let _ = write!(page, "\n## {}\n\n{}\n", part.heading, part.subject);
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
    (wrapped(&page), files)
}

/// Wraps paragraphs and list items at [`COLUMNS`]; tables, headings and images stay on one line.
fn wrapped(page: &str) -> String {
    let mut text = String::new();
    for line in page.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut column = 0;
        for word in line.split(' ') {
            let width = word.chars().count();
            let whole = line.starts_with(['|', '#', '!']);
            if column > 0 && column + 1 + width > COLUMNS && !whole {
                text.push('\n');
                text.push_str(indent);
                column = indent.len();
            } else if column > 0 {
                text.push(' ');
                column += 1;
            }
            text.push_str(word);
            column += width;
        }
        text.push('\n');
    }
    text
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
