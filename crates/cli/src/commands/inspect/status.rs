//! `voile status`: every proxy of a control plane, or of several that serve one mesh, and whether it has what it should.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::commands::inspect::monitoring::{AllMonitoring, short, table, word};
use crate::commands::values::OutputArgs;

/// Show for every connected proxy whether it is in sync, how late it is, and how long its certificate lasts.
///
/// SYNC is `yes` if the proxy has acknowledged everything that it was sent, `no` with the time since then, and
/// `refuses` with the types of the resources that it refuses; each refused resource follows with the reason. CHANGES
/// counts the changes in force there; LAST and SLOWEST are the times from the change of a document to its
/// acknowledgement. A proxy may have several streams while it reconnects.
///
/// Then follow endpoints that HealthChecks found unhealthy; refused documents, with file and line, and whether an older
/// version serves; limits of stock Envoys and gRPC applications, by name; WorkloadGroups; and Gateway API resources.
///
/// With `--monitoring` more than once these are several control planes of one mesh: each has a line, each proxy names the one
/// that serves it, and `-o json` has the pages by address. With `--kubernetes` these are all pods of a cluster's control plane,
/// by NAMESPACE/POD; their ports are forwarded.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 if all are in sync, 1 if one is not or refuses something, control planes differ in their version or a state folder was lost, 2 if a control plane cannot be reached."
)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    monitoring: AllMonitoring,
    #[command(flatten)]
    output: OutputArgs,
}

/// Name and status page of a control plane.
type Page = (String, Value);

pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    let (mut pages, mut missing) = (Vec::new(), json!({}));
    let asked = match args.monitoring.find() {
        Ok(asked) => asked,
        Err(reason) => {
            eprintln!("voile status: {reason}");
            return ExitCode::from(2);
        }
    };
    // Replicas come and go: the form of the answer does not depend on how many there are.
    let several = asked.each.len() > 1 || args.monitoring.kubernetes();
    for server in asked.each {
        match server.page("/debug/status", Duration::ZERO) {
            Ok(page) => pages.push((server.to_string(), page)),
            Err(reason) => {
                eprintln!("voile status: {reason}");
                missing[server.to_string()] = json!({ "error": reason });
            }
        }
    }
    let json = args.output.is_json();
    match (json, pages.as_slice()) {
        (true, [(_, page)]) if !several => println!("{page:#}"),
        (true, pages) if several => {
            let mut all = missing.clone();
            for (address, page) in pages {
                all[address] = page.clone();
            }
            println!("{all:#}");
        }
        (false, [(_, first), ..]) => {
            if let Some(mesh) = &asked.mesh {
                print!("{}", mesh.text());
            }
            print!("{}", text(&pages, several, now()));
            print!("{}", refusals(&pages));
            print!("{}", unhealthy(&pages));
            print!("{}", documents(&pages));
            print!("{}", limits(&pages));
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

/// All proxies are in sync, all control planes are of one version and their state folders hold their roots.
fn is_well(pages: &[Page]) -> bool {
    let kept = |(_, page): &Page| page["state_lost"].is_null();
    let alike = pages
        .windows(2)
        .all(|two| two[0].1["version"] == two[1].1["version"]);
    alike && pages.iter().all(|page| kept(page) && behind(&page.1) == 0)
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
                row.push(address.clone());
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

/// State folders that were lost, and resources that proxies refuse, with the reason.
fn refusals(pages: &[Page]) -> String {
    let mut text = String::new();
    for (address, page) in pages {
        if let Some(lost) = page["state_lost"].as_str() {
            text += &format!("\nerror: {address}: {lost}\n");
        }
    }
    let refused = |page: &Value| list(&page["in_force"]["refused"]);
    let refused = pages.iter().flat_map(|(_, page)| refused(page));
    let rows = refused.map(|one| {
        let kind = short(word(&one, "type")).to_owned();
        let cells = ["proxy", "resource", "reason"].map(|key| word(&one, key).to_owned());
        let [proxy, resource, reason] = cells;
        vec![proxy, kind, resource, reason]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        text += &format!(
            "\n{}",
            table(&["REFUSED BY", "TYPE", "RESOURCE", "WHY"], &rows)
        );
    }
    text
}

/// Endpoints that HealthChecks found unhealthy, by proxy.
fn unhealthy(pages: &[Page]) -> String {
    let (mut rows, mut more) = (Vec::new(), 0);
    for proxy in pages.iter().flat_map(|(_, page)| proxies(page)) {
        for one in list(&proxy["unhealthy"]) {
            let cells = ["endpoint", "cluster", "workload", "check", "why"];
            let mut row: Vec<String> = cells.map(|key| word(&one, key).to_owned()).into();
            row.insert(4, name(proxy));
            rows.push(row);
        }
        more += proxy["unhealthy_more"].as_u64().unwrap_or(0);
    }
    if rows.is_empty() {
        return String::new();
    }
    let heads = [
        "UNHEALTHY",
        "CALLED",
        "WORKLOAD",
        "CHECK",
        "FOUND BY",
        "WHY",
    ];
    let mut text = format!("\n{}", table(&heads, &rows));
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

/// Name of a proxy: its node id, or else its pod.
/// `NAMESPACE/POD` of a proxy whose node id is as Istio's, `KIND~ADDRESS~POD.NAMESPACE~DOMAIN`; else its node id.
pub(super) fn name(proxy: &Value) -> String {
    let node = match word(proxy, "node") {
        "-" => word(proxy, "pod"),
        node => node,
    };
    let pod = node.split('~').nth(2).and_then(|pod| pod.rsplit_once('.'));
    pod.map_or_else(
        || node.to_owned(),
        |(pod, namespace)| format!("{namespace}/{pod}"),
    )
}

/// Documents that are not in force, or not as they are written, by control plane where they do not all say the same.
fn documents(pages: &[Page]) -> String {
    let mut text = String::new();
    let alike = pages
        .windows(2)
        .all(|two| two[0].1["documents"] == two[1].1["documents"]);
    let said = if alike {
        &pages[..pages.len().min(1)]
    } else {
        pages
    };
    for (address, page) in said {
        let found = &page["documents"];
        let mut lines = String::new();
        if let Some(why) = found["unreadable"].as_str() {
            lines +=
                &format!("the documents cannot be read; the last good version serves: {why}\n");
        }
        let rows = list(&found["refused"]).into_iter().map(|one| {
            let state = match one["serves"] == true {
                true => "serves",
                false => "refused",
            };
            let field = match one["field"].as_str() {
                Some(field) => format!(" (field {field})"),
                None => String::new(),
            };
            let what = format!("{}{field}", word(&one, "message"));
            let [at, code] = ["at", "code"].map(|key| word(&one, key).to_owned());
            vec![at, code, state.to_owned(), what]
        });
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            lines += &table(&["DOCUMENT", "CODE", "STATE", "WHAT"], &rows);
        }
        if let Some(more) = found["more"].as_u64() {
            lines += &format!("and {more} more: `voile analyze` lists all\n");
        }
        for problem in list(&found["problems"]) {
            lines += &format!("not in force: {}\n", problem.as_str().unwrap_or_default());
        }
        if !lines.is_empty() {
            text += "\n";
            if !alike {
                text += &format!("{address}:\n");
            }
            text += &lines;
        }
    }
    text
}

/// Table of limits: settings that have no translation for other programs. An Envoy's row names its workload; gRPC's row
/// names the subject of the limit.
fn limits(pages: &[Page]) -> String {
    let said = pages
        .iter()
        .filter_map(|(_, page)| page["translation_limits"].as_object());
    let each = said.flatten().flat_map(|(of, all)| {
        let row = |limit: Value| vec![of.clone(), limit.as_str().unwrap_or_default().to_owned()];
        list(all).into_iter().map(row)
    });
    // Several control planes may have met the same.
    let rows: BTreeSet<Vec<String>> = each.collect();
    match rows.is_empty() {
        true => String::new(),
        false => {
            let rows: Vec<_> = rows.into_iter().collect();
            format!("\n{}", table(&["NOT TOLD", "LIMIT"], &rows))
        }
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// WorkloadGroups with their members, if there are any.
fn groups(page: &Value) -> String {
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
    vec![
        name(proxy),
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
        let at = |port: u16| format!("127.0.0.1:{port}");
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
    fn who_is_unhealthy_is_a_line_for_each_proxy_that_found_it() {
        let found = |node: &str, workload: Value| {
            json!({"node": node, "unhealthy": [
                {"endpoint": "10.0.0.1:80", "cluster": "c", "check": "shop/ask", "why": "GET / is answered 503", "workload": workload},
            ]})
        };
        let mut last = found("b", Value::Null);
        last["unhealthy_more"] = json!(3);
        let page = json!({"proxies": [found("a", json!("WorkloadEntry shop/vm")), last, json!({"node": "c"})]});
        let at = "127.0.0.1:1".to_owned();
        assert_eq!(
            unhealthy(&[(at.clone(), page)]),
            "\nUNHEALTHY    CALLED  WORKLOAD               CHECK     FOUND BY  WHY\n\
             10.0.0.1:80  c       WorkloadEntry shop/vm  shop/ask  a         GET / is answered 503\n\
             10.0.0.1:80  c       -                      shop/ask  b         GET / is answered 503\n\
             and 3 more\n"
        );
        assert_eq!(unhealthy(&[(at, json!({"proxies": []}))]), "");
    }

    #[test]
    fn documents_that_are_not_in_force_are_told_with_what_serves_and_once_where_all_say_the_same() {
        let at = |port: u16, documents: Value| {
            (
                format!("127.0.0.1:{port}"),
                json!({ "documents": documents }),
            )
        };
        assert_eq!(documents(&[at(1, Value::Null), at(2, Value::Null)]), "");
        let found = json!({
            "refused": [
                {"at": "a.yaml:3:1", "code": "V0104", "message": "0 is no port", "field": "spec.ports[0].port", "serves": false},
                {"at": "a.yaml:1:1", "code": "V0110", "message": "keeping the last good version of b", "serves": true},
            ],
            "more": 2,
            "problems": ["no keys"],
        });
        let lines = "DOCUMENT    CODE   STATE    WHAT\n\
             a.yaml:3:1  V0104  refused  0 is no port (field spec.ports[0].port)\n\
             a.yaml:1:1  V0110  serves   keeping the last good version of b\n\
             and 2 more: `voile analyze` lists all\n\
             not in force: no keys\n";
        let both = [at(1, found.clone()), at(2, found.clone())];
        assert_eq!(documents(&both), format!("\n{lines}"));
        let gone = json!({"unreadable": "no such folder"});
        assert_eq!(
            documents(&[at(1, found), at(2, gone), at(3, Value::Null)]),
            format!(
                "\n127.0.0.1:1:\n{lines}\n127.0.0.1:2:\n\
                 the documents cannot be read; the last good version serves: no such folder\n"
            )
        );
    }

    #[test]
    fn of_several_control_planes_each_has_a_line_and_each_proxy_its_own() {
        let proxy = |node: &str| json!({"node": node, "identity": "x", "synced": true, "version": "v1", "propagation": {}});
        let page = |version: &str, proxies: Value| json!({"version": version, "errors": 0, "proxies": proxies});
        let at = |port: u16, page: Value| (format!("127.0.0.1:{port}"), page);
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
