//! Writes the profile: a request's time and CPU by part, for the profiled cells.

use std::fmt::Write as _;

use crate::plots::plot::brief;
use crate::profile::Profile;
use crate::record::Record;
use crate::svg::flame;
use crate::words::{duration, escape};

pub(super) fn write(page: &mut String, record: &Record) {
    if record.profiles.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Profile</h2>\n<p class=\"soft\">Measured in extra slices after all rounds, because profiling has a cost; no figure above includes it. A capture times each hop from the last segment of a request to the first segment of its answer; a process is charged with the time of its hop minus the time of the next one. The parts add up to the median latency from sending.</p>\n",
    );
    for profile in &record.profiles {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&brief(&profile.cell)));
        for missing in &profile.missing {
            let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(missing));
        }
        hops(page, profile);
        syscalls(page, profile);
        for one in &profile.flames {
            let title = format!("{}: {} samples of CPU time", one.role, one.samples);
            let _ = writeln!(
                page,
                "<details><summary>Flame graph of {}</summary><div class=\"scroll\">{}</div></details>",
                escape(&title),
                flame(&title, one)
            );
        }
    }
}

fn hops(page: &mut String, profile: &Profile) {
    if profile.hops.is_empty() {
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>hop to</th><th>p50</th><th>p90</th><th>p99</th><th>its own share of p50</th>\
         <th>wire bytes/request</th><th>packets/request</th></tr></thead><tbody>\n",
    );
    let shares = profile.shares();
    let time = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), duration);
    if let (Some(share), Some(whole)) = (shares.first(), profile.service_p50_us) {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>–</td><td>–</td><td>{}</td><td>–</td><td>–</td></tr>",
            escape(&share.of),
            duration(whole),
            duration(share.us)
        );
    }
    let mut own = shares.iter().skip(1);
    for hop in &profile.hops {
        let share = hop.p50_us.and_then(|_| own.next());
        let share = share.map(|share| match share.of.split_once(" and ") {
            Some((_, others)) => format!("{} with the {others}", duration(share.us)),
            None => duration(share.us),
        });
        let _ = writeln!(
            page,
            "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.1}</td></tr>",
            escape(&hop.to),
            if hop.tls { " (mTLS)" } else { "" },
            time(hop.p50_us),
            time(hop.p90_us),
            time(hop.p99_us),
            escape(share.as_deref().unwrap_or("–")),
            hop.wire_bytes_per_request,
            hop.packets_per_request
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn syscalls(page: &mut String, profile: &Profile) {
    if profile.syscalls.is_empty() {
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>process</th><th>system calls/request</th><th class=\"t\">of these</th></tr></thead><tbody>\n",
    );
    for (role, calls) in &profile.syscalls {
        let mut names: Vec<(&String, &f64)> = calls.by_name.iter().collect();
        names.sort_by(|a, b| b.1.total_cmp(a.1));
        let names: Vec<String> = names
            .iter()
            .map(|(name, each)| format!("{name} {each:.2}"))
            .collect();
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{:.2}</td><td class=\"t soft\">{}</td></tr>",
            escape(role),
            calls.per_request,
            escape(&names.join(", "))
        );
    }
    page.push_str("</tbody></table></div>\n");
}
