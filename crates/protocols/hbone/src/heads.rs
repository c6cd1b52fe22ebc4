//! The heads of HBONE: fields of a CONNECT for the caller and the destination, and their parser. Pure.

use std::fmt::Display;
use std::net::SocketAddr;

use voile_http2::Fields;

/// Header `baggage` of the caller, for people and metrics; it is never trusted.
const BAGGAGE: &str = "baggage";

/// Caller for which a tunnel is opened.
#[derive(Debug, Clone, Copy)]
pub struct TunnelCaller<'a> {
    /// The application's own address, where it is known.
    pub client: Option<SocketAddr>,
    /// Attributes of the caller, in Istio's words; empty values are left out.
    pub baggage: &'a [(&'static str, &'a str)],
    /// The host that it meant, where it meant a service.
    pub host: Option<&'a str>,
}

/// A CONNECT to `to`, an address or a name with its port; `random` names the trace.
pub fn connect(
    head: &mut Fields,
    to: impl Display,
    caller: &TunnelCaller<'_>,
    mut random: impl FnMut() -> u64,
) {
    head.push(":method", b"CONNECT");
    head.push(":authority", to.to_string().as_bytes());
    head.push(BAGGAGE, baggage(caller.baggage).as_bytes());
    if let Some(client) = caller.client {
        let mut forwarded = format!("for=\"{client}\"");
        if let Some(host) = caller.host {
            forwarded += &format!(";host={host}");
        }
        head.push("forwarded", forwarded.as_bytes());
    }
    let trace = format!("00-{:016x}{:016x}-{:016x}-00", random(), random(), random());
    head.push("traceparent", trace.as_bytes());
}

fn baggage(parts: &[(&'static str, &str)]) -> String {
    let plain = |value: &&str| {
        let allowed = |byte: &u8| byte.is_ascii_graphic() && !b",;\\\"=".contains(byte);
        !value.is_empty() && value.as_bytes().iter().all(allowed)
    };
    let parts = parts.iter().filter(|(_, value)| plain(value));
    let parts = parts.map(|(name, value)| format!("{name}={value}"));
    parts.collect::<Vec<_>>().join(",")
}

/// Why a request is no tunnel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTunnel {
    /// Another method, or an extended CONNECT.
    #[error("not a CONNECT")]
    NotConnect,
    /// Not `ADDRESS:PORT`. A receiver that knows services may look for one by this name.
    #[error("`{0}` is not ADDRESS:PORT")]
    NoAddress(String),
    /// Another address than the one at which the connection came in.
    #[error("{0} is not an address of this workload")]
    Foreign(SocketAddr),
    /// One of the proxy's own ports.
    #[error("port {0} belongs to the proxy")]
    OwnPort(u16),
}

/// The name, in small letters, and the port that a CONNECT asks for, where it asks for no address.
#[must_use]
pub fn named(head: &Fields) -> Option<(String, u16)> {
    let (host, port) = head.authority()?.rsplit_once(':')?;
    // `parse` alone takes a sign, too.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number)?;
    Some((host.to_ascii_lowercase(), port))
}

/// Returns the target of a request to a workload that was called at `local` and whose proxy has these ports.
///
/// # Errors
/// When it is no CONNECT, or its target is not allowed.
pub fn target(head: &Fields, local: SocketAddr, own_ports: &[u16]) -> Result<SocketAddr, NoTunnel> {
    if head.method() != "CONNECT" || head.protocol().is_some() || head.is_cut() {
        return Err(NoTunnel::NotConnect);
    }
    let authority = head.authority().unwrap_or_default();
    let to: SocketAddr = authority.parse().map_err(|_| {
        let shown = authority.chars().take(300).collect();
        NoTunnel::NoAddress(shown)
    })?;
    if to.ip().to_canonical() != local.ip().to_canonical() {
        return Err(NoTunnel::Foreign(to));
    }
    if to.port() == 0 || own_ports.contains(&to.port()) {
        return Err(NoTunnel::OwnPort(to.port()));
    }
    Ok(SocketAddr::new(to.ip().to_canonical(), to.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&str, &str)]) -> Fields {
        let mut head = Fields::new();
        for (name, value) in lines {
            head.push(name, value.as_bytes());
        }
        head
    }

    #[test]
    fn only_the_workloads_own_address_is_a_target() {
        let local: SocketAddr = ([10, 244, 0, 3], 15008).into();
        let connect = |authority: &str| head(&[(":method", "CONNECT"), (":authority", authority)]);
        let good =
            target(&connect("10.244.0.3:8080"), local, &[15001, 15006, 15008]).expect("ours");
        assert_eq!(good, ([10, 244, 0, 3], 8080).into());
        for authority in [
            "10.244.0.4:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.244.0.3",
            "10.244.0.3:",
            "10.244.0.3:0",
            "10.244.0.3:15001",
            "10.244.0.3:15006",
            "10.244.0.3:15008",
            "10.244.0.3:99999",
            "web.shop.svc.cluster.local:80",
            "",
        ] {
            assert!(
                target(&connect(authority), local, &[15001, 15006, 15008]).is_err(),
                "{authority}"
            );
        }
        let get = [(":method", "GET"), (":scheme", "https"), (":path", "/")];
        let get = head(&[&get[..], &[(":authority", "10.244.0.3:8080")]].concat());
        assert_eq!(
            target(&get, local, &[15001, 15006, 15008]),
            Err(NoTunnel::NotConnect)
        );
        let websocket = [
            (":method", "CONNECT"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "10.244.0.3:8080"),
            (":protocol", "websocket"),
        ];
        assert_eq!(
            target(&head(&websocket), local, &[15001, 15006, 15008]),
            Err(NoTunnel::NotConnect)
        );
        let v6: SocketAddr = "[fd00::3]:15008".parse().expect("an address");
        assert!(target(&connect("[fd00::3]:80"), v6, &[15001]).is_ok());
    }

    #[test]
    fn baggage_says_what_it_can_and_nothing_that_would_say_something_else() {
        let mut head = Fields::new();
        let client = ([10, 244, 0, 2], 4000).into();
        let caller = TunnelCaller {
            client: Some(client),
            baggage: &[
                ("k8s.namespace.name", "shop"),
                ("service.name", ""),
                ("cloud.region", "r"),
                ("cloud.availability_zone", "bad,zone"),
            ],
            host: Some("web.shop.svc.cluster.local"),
        };
        let to: SocketAddr = ([10, 244, 0, 3], 8080).into();
        connect(&mut head, to, &caller, || 10);
        assert_eq!(
            (head.method(), head.authority()),
            ("CONNECT", Some("10.244.0.3:8080"))
        );
        let text = |name| String::from_utf8_lossy(head.get(name).expect("there")).into_owned();
        assert_eq!(text("baggage"), "k8s.namespace.name=shop,cloud.region=r");
        assert_eq!(
            text("forwarded"),
            "for=\"10.244.0.2:4000\";host=web.shop.svc.cluster.local"
        );
        assert_eq!(
            text("traceparent"),
            "00-000000000000000a000000000000000a-000000000000000a-00"
        );
    }
}
