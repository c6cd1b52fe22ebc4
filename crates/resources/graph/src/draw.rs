//! Pictures of a graph: DOT for Graphviz, and SVG laid out in levels from left to right, in one file that needs nothing else.

mod dot;
mod layout;
mod svg;

pub use dot::dot;
pub use svg::{svg, tinted};

use crate::model::{Graph, GraphService, Memory, Probability, ScriptStep, ServiceCall, Step};
use crate::size;
use crate::written::duration;

/// Text under a service's name; empty when the service only answers.
fn facts(service: &GraphService) -> String {
    let mut facts = Vec::new();
    if service.replicas > 1 {
        facts.push(format!("×{}", service.replicas));
    }
    if service.protocol == crate::ServiceProtocol::Grpc {
        facts.push("gRPC".to_owned());
    }
    if let Some(cluster) = &service.cluster {
        facts.push(format!("cluster {cluster}"));
    }
    let (mut cpu, mut sleep) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    for step in &service.script {
        match step {
            Step::One(ScriptStep::Cpu(time)) => cpu += *time,
            Step::One(ScriptStep::Sleep(time)) => sleep += *time,
            Step::One(_) => {}
            Step::Together(commands) => {
                for command in commands {
                    match command {
                        ScriptStep::Cpu(time) => cpu += *time,
                        ScriptStep::Sleep(time) => sleep = sleep.max(*time),
                        ScriptStep::Call(_) | ScriptStep::Memory(_) => {}
                    }
                }
            }
        }
    }
    if !cpu.is_zero() {
        facts.push(format!("cpu {}", duration(cpu)));
    }
    if !sleep.is_zero() {
        facts.push(format!("sleep {}", duration(sleep)));
    }
    match service.memory {
        Memory::Bytes(0) => {}
        Memory::Bytes(bytes) => facts.push(size::show(bytes)),
        Memory::OfLimit(share) => facts.push(format!("{} memory", share.percent())),
    }
    if service.error_rate != Probability::NONE {
        facts.push(format!("{} errors", service.error_rate.percent()));
    }
    facts.join(" · ")
}

/// Text beside a call; empty when the call is always made, once.
fn beside(calls: &[&ServiceCall]) -> String {
    let expected: f64 = calls.iter().map(|call| call.probability.get()).sum();
    match calls {
        [only] if only.probability == Probability::ALL => String::new(),
        [only] => only.probability.percent(),
        _ if (expected - calls.len() as f64).abs() < 1e-9 => format!("{}×", calls.len()),
        _ => format!("{expected:.2}×"),
    }
}

/// The calls from one service to each other, in the order of the script.
fn grouped(service: &GraphService) -> Vec<(usize, Vec<&ServiceCall>)> {
    let mut groups: Vec<(usize, Vec<&ServiceCall>)> = Vec::new();
    for call in service.calls() {
        match groups
            .iter_mut()
            .find(|(callee, _)| *callee == call.service)
        {
            Some((_, calls)) => calls.push(call),
            None => groups.push((call.service, vec![call])),
        }
    }
    groups
}

/// Text of a script, one line a step.
fn told(graph: &Graph, service: &GraphService) -> String {
    let one = |command: &ScriptStep| match command {
        ScriptStep::Sleep(time) => format!("sleep {}", duration(*time)),
        ScriptStep::Cpu(time) => format!("cpu {}", duration(*time)),
        ScriptStep::Memory(bytes) => format!("memory {}", size::show(*bytes)),
        ScriptStep::Call(call) => {
            let name = &graph.services[call.service].name;
            let mut text = format!("call {name} ({} bytes)", call.size);
            if call.probability != Probability::ALL {
                text.push_str(&format!(" {}", call.probability.percent()));
            }
            text
        }
    };
    let step = |step: &Step| match step {
        Step::One(command) => one(command),
        Step::Together(commands) => {
            let all: Vec<String> = commands.iter().map(one).collect();
            format!("at once: {}", all.join(", "))
        }
    };
    let steps: Vec<String> = service.script.iter().map(step).collect();
    steps.join("\n")
}
