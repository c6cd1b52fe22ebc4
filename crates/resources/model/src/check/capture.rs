//! Istio's annotations that say which connections of a Pod its sidecar takes.

use std::net::IpAddr;

use super::values::join;
use crate::codes;
use crate::decode::{FieldPath, Report};
use crate::diagnostic::Diagnostic;
use crate::mesh::{AddressRange, CaptureScope, CaptureSelection};
use crate::names::{Labels, Port};
use crate::ranges::masked;
use crate::text::clip;
use crate::yaml::SourcePosition;

/// Begins the names of annotations about capture.
pub const PREFIX: &str = "traffic.sidecar.istio.io/";
/// Supported annotations; any other name after the prefix is refused.
const INCLUDE_INBOUND_PORTS: &str = "includeInboundPorts";
const EXCLUDE_INBOUND_PORTS: &str = "excludeInboundPorts";
const INCLUDE_OUTBOUND_PORTS: &str = "includeOutboundPorts";
const EXCLUDE_OUTBOUND_PORTS: &str = "excludeOutboundPorts";
const INCLUDE_OUTBOUND_RANGES: &str = "includeOutboundIPRanges";
const EXCLUDE_OUTBOUND_RANGES: &str = "excludeOutboundIPRanges";
const KNOWN: [&str; 6] = [
    INCLUDE_INBOUND_PORTS,
    EXCLUDE_INBOUND_PORTS,
    INCLUDE_OUTBOUND_PORTS,
    EXCLUDE_OUTBOUND_PORTS,
    INCLUDE_OUTBOUND_RANGES,
    EXCLUDE_OUTBOUND_RANGES,
];
/// Istio's annotations for features that a Pod does not have here.
const MEANINGLESS: [&str; 3] = [
    "excludeInterfaces",
    "kubevirtInterfaces",
    "rerouteVirtualInterfaces",
];

/// Annotation for the way the kernel redirects connections.
const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";

/// Reads the annotations of a Pod that is not part of a mesh's resources, or options with the same names and values.
/// Errors say what of it cannot be obeyed.
#[must_use]
pub fn capture_scope(annotations: &Labels) -> (CaptureScope, Vec<Diagnostic>) {
    let report = Report::new("".into());
    let at = FieldPath {
        place: SourcePosition { line: 1, column: 1 },
        path: "".into(),
    };
    let scope = scope(annotations, &at, &report);
    (scope, report.into_diagnostics())
}

/// Reads the annotations. Errors are reported, and the Pod is then not in force.
pub(super) fn scope(annotations: &Labels, at: &FieldPath, report: &Report) -> CaptureScope {
    let reader = Reader {
        annotations,
        at,
        report,
    };
    reader.refuse_others();
    let exclude = |name| reader.list(name, "*", port).unwrap_or_default();
    let (outbound_ranges, excluded_outbound_ranges) =
        reader.selection(INCLUDE_OUTBOUND_RANGES, EXCLUDE_OUTBOUND_RANGES, range);
    CaptureScope {
        inbound_ports: reader.inbound_ports(),
        outbound_ranges,
        excluded_outbound_ranges,
        outbound_ports: exclude(INCLUDE_OUTBOUND_PORTS),
        excluded_outbound_ports: exclude(EXCLUDE_OUTBOUND_PORTS),
        keeps_source: reader.keeps_source(),
    }
}

struct Reader<'a> {
    annotations: &'a Labels,
    at: &'a FieldPath,
    report: &'a Report,
}

impl Reader<'_> {
    /// True if the Pod wants to see its callers' addresses; `None` if unset. A Pod without capture (NONE) is not
    /// supported and must not start.
    fn keeps_source(&self) -> Option<bool> {
        let mode = self.annotations.get(INTERCEPTION_MODE).map(str::trim);
        match mode {
            None => {}
            Some("REDIRECT") => return Some(false),
            Some("TPROXY") => return Some(true),
            Some("NONE") => self.wrong_at(
                codes::NOT_YET,
                INTERCEPTION_MODE,
                format!("{INTERCEPTION_MODE}: NONE is not yet supported"),
                "remove it, or write REDIRECT or TPROXY",
            ),
            Some(other) => self.wrong_at(
                codes::BAD_VALUE,
                INTERCEPTION_MODE,
                format!("`{}` is not allowed for {INTERCEPTION_MODE}", clip(other)),
                "write REDIRECT or TPROXY",
            ),
        }
        None
    }

    fn refuse_others(&self) {
        for (key, _) in self.annotations.iter() {
            let Some(name) = key.strip_prefix(PREFIX) else {
                continue;
            };
            if MEANINGLESS.contains(&name) {
                self.wrong(
                    codes::NOT_YET,
                    name,
                    format!("{key} is not yet supported"),
                    "remove it: Pods of Voile have only the interfaces lo and eth0",
                );
            } else if !KNOWN.contains(&name) {
                self.wrong(
                    codes::UNKNOWN_FIELD,
                    name,
                    format!("unknown annotation `{}`", clip(key)),
                    &crate::text::suggest(name, KNOWN),
                );
            }
        }
    }

    /// A port of both lists would be captured in Istio, and not by its name.
    fn inbound_ports(&self) -> CaptureSelection<Port> {
        let (ports, excluded) = self.selection(INCLUDE_INBOUND_PORTS, EXCLUDE_INBOUND_PORTS, port);
        if let Some(port) = excluded.iter().find(|port| ports.contains(port)) {
            self.wrong(
                codes::CONTRADICTION,
                EXCLUDE_INBOUND_PORTS,
                format!("port {port} is in {INCLUDE_INBOUND_PORTS}, too"),
                "keep it in one of the two",
            );
        }
        ports
    }

    /// `*` and a missing list mean everything but the excluded. Beside a list, the second value has the excluded.
    fn selection<T>(
        &self,
        include: &'static str,
        exclude: &'static str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> (CaptureSelection<T>, Vec<T>) {
        let excluded = self.list(exclude, "", &parse).unwrap_or_default();
        match self.annotations.get(&format!("{PREFIX}{include}")) {
            None => (CaptureSelection::AllBut(excluded), Vec::new()),
            Some(text) if text.trim() == "*" => (CaptureSelection::AllBut(excluded), Vec::new()),
            Some(_) => {
                let included = self.list(include, "", &parse).unwrap_or_default();
                (CaptureSelection::Only(included), excluded)
            }
        }
    }

    /// The items of a list; a bad one is reported, and left out.
    fn list<T>(
        &self,
        name: &'static str,
        refused: &str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<Vec<T>> {
        let text = self.annotations.get(&format!("{PREFIX}{name}"))?;
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        let parsed = items.filter_map(|item| {
            let outcome = if item == refused {
                Err("write the ports out, joined by commas")
            } else {
                parse(item)
            };
            outcome
                .map_err(|help| {
                    let message = format!("`{}` is not allowed for {PREFIX}{name}", clip(item));
                    self.wrong(codes::BAD_VALUE, name, message, help);
                })
                .ok()
        });
        Some(parsed.collect())
    }

    fn wrong(&self, code: &'static str, name: &str, message: String, help: &str) {
        self.wrong_at(code, &format!("{PREFIX}{name}"), message, help);
    }

    fn wrong_at(&self, code: &'static str, key: &str, message: String, help: &str) {
        let at = FieldPath {
            place: self.at.place,
            path: join(&self.at.path, &format!("metadata.annotations[{key}]")),
        };
        self.report.error(code, &at, message, help);
    }
}

fn port(text: &str) -> Result<Port, &'static str> {
    text.parse()
        .ok()
        .and_then(Port::new)
        .ok_or("a port is a number from 1 to 65535; several are joined by commas")
}

fn range(text: &str) -> Result<AddressRange, &'static str> {
    let help = "write ranges as ADDRESS/BITS, joined by commas";
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| help)?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix: u8 = match prefix {
        Some(prefix) => prefix.parse().map_err(|_| help)?,
        None => longest,
    };
    if prefix > longest {
        return Err("a prefix has at most 32 bits for IPv4 and 128 for IPv6");
    }
    Ok(AddressRange {
        address: masked(address, prefix),
        prefix,
    })
}
