//! The HealthChecks by which a proxy asks, as it is told them. Which services they are for is its own to see: it knows what it balances to.

use std::sync::Arc;

use voile_model::mesh::health_check::MAX_HEALTH_CHECKS;
use voile_model::mesh::{Mesh, Workload};
use voile_xds::wire::HealthCheck;

/// All of them, the nearest first; what is more than a proxy takes is not told, and said.
pub(super) fn asked_by(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> Vec<Arc<HealthCheck>> {
    let held = mesh.health_checks_for(workload);
    for beyond in held.iter().skip(MAX_HEALTH_CHECKS) {
        problems.push(format!(
            "HealthCheck {} is ignored: a proxy runs at most {MAX_HEALTH_CHECKS}",
            beyond.name
        ));
    }
    let told = held.into_iter().take(MAX_HEALTH_CHECKS).map(|one| {
        let callees = one.callees(&workload.key.namespace, &mesh.config.root_namespace);
        HealthCheck::of(one, callees).into()
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use voile_model::{SourceFile, check};

    use super::*;

    #[test]
    fn a_proxy_is_told_as_many_as_it_takes_and_what_is_more_is_said() {
        let mut text = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge, namespace: shop, labels: {sidecar.istio.io/inject: \"true\"}, \
            annotations: {inject.istio.io/templates: gateway}}\n\
            spec: {containers: [{name: istio-proxy, image: auto}]}\nstatus: {phase: Running, podIP: 10.0.0.1}\n"
            .to_owned();
        for number in 0..=MAX_HEALTH_CHECKS {
            text += &format!(
                "---\napiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {{name: c{number:03}, namespace: shop}}\nspec: {{host: a.test, tcp: {{}}}}\n"
            );
        }
        let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", text)], None);
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let edge = mesh.workloads.values().next().expect("a gateway");
        let mut problems = Vec::new();
        let told = asked_by(&mesh, edge, &mut problems);
        assert_eq!(told.len(), MAX_HEALTH_CHECKS);
        assert_eq!(&*told[0].name, "shop/c000");
        let [said] = &problems[..] else {
            panic!("{problems:?}");
        };
        assert!(
            said.starts_with("HealthCheck shop/c256 is ignored: "),
            "{said}"
        );
    }
}
