//! Graph to YAML that reads back the same: for generated graphs, and for the piece that each service of a mesh is given.

use std::fmt::Write as _;
use std::time::Duration;

use crate::model::{
    Graph, GraphService, Memory, Probability, ScriptStep, ServiceCall, ServiceProtocol, Step,
};
use crate::size;

/// Writes the graph in isotope's format, with Voile's own additions.
#[must_use]
pub fn to_yaml(graph: &Graph) -> String {
    let request_size = usual(
        graph
            .services
            .iter()
            .flat_map(GraphService::calls)
            .map(|call| call.size),
    );
    let response_size = usual(graph.services.iter().map(|service| service.response_size));
    let all_grpc = graph
        .services
        .iter()
        .all(|service| service.protocol == ServiceProtocol::Grpc);
    let defaults = Defaults {
        request_size,
        response_size,
        protocol: if all_grpc {
            ServiceProtocol::Grpc
        } else {
            ServiceProtocol::Http
        },
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = defaults.write(&mut text);
    text.push_str("services:\n");
    for service in &graph.services {
        let _ = defaults.service(&mut text, graph, service);
    }
    text
}

struct Defaults {
    request_size: u64,
    response_size: u64,
    protocol: ServiceProtocol,
}

impl Defaults {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        if self.request_size == 0
            && self.response_size == 0
            && self.protocol == ServiceProtocol::Http
        {
            return Ok(());
        }
        writeln!(text, "defaults:")?;
        if self.protocol == ServiceProtocol::Grpc {
            writeln!(text, "  type: grpc")?;
        }
        if self.request_size > 0 {
            writeln!(text, "  requestSize: {}", size::show(self.request_size))?;
        }
        if self.response_size > 0 {
            writeln!(text, "  responseSize: {}", size::show(self.response_size))?;
        }
        Ok(())
    }

    fn service(
        &self,
        text: &mut String,
        graph: &Graph,
        service: &GraphService,
    ) -> std::fmt::Result {
        writeln!(text, "- name: {}", quoted(&service.name))?;
        if let Some(namespace) = &service.namespace {
            writeln!(text, "  namespace: {}", quoted(namespace))?;
        }
        if let Some(cluster) = &service.cluster {
            writeln!(text, "  cluster: {}", quoted(cluster))?;
        }
        if !service.cluster_latency.is_zero() {
            let latency = duration(service.cluster_latency);
            writeln!(text, "  clusterLatency: {latency}")?;
        }
        if service.protocol != self.protocol {
            writeln!(text, "  type: {}", service.protocol.as_str())?;
        }
        if service.entry {
            writeln!(text, "  isEntrypoint: true")?;
        }
        if service.replicas != 1 {
            writeln!(text, "  numReplicas: {}", service.replicas)?;
        }
        if service.error_rate != Probability::NONE {
            writeln!(text, "  errorRate: {}", service.error_rate.percent())?;
        }
        if service.response_size != self.response_size {
            writeln!(
                text,
                "  responseSize: {}",
                size::show(service.response_size)
            )?;
        }
        if service.compute != Probability::NONE {
            writeln!(text, "  computeUsage: {}", service.compute.percent())?;
        }
        match service.memory {
            Memory::Bytes(0) => {}
            Memory::Bytes(bytes) => writeln!(text, "  memoryUsage: {}", size::show(bytes))?,
            Memory::OfLimit(share) => writeln!(text, "  memoryUsage: {}", share.percent())?,
        }
        if service.policies > 0 {
            writeln!(text, "  numRbacPolicies: {}", service.policies)?;
        }
        if !service.labels.is_empty() {
            writeln!(text, "  labels:")?;
            for (key, value) in &service.labels {
                writeln!(text, "    {}: {}", quoted(key), quoted(value))?;
            }
        }
        if service.script.is_empty() {
            return Ok(());
        }
        writeln!(text, "  script:")?;
        for step in &service.script {
            self.step(text, graph, step)?;
        }
        Ok(())
    }

    fn step(&self, text: &mut String, graph: &Graph, step: &Step) -> std::fmt::Result {
        match step {
            Step::One(command) => {
                text.push_str("  - ");
                self.command(text, graph, command, "    ")
            }
            Step::Together(commands) if commands.is_empty() => writeln!(text, "  - []"),
            Step::Together(commands) => {
                for (number, command) in commands.iter().enumerate() {
                    text.push_str(if number == 0 { "  - - " } else { "    - " });
                    self.command(text, graph, command, "      ")?;
                }
                Ok(())
            }
        }
    }

    fn command(
        &self,
        text: &mut String,
        graph: &Graph,
        command: &ScriptStep,
        indent: &str,
    ) -> std::fmt::Result {
        match command {
            ScriptStep::Sleep(time) => writeln!(text, "sleep: {}", duration(*time)),
            ScriptStep::Cpu(time) => writeln!(text, "cpu: {}", duration(*time)),
            ScriptStep::Memory(bytes) => writeln!(text, "memory: {}", size::show(*bytes)),
            ScriptStep::Call(call) => self.call(text, graph, call, indent),
        }
    }

    fn call(
        &self,
        text: &mut String,
        graph: &Graph,
        call: &ServiceCall,
        indent: &str,
    ) -> std::fmt::Result {
        let name = quoted(&graph.services[call.service].name);
        let plain = call.hostname.is_none()
            && call.headers.is_empty()
            && call.size == self.request_size
            && call.probability == Probability::ALL;
        if plain {
            return writeln!(text, "call: {name}");
        }
        writeln!(text, "call:\n{indent}  service: {name}")?;
        if let Some(hostname) = &call.hostname {
            writeln!(text, "{indent}  hostname: {}", quoted(hostname))?;
        }
        if call.size != self.request_size {
            writeln!(text, "{indent}  size: {}", size::show(call.size))?;
        }
        if call.probability != Probability::ALL {
            let percent = call.probability.percent();
            // Isotope reads whole numbers only.
            let whole = percent.strip_suffix('%').filter(|text| !text.contains('.'));
            writeln!(text, "{indent}  probability: {}", whole.unwrap_or(&percent))?;
        }
        if !call.headers.is_empty() {
            writeln!(text, "{indent}  extra-header:")?;
            for (key, value) in &call.headers {
                writeln!(text, "{indent}    {}: {}", quoted(key), quoted(value))?;
            }
        }
        Ok(())
    }
}

/// The value that most have; of several the first, and 0 when there is none.
fn usual(values: impl Iterator<Item = u64>) -> u64 {
    let mut counts: Vec<(u64, usize)> = Vec::new();
    for value in values {
        match counts.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    let first = counts.iter().find(|(_, count)| Some(*count) == most);
    first.map_or(0, |(value, _)| *value)
}

/// A duration in the largest unit that keeps it whole.
pub(crate) fn duration(time: Duration) -> String {
    let nanos = time.as_nanos();
    for (unit, length) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
        if nanos.is_multiple_of(length) && nanos > 0 {
            return format!("{}{unit}", nanos / length);
        }
    }
    format!("{nanos}ns")
}

/// Text that YAML 1.1 and 1.2 both take for text.
pub(crate) fn quoted(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && !WORDS.contains(&&*text.to_ascii_lowercase());
    if plain {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(quoted, "\\x{:02x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
