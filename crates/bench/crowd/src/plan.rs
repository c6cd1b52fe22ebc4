//! Simulated proxies and their subscriptions: workloads with a sidecar in the folder, in the order of their names. Services are
//! spread so that about as many proxies use each.

use voile_model::Mesh;

use crate::Settings;

/// One simulated proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedProxy {
    /// Its workload's namespace.
    pub namespace: String,
    /// Its workload's service account.
    pub service_account: String,
    /// Its workload's name.
    pub pod: String,
    /// The services it uses, as `namespace/hostname`.
    pub services: Vec<String>,
}

/// Reads the folder and spreads the parts.
pub(crate) fn read(settings: &Settings) -> Result<Vec<SimulatedProxy>, String> {
    let files = voile_model::files::read_directory(&settings.config)
        .map_err(|e| format!("{}: {e}", settings.config.display()))?;
    let (mesh, _) = voile_model::check(&files, None);
    plan(&mesh, settings.proxies, settings.services, settings.shared)
}

/// `proxies` of the mesh's workloads, each with `services` of its services, of which the first `shared` are the same for all.
///
/// # Errors
/// When there are fewer.
pub fn plan(
    mesh: &Mesh,
    proxies: usize,
    services: usize,
    shared: usize,
) -> Result<Vec<SimulatedProxy>, String> {
    let all: Vec<String> = mesh.services.keys().map(ToString::to_string).collect();
    let there: Vec<_> = mesh.workloads.values().filter(|w| w.has_sidecar).collect();
    if there.len() < proxies {
        return Err(format!(
            "{proxies} proxies are requested, but only {} workloads have a sidecar",
            there.len()
        ));
    }
    if all.len() < services || shared > services {
        return Err(format!(
            "each proxy should use {services} services, {shared} of them common; there are only {}",
            all.len()
        ));
    }
    let (common, rest) = all.split_at(shared);
    let own = services - shared;
    let parts = there.into_iter().take(proxies).enumerate();
    let part = |(number, workload): (usize, &std::sync::Arc<voile_model::mesh::Workload>)| {
        SimulatedProxy {
            namespace: workload.key.namespace.to_string(),
            service_account: workload.service_account.to_string(),
            pod: workload.key.name.to_string(),
            services: common
                .iter()
                .chain((0..own).map(|at| &rest[(number * own + at) % rest.len()]))
                .cloned()
                .collect(),
        }
    };
    Ok(parts.map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        let mut text = String::new();
        for number in 0..6 {
            text += &format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: shop}}\nspec: {{ports: [{{port: 80}}]}}\n\
                 ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: w{number}, namespace: shop, labels: {{sidecar.istio.io/inject: \"true\"}}}}\n\
                 spec: {{containers: [{{name: app}}]}}\nstatus: {{podIP: 10.0.0.{number}, phase: Running}}\n"
            );
        }
        let files = [voile_model::SourceFile::new("mesh.yaml", text)];
        voile_model::check(&files, None).0
    }

    #[test]
    fn services_are_spread_evenly_beside_those_that_all_use() {
        let parts = plan(&mesh(), 5, 3, 1).expect("enough");
        assert_eq!(parts.len(), 5);
        let mut used = std::collections::BTreeMap::new();
        for service in parts.iter().flat_map(|part| &part.services) {
            *used.entry(service.clone()).or_insert(0) += 1;
        }
        let counts: Vec<i32> = used.values().copied().collect();
        assert_eq!(counts, [5, 2, 2, 2, 2, 2]);
        for (proxies, services, shared) in [(7, 1, 0), (1, 7, 0), (1, 2, 3)] {
            assert!(plan(&mesh(), proxies, services, shared).is_err());
        }
    }
}
