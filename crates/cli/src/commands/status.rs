//! `voile status`: every proxy of a control plane, or of several that serve one mesh, and whether it has what it should.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::monitoring::{AllMonitoring, short, table, word};

/// Say of every connected proxy whether it is in sync, how late it is, and how long its certificate lasts.
///
/// SYNC is `yes` when it has acknowledged all that it was sent, `no` with how long it has not, and `refuses` with the types
/// of which it refused something last (`--json` has its words). CHANGES are those that are in force there, LAST and SLOWEST the
/// time from the change of a document to its acknowledgement. A proxy may have several streams while it reconnects.
///
/// With `--monitoring` more than once these are several control planes of one mesh: each has a line, each proxy names the one
/// that serves it, and `--json` has the pages by address.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when all are in sync, 1 when one is not or control planes differ in their version, 2 when a control plane cannot be asked."
)]
pub(crate) struct Args {
    #[command(flatten)]
    monitoring: AllMonitoring,
    /// The whole page, as JSON.
    #[arg(long)]
    json: bool,
}

/// What a control plane says.
type Page = (SocketAddr, Value);

pub(crate) fn run(args: &Args) -> ExitCode {
    let (mut pages, mut missing) = (Vec::new(), json!({}));
    let each = args.monitoring.each();
    let several = each.len() > 1;
    for (address, monitoring) in each {
        match monitoring.page("/debug/status", Duration::ZERO) {
            Ok(page) => pages.push((address, page)),
            Err(reason) => {
                eprintln!("voile status: {reason}");
                missing[address.to_string()] = json!({ "error": reason });
            }
        }
    }
    match (args.json, pages.as_slice()) {
        (true, [(_, page)]) if !several => println!("{page:#}"),
        (true, pages) if several => {
            let mut all = missing.clone();
            for (address, page) in pages {
                all[address.to_string()] = page.clone();
            }
            println!("{all:#}");
        }
        (false, [(_, first), ..]) => {
            print!("{}", text(&pages, several, now()));
            // They read the same documents.
            print!("{}", groups(first));
            print!("{}", gateway_api(first));
        }
        _ => {}
    }
    match (missing == json!({}), is_well(&pages)) {
        (false, _) => ExitCode::from(2),
        (true, well) => ExitCode::from(u8::from(!well)),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn proxies(page: &Value) -> &[Value] {
    page["proxies"].as_array().map_or(&[], Vec::as_slice)
}

fn behind(page: &Value) -> usize {
    let proxies = proxies(page).iter();
    proxies.filter(|proxy| proxy["synced"] != true).count()
}

/// All proxies are in sync, and all control planes are of one version.
fn is_well(pages: &[Page]) -> bool {
    let alike = pages
        .windows(2)
        .all(|two| two[0].1["version"] == two[1].1["version"]);
    alike && pages.iter().all(|(_, page)| behind(page) == 0)
}

fn text(pages: &[Page], several: bool, now: u64) -> String {
    let mut text = String::new();
    let mut rows = Vec::new();
    for (address, page) in pages {
        if several {
            text += &format!("{address}: ");
        }
        let proxies = proxies(page);
        text += &format!(
            "version {}, {} proxies, {} in sync, {} errors in the configuration\n",
            word(page, "version"),
            proxies.len(),
            proxies.len() - behind(page),
            page["errors"].as_u64().unwrap_or(0),
        );
        rows.extend(proxies.iter().map(|proxy| {
            let mut row = row(proxy, now);
            if several {
                row.push(address.to_string());
            }
            row
        }));
    }
    if rows.is_empty() {
        return text;
    }
    let mut heads = vec![
        "PROXY",
        "IDENTITY",
        "SYNC",
        "VERSION",
        "CHANGES",
        "LAST",
        "SLOWEST",
        "CERTIFICATE",
    ];
    if several {
        heads.push("CONTROL PLANE");
    }
    text += &table(&heads, &rows);
    text
}

/// WorkloadGroups with those who joined, if there are any.
fn groups(page: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for group in list(&page["workload_groups"]) {
        let row = |rest: [&str; 3]| {
            let cells = [word(&group, "name")].into_iter().chain(rest);
            cells.map(str::to_owned).collect::<Vec<_>>()
        };
        let members = list(&group["members"]);
        if members.is_empty() {
            rows.push(row(["-", "-", "-"]));
        }
        for member in &members {
            let health = match (group["probed"] == true, member["healthy"] == true) {
                (false, _) => "not asked",
                (true, true) => "yes",
                (true, false) => "no",
            };
            rows.push(row([word(member, "name"), word(member, "address"), health]));
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!(
            "\n{}",
            table(&["GROUP", "MEMBER", "ADDRESS", "HEALTHY"], &rows)
        ),
    }
}

/// Gateway API's resources with their conditions, if there are any: those that do not hold have their reason.
fn gateway_api(page: &Value) -> String {
    let none = Vec::new();
    let list = |value: &Value| value.as_array().unwrap_or(&none).clone();
    let mut rows = Vec::new();
    for one in list(&page["gateway_api"]) {
        let name = format!("{} {}", word(&one, "kind"), word(&one, "name"));
        let whole = list(&one["conditions"]);
        if !whole.is_empty() {
            rows.push(vec![name.clone(), "-".to_owned(), conditions(&whole)]);
        }
        for part in list(&one["parts"]) {
            let of = conditions(&list(&part["conditions"]));
            rows.push(vec![name.clone(), word(&part, "name").to_owned(), of]);
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["RESOURCE", "OF", "CONDITIONS"], &rows)),
    }
}

/// `Accepted, ResolvedRefs: BackendNotFound`.
fn conditions(all: &[Value]) -> String {
    let shown = all.iter().filter_map(|one| {
        let (kind, reason) = (word(one, "type"), word(one, "reason"));
        // It says that something is wrong when it holds.
        let contrary = kind == "Conflicted";
        match (one["status"] == "True", contrary) {
            (true, false) if reason == kind => Some(kind.to_owned()),
            (false, true) => None,
            _ => Some(format!("{kind}: {reason}")),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn row(proxy: &Value, now: u64) -> Vec<String> {
    let milliseconds = |value: &Value| match value.as_f64() {
        Some(took) => format!("{took:.1}ms"),
        None => "-".to_owned(),
    };
    let propagation = &proxy["propagation"];
    let changes = propagation["changes"].as_u64().unwrap_or(0);
    let name = match word(proxy, "node") {
        "-" => word(proxy, "pod"),
        node => node,
    };
    vec![
        name.to_owned(),
        word(proxy, "identity").to_owned(),
        sync(proxy),
        word(proxy, "version").to_owned(),
        changes.to_string(),
        milliseconds(&propagation["last_ms"]),
        match changes {
            0 => "-".to_owned(),
            _ => milliseconds(&propagation["slowest_ms"]),
        },
        match proxy["certificate_until"].as_u64() {
            None => "-".to_owned(),
            Some(until) if until <= now => "expired".to_owned(),
            Some(until) => format!("{} left", lasting(until - now)),
        },
    ]
}

fn sync(proxy: &Value) -> String {
    let refused: Vec<&str> = proxy["types"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, of)| of["refuses"] == true)
        .map(|(kind, _)| short(kind))
        .collect();
    match proxy["synced"] == true {
        true => "yes".to_owned(),
        false if !refused.is_empty() => format!("refuses {}", refused.join(",")),
        false => format!("no, {}ms", proxy["lag_ms"].as_u64().unwrap_or(0)),
    }
}

/// The two largest units.
fn lasting(seconds: u64) -> String {
    let units = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let said = units.iter().skip_while(|(count, _)| *count == 0).take(2);
    said.map(|(count, unit)| format!("{count}{unit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_line_that_says_what_is_wrong() {
        let types = json!({"type.googleapis.com/istio.workload.Address": {"refuses": true}});
        let proxies = [
            json!({"node": "a~b", "identity": "spiffe://m/ns/n/sa/a", "synced": true, "version": "v1",
                "certificate_until": 7_300, "propagation": {"changes": 2, "last_ms": 3.04, "slowest_ms": 10.0}, "types": {}}),
            json!({"node": "", "pod": "p", "identity": "x", "synced": false, "lag_ms": 12, "version": null,
                "certificate_until": 50, "propagation": {"changes": 0, "last_ms": null, "slowest_ms": 0.0}, "types": {}}),
            json!({"node": "", "pod": null, "identity": "y", "synced": false, "version": null,
                "certificate_until": null, "propagation": {"changes": 0}, "types": types}),
        ];
        let mut page = json!({"version": "v1", "errors": 0, "proxies": proxies});
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(
            text(&[(at(1), page.clone())], false, 100),
            "version v1, 3 proxies, 1 in sync, 0 errors in the configuration\n\
             PROXY  IDENTITY              SYNC             VERSION  CHANGES  LAST   SLOWEST  CERTIFICATE\n\
             a~b    spiffe://m/ns/n/sa/a  yes              v1       2        3.0ms  10.0ms   2h0m left\n\
             p      x                     no, 12ms         -        0        -      -        expired\n\
             -      y                     refuses Address  -        0        -      -        -\n"
        );
        assert!(!is_well(&[(at(1), page.clone())]));
        assert_eq!(groups(&page), "");
        let member =
            |name, healthy| json!({"name": name, "address": "10.0.0.1", "healthy": healthy});
        page["workload_groups"] = json!([
            {"name": "shop/vm", "probed": true, "members": [member("vm-1", true), member("vm-2", false)]},
            {"name": "shop/old", "probed": false, "members": [member("old-1", true)]},
            {"name": "shop/none", "probed": true, "members": []},
        ]);
        assert_eq!(
            groups(&page),
            "\nGROUP      MEMBER  ADDRESS   HEALTHY\n\
             shop/vm    vm-1    10.0.0.1  yes\n\
             shop/vm    vm-2    10.0.0.1  no\n\
             shop/old   old-1   10.0.0.1  not asked\n\
             shop/none  -       -         -\n"
        );
    }
    #[test]
    fn of_several_control_planes_each_has_a_line_and_each_proxy_its_own() {
        let proxy = |node: &str| json!({"node": node, "identity": "x", "synced": true, "version": "v1", "propagation": {}});
        let page = |version: &str, proxies: Value| json!({"version": version, "errors": 0, "proxies": proxies});
        let at = |port: u16, page: Value| (SocketAddr::from(([127, 0, 0, 1], port)), page);
        let both = |other: &str| {
            let one = page("v1", json!([proxy("a"), proxy("b")]));
            [at(1, one), at(2, page(other, json!([proxy("c")])))]
        };
        assert_eq!(
            text(&both("v1"), true, 0),
            "127.0.0.1:1: version v1, 2 proxies, 2 in sync, 0 errors in the configuration\n\
             127.0.0.1:2: version v1, 1 proxies, 1 in sync, 0 errors in the configuration\n\
             PROXY  IDENTITY  SYNC  VERSION  CHANGES  LAST  SLOWEST  CERTIFICATE  CONTROL PLANE\n\
             a      x         yes   v1       0        -     -        -            127.0.0.1:1\n\
             b      x         yes   v1       0        -     -        -            127.0.0.1:1\n\
             c      x         yes   v1       0        -     -        -            127.0.0.1:2\n"
        );
        assert!(is_well(&both("v1")));
        assert!(
            !is_well(&both("v2")),
            "one of them has read what the other has not"
        );
    }
}
