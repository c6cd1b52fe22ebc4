//! The RateLimits that hold for a workload, as its proxy is told them.

use voile_model::mesh::rate_limit::{self as model, MAX_RATE_LIMITS};
use voile_model::mesh::{Mesh, MeshService, ProviderService, Workload};
use voile_model::{Port, ServiceKey};
use voile_xds::wire::{GlobalLimits, LimitRule, RateLimit};

use crate::translate::routes::request_match;

/// All of them, by name; what is more than a proxy asks is not told, as analysis says with file and line. A service that counts
/// and is not there is said: what it would be asked about passes or not, as its RateLimit says.
pub(in crate::translate) fn holding(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> Vec<RateLimit> {
    let waypoint = mesh.waypoint_run_by(workload);
    let through = waypoint.map(|waypoint| mesh.rate_limits_at(waypoint, Some(workload)));
    let own = match waypoint {
        Some(_) => None,
        None => Some(mesh.rate_limits_for(workload)),
    };
    let own = own.into_iter().flatten().map(|one| (one, Vec::new()));
    let held = through.into_iter().flatten().chain(own);
    held.take(MAX_RATE_LIMITS)
        .map(|(one, services)| told(mesh, one, &services, problems))
        .collect()
}

fn told(
    mesh: &Mesh,
    one: &model::RateLimit,
    services: &[&MeshService],
    problems: &mut Vec<String>,
) -> RateLimit {
    let rule = |rule: &model::LimitRule| LimitRule {
        name: rule.name.clone(),
        matches: rule.matches.iter().map(request_match).collect(),
        limits: rule.limits.clone(),
        descriptors: rule.descriptors.clone(),
        hits: rule.hits,
    };
    let global = |global: &model::GlobalLimits| {
        let service = place(mesh, &global.service);
        if let Err(problem) = &service {
            let passes = match global.fail_open {
                true => "passes",
                false => "is refused",
            };
            let name = &one.name;
            problems.push(format!(
                "RateLimit {name}: {problem}; every request it counts {passes}"
            ));
        }
        GlobalLimits {
            service: service.ok(),
            domain: global.domain.clone(),
            timeout: global.timeout,
            fail_open: global.fail_open,
        }
    };
    RateLimit {
        name: one.name.to_string().into(),
        hosts: services
            .iter()
            .map(|service| service.key.hostname.to_string().into())
            .collect(),
        rules: one.rules.iter().map(rule).collect(),
        global: one.global.as_ref().map(global),
    }
}

/// The port of a service of the mesh.
fn place(mesh: &Mesh, wanted: &ProviderService) -> Result<(ServiceKey, Port), String> {
    let service = crate::translate::telemetry::provider_service(mesh, wanted)?;
    Ok((service.key.clone(), wanted.port))
}
