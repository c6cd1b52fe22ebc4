//! `voile generate mesh`: a folder of YAML as large as wanted, for measuring control planes. The same numbers and seed give the same
//! files, byte by byte.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Most of each: workloads' addresses are in 10.0.0.0/8, services' in 172.16.0.0/12.
const MAX_WORKLOADS: u32 = 1_000_000;
const MAX_SERVICES: u32 = 200_000;
/// The first addresses.
const WORKLOADS_FROM: u32 = 0x0A00_0000;
const SERVICES_FROM: u32 = 0xAC10_0000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Writes mesh.yaml (the namespaces), services/NAME.yaml (a Service, its ServiceAccount, a policy: AuthorizationPolicy and\n\
    DestinationRule in turn, and a VirtualService of three routes) and workloads/NAME.yaml (a running Pod with a sidecar). The folder\n\
    must be empty or missing.\n\
    Exit code: 0, 1 if it cannot be written, 2 if the arguments contradict each other."
)]
pub(super) struct Mesh {
    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Services
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SERVICES)))]
    services: u32,
    /// Workloads, spread over the services
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKLOADS)))]
    workloads: u32,
    /// Services that have a policy
    #[arg(long, value_name = "N")]
    policies: Option<u32>,
    /// Services that have a VirtualService
    #[arg(long, value_name = "N")]
    routes: Option<u32>,
    /// Services in one namespace
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    services_per_namespace: u32,
    /// Seed of the policies' rules
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(mesh: &Mesh) -> ExitCode {
    for (number, what) in [
        (mesh.policies(), "policy"),
        (mesh.routes(), "VirtualService"),
    ] {
        if number > mesh.services {
            eprintln!("voile generate mesh: a service has at most one {what}");
            return ExitCode::from(2);
        }
    }
    match mesh.write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("voile generate mesh: {why}");
            ExitCode::FAILURE
        }
    }
}

impl Mesh {
    fn policies(&self) -> u32 {
        self.policies.unwrap_or(self.services)
    }

    fn routes(&self) -> u32 {
        self.routes.unwrap_or(self.services)
    }

    fn write(&self) -> Result<(), String> {
        let made = |folder: &Path| {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
        };
        made(&self.out)?;
        let mut inside =
            fs::read_dir(&self.out).map_err(|e| format!("{}: {e}", self.out.display()))?;
        if inside.next().is_some() {
            return Err(format!("{} is not empty", self.out.display()));
        }
        let (services, workloads) = (self.out.join("services"), self.out.join("workloads"));
        made(&services)?;
        made(&workloads)?;
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        write(self.out.join("mesh.yaml"), &self.namespaces())?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        for number in 0..self.services {
            let path = services.join(format!("s{number:06}.yaml"));
            write(path, &self.service(number, &mut random))?;
        }
        for number in 0..self.workloads {
            let path = workloads.join(format!("w{number:06}.yaml"));
            write(path, &self.workload(number))?;
        }
        Ok(())
    }

    fn namespace(&self, service: u32) -> String {
        format!("ns-{:04}", service / self.services_per_namespace)
    }

    fn namespaces(&self) -> String {
        let mut text = String::new();
        let mut last = String::new();
        for number in 0..self.services {
            let namespace = self.namespace(number);
            if namespace != last {
                // Writing into a String cannot fail.
                let _ = write!(
                    text,
                    "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{istio-injection: enabled}}}}\n"
                );
                last = namespace;
            }
        }
        text
    }

    fn service(&self, number: u32, random: &mut fastrand::Rng) -> String {
        let namespace = self.namespace(number);
        let name = format!("s{number:06}");
        let address = Ipv4Addr::from(SERVICES_FROM + 1 + number);
        let mut text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  clusterIP: {address}\n\
             \x20 selector: {{app: {name}}}\n  ports:\n  - {{name: http, port: 80, targetPort: 8080}}\n  - {{name: grpc, port: 81, targetPort: 8081}}\n\
             ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        );
        let word = random.u32(..);
        if number < self.routes() {
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec:\n  hosts: [{name}]\n  http:\n\
                 \x20 - match: [{{port: 80, uri: {{prefix: /slow/{word:08x}}}}}]\n    timeout: 30s\n    route: [{{destination: {{host: {name}, port: {{number: 80}}}}}}]\n\
                 \x20 - match: [{{port: 80}}]\n    route: [{{destination: {{host: {name}, port: {{number: 80}}}}}}]\n\
                 \x20 - match: [{{port: 81}}]\n    route: [{{destination: {{host: {name}, port: {{number: 81}}}}}}]\n"
            );
        }
        if number >= self.policies() {
            return text;
        }
        // Writing into a String cannot fail.
        let _ = match number % 2 {
            0 => write!(
                text,
                "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  action: DENY\n  rules:\n\
                 \x20 - to: [{{operation: {{methods: [DELETE], paths: [/generated/{word:08x}/*]}}}}]\n"
            ),
            _ => write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
                 spec:\n  host: {name}\n  trafficPolicy: {{connectionPool: {{http: {{h2UpgradePolicy: DO_NOT_UPGRADE}}}}}}\n"
            ),
        };
        text
    }

    fn workload(&self, number: u32) -> String {
        let service = number % self.services;
        let name = format!("s{service:06}");
        let address = Ipv4Addr::from(WORKLOADS_FROM + 1 + number);
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: w{number:06}\n  namespace: {}\n  labels: {{app: {name}, version: v1}}\n\
             spec:\n  serviceAccountName: {name}\n  containers:\n  - {{name: app, image: none, ports: [{{name: http, containerPort: 8080}}]}}\n\
             status: {{phase: Running, podIP: {address}}}\n",
            self.namespace(service)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_mesh_is_free_of_problems_and_the_same_every_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = |name: &str| {
            let mesh = Mesh {
                out: folder.path().join(name),
                services: 45,
                workloads: 100,
                policies: Some(30),
                routes: Some(40),
                services_per_namespace: 20,
                seed: 7,
            };
            mesh.write().expect("written");
            assert!(mesh.write().is_err(), "never over something");
            let files = voile_model::files::read_directory(&mesh.out).expect("read");
            let texts: Vec<_> = files.iter().map(|file| file.text.clone()).collect();
            (voile_model::check(&files, None), texts)
        };
        let ((mesh, problems), texts) = made("one");
        assert!(problems.is_empty(), "{problems:?}");
        let others = voile_analysis::analyze(&mesh, std::time::SystemTime::now());
        assert!(others.is_empty(), "{others:?}");
        assert_eq!((mesh.services.len(), mesh.workloads.len()), (45, 100));
        assert_eq!(mesh.authorization_policies.len(), 15);
        assert_eq!(mesh.destination_rules.len(), 15);
        assert_eq!(mesh.virtual_services.len(), 40);
        assert!(mesh.workloads.values().all(|workload| workload.has_sidecar));
        assert_eq!(texts, made("two").1);
    }
}
