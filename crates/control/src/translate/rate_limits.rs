//! The RateLimits that hold for a workload, as its proxy is told them.

use voile_model::mesh::rate_limit::{self as model, MAX_RATE_LIMITS};
use voile_model::mesh::{Mesh, Workload};
use voile_proto::proxy as wire;
use voile_xds::wire::{LimitRule, RateLimit};

use super::routes::request_match;

/// All of them, by name; what is more than a proxy asks is not told, as analysis says with file and line.
pub(super) fn holding(mesh: &Mesh, workload: &Workload) -> Vec<wire::RateLimit> {
    let held = mesh.rate_limits_for(workload).take(MAX_RATE_LIMITS);
    held.map(|one| told(one).encode()).collect()
}

fn told(one: &model::RateLimit) -> RateLimit {
    let rule = |rule: &model::LimitRule| LimitRule {
        name: rule.name.clone(),
        matches: rule.matches.iter().map(request_match).collect(),
        limits: rule.limits.clone(),
    };
    RateLimit {
        name: one.name.to_string().into(),
        rules: one.rules.iter().map(rule).collect(),
    }
}
