//! Servers that requests are balanced over: many listeners of one process, and one of another process that takes ten times as
//! long to answer. The tail of latencies, and the capture of a proof, show the balancer's choices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::ports::free_port;
use voile_host::ready::Probe;
use voile_report::record::Check;

use crate::checks::check;
use crate::contestants::contestant::CellRoute;
use crate::machine::instance::{Hop, Instance};
use crate::network::Echo;
use crate::origin_servers::OriginServers;
use crate::packet_capture::HopCapture;
use crate::process::Process;
use crate::shared_processes::{HTTP, Lab};

/// Response time of an endpoint, and of the last endpoint. It is long enough for balancers that count pending requests to see a
/// queue: at 1000 requests per second nine or ten requests are in flight.
const TAKES: &str = "5ms";
const SLOW_TAKES: &str = "50ms";

/// Address of a listener. Each has its own, because workloads of a mesh have one address each.
fn address(at: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 12, 0, at))
}

/// Starts them.
pub(crate) fn serve(
    lab: &Lab<'_>,
    number: u32,
    servers: &mut Vec<Process>,
) -> Result<OriginServers, String> {
    if lab.far.is_some() {
        return Err("generated endpoints are measured on one machine only".to_owned());
    }
    let number = u8::try_from(number).map_err(|_| format!("{number} endpoints are too many"))?;
    let one =
        |at| free_port(address(at)).map_err(|e| format!("cannot get a port for an endpoint: {e}"));
    let endpoints: Vec<SocketAddr> = (1..=number).map(one).collect::<Result<_, _>>()?;
    let (slow, quick) = endpoints
        .split_last()
        .ok_or("there are no endpoints to start")?;
    let mut pids = Vec::new();
    for (name, listeners, takes) in [
        ("echo-endpoints", quick, TAKES),
        ("echo-slow", std::slice::from_ref(slow), SLOW_TAKES),
    ] {
        let name = format!("{name}-{number}");
        let mut spec = lab.process("server", &name, &lab.voile)?.arg("echo");
        for listener in listeners {
            spec = spec.args([HTTP, &listener.to_string()]);
        }
        let mut child = spec
            .args(["--delay", takes])
            .start()
            .map_err(|e| e.to_string())?;
        for listener in listeners {
            lab.wait_ready(&mut child, &Probe::Http(*listener, "/?size=1".to_owned()))?;
        }
        pids.push(child.pid());
        servers.push(child.into());
    }
    Ok(OriginServers {
        echo: Echo {
            http: endpoints[0],
            tcp: endpoints[0],
        },
        server: Instance::here("echo".to_owned(), "server", pids),
        endpoints,
    })
}

/// The hops of a path with one more for each further endpoint.
pub(crate) fn all_hops(lab: &Lab<'_>, route: &CellRoute) -> Vec<Hop> {
    let mut hops = route.hops.clone();
    if let Some(last) = route.hops.last() {
        let further = lab.endpoints.iter().skip(1);
        hops.extend(further.map(|endpoint| Hop {
            address: *endpoint,
            ..last.clone()
        }));
    }
    hops
}

/// Merges the captures of all endpoints into one hop, and checks the spread of requests over the endpoints.
pub(crate) fn as_one_hop(
    lab: &Lab<'_>,
    mut seen: Vec<HopCapture>,
) -> (Vec<HopCapture>, Option<Check>) {
    let Some(first) = seen.len().checked_sub(lab.endpoints.len()) else {
        return (seen, None);
    };
    if lab.endpoints.is_empty() {
        return (seen, None);
    }
    let each: Vec<HopCapture> = seen.split_off(first);
    let requests: Vec<u64> = each.iter().map(|one| one.markers_in).collect();
    let mut all = HopCapture::default();
    for one in each {
        all.bytes += one.bytes;
        all.markers_in += one.markers_in;
        all.markers += one.markers;
        all.tls_records += one.tls_records;
    }
    seen.push(all);
    let served = requests.iter().filter(|count| **count > 0).count();
    let claim = "requests reach more than one endpoint";
    let words: Vec<String> = requests.iter().map(ToString::to_string).collect();
    let evidence = format!("to each, the slow one last: {}", words.join(" "));
    (seen, Some(check(claim, served > 1, evidence)))
}
