//! A graph as a folder of Kubernetes and Istio resources that `voile up` runs in both isolations. Each service gets a
//! ServiceAccount, a ConfigMap with its piece of the graph, a Service, a Deployment, and a Sidecar with the process's
//! listener and callees.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::model::{Graph, GraphService, ServiceProtocol};
use crate::written::{quoted, to_yaml};

/// The port of every service, as isotope's.
pub const PORT: u16 = 8080;
/// Loopback port that the process listens on beside its sidecar.
const BESIDE: u16 = 18_080;

/// Mode of mutual TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mtls {
    /// Callers must show an identity. Entry points take plaintext too, so that people get in.
    Strict,
    /// Callers must show an identity, at entry points as well: only the mesh's own client gets in.
    StrictEverywhere,
    /// Callers may show an identity.
    Permissive,
    /// No mutual TLS: plaintext everywhere.
    Disable,
}

/// Options of the folder.
#[derive(Debug, Clone)]
pub struct MeshOptions {
    /// Namespace of services that name none.
    pub namespace: String,
    /// Mutual TLS.
    pub mtls: Mtls,
    /// If true, pods get sidecars. Without them, the folder has the same applications in the open.
    pub sidecars: bool,
    /// The first port on which entry points are published; each further one has the next.
    pub node_port: u16,
    /// Makes chance repeatable.
    pub seed: Option<u64>,
    /// Threads of each process.
    pub threads: usize,
    /// A client in the mesh that calls the first entry point: requests a second, and connections.
    pub client: Option<(f64, usize)>,
}

/// One file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its contents.
    pub text: String,
}

/// Makes the folder.
///
/// # Errors
/// When what is asked for does not fit the graph.
pub fn mesh(graph: &Graph, options: &MeshOptions) -> Result<Vec<File>, String> {
    let entries = graph.entries();
    if usize::from(u16::MAX - options.node_port) < entries.len() {
        return Err("there are more entry points than ports to publish them on".to_owned());
    }
    let folder = Folder {
        graph,
        options,
        entries: &entries,
    };
    let mut files = vec![File {
        name: "mesh.yaml".to_owned(),
        text: folder.whole(),
    }];
    for place in 0..graph.services.len() {
        files.push(File {
            // A service may be called `mesh` or `client`.
            name: format!("service-{}.yaml", graph.services[place].name),
            text: folder.service(place),
        });
    }
    if let Some((rate, connections)) = options.client {
        files.push(File {
            name: "client.yaml".to_owned(),
            text: folder.client(rate, connections)?,
        });
    }
    Ok(files)
}

struct Folder<'a> {
    graph: &'a Graph,
    options: &'a MeshOptions,
    entries: &'a [usize],
}

impl Folder<'_> {
    fn namespace<'s>(&'s self, service: &'s GraphService) -> &'s str {
        service
            .namespace
            .as_deref()
            .unwrap_or(&self.options.namespace)
    }

    fn whole(&self) -> String {
        let mut namespaces: BTreeSet<&str> = self
            .graph
            .services
            .iter()
            .map(|service| self.namespace(service))
            .collect();
        if self.options.client.is_some() {
            namespaces.insert(&self.options.namespace);
        }
        let mut text = String::from("# Made by `voile graph mesh`. Settings for all services.\n");
        let mode = match self.options.mtls {
            Mtls::Strict | Mtls::StrictEverywhere => "STRICT",
            Mtls::Permissive => "PERMISSIVE",
            Mtls::Disable => "DISABLE",
        };
        for namespace in namespaces {
            let name = quoted(namespace);
            text.push_str(&format!(
                "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n"
            ));
            if self.options.sidecars {
                text.push_str("  labels:\n    istio-injection: enabled\n");
                text.push_str(&format!(
                    "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: default\n  namespace: {name}\nspec:\n  mtls:\n    mode: {mode}\n"
                ));
            }
            text.push_str("---\n");
        }
        text.push_str("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n    trustDomain: cluster.local\n    outboundTrafficPolicy:\n      mode: REGISTRY_ONLY\n");
        text
    }

    /// `metadata:` with name and namespace, and the graph's labels.
    fn metadata(&self, service: &GraphService, name: &str) -> String {
        let mut text = format!(
            "metadata:\n  name: {}\n  namespace: {}\n",
            quoted(name),
            quoted(self.namespace(service))
        );
        if !service.labels.is_empty() {
            text.push_str("  labels:\n");
            text.push_str(&labels(service, "    "));
        }
        text
    }

    fn service(&self, place: usize) -> String {
        let service = &self.graph.services[place];
        let name = &*service.name;
        let quoted_name = quoted(name);
        let entry = self.entries.iter().position(|&entry| entry == place);
        let (port_name, _) = port_of(service.protocol);
        let mut text = format!("# Made by `voile graph mesh`: the service {name} of the graph.\n");
        let mut document = |head: &str, metadata: String, body: String| {
            text.push_str(head);
            text.push_str(&metadata);
            text.push_str(&body);
            text.push_str("---\n");
        };
        let account = self.metadata(service, name);
        document(
            "apiVersion: v1\nkind: ServiceAccount\n",
            account,
            String::new(),
        );
        let piece = to_yaml(&self.graph.excerpt(place));
        let piece: String = piece.lines().map(|line| format!("    {line}\n")).collect();
        let config = self.metadata(service, &format!("graph-{name}"));
        document(
            "apiVersion: v1\nkind: ConfigMap\n",
            config,
            format!("data:\n  graph.yaml: |\n{piece}"),
        );
        let published = match entry {
            None => (String::new(), String::new()),
            Some(number) => (
                "  type: NodePort\n".to_owned(),
                format!(
                    "      nodePort: {}\n",
                    usize::from(self.options.node_port) + number
                ),
            ),
        };
        let body = format!(
            "spec:\n{}  selector:\n    app: {quoted_name}\n  ports:\n    - name: {port_name}\n      port: {PORT}\n      targetPort: {PORT}\n{}",
            published.0, published.1
        );
        document(
            "apiVersion: v1\nkind: Service\n",
            self.metadata(service, name),
            body,
        );
        let head = "apiVersion: apps/v1\nkind: Deployment\n";
        document(head, self.metadata(service, name), self.deployment(service));
        if self.options.sidecars {
            let head = "apiVersion: networking.istio.io/v1\nkind: Sidecar\n";
            document(head, self.metadata(service, name), self.sidecar(service));
            for (policy, body) in policies(service) {
                let head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n";
                document(head, self.metadata(service, &policy), body);
            }
            if entry.is_some() && self.options.mtls == Mtls::Strict {
                let head = "# People come in without an identity.\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n";
                let body = format!(
                    "spec:\n  selector:\n    matchLabels:\n      app: {quoted_name}\n  mtls:\n    mode: PERMISSIVE\n"
                );
                document(head, self.metadata(service, name), body);
            }
        }
        text.truncate(text.len() - "---\n".len());
        text
    }

    fn deployment(&self, service: &GraphService) -> String {
        let name = quoted(&service.name);
        let port = if self.options.sidecars { BESIDE } else { PORT };
        let mut args = vec![
            "--service".to_owned(),
            name.clone(),
            "--listen".to_owned(),
            format!("$(POD_IP):{port}"),
        ];
        if self.options.threads != 1 {
            args.extend([
                "--threads".to_owned(),
                format!("\"{}\"", self.options.threads),
            ]);
        }
        if let Some(seed) = self.options.seed {
            args.extend(["--seed".to_owned(), format!("\"{seed}\"")]);
        }
        let args: String = args
            .iter()
            .map(|arg| format!("            - {arg}\n"))
            .collect();
        let command = "          command: [\"$(VOILE)\", graph, serve]\n          args:\n";
        let env = format!(
            "          env:\n            - name: VOILE_GRAPH\n              valueFrom:\n                configMapKeyRef:\n                  name: {}\n                  key: graph.yaml\n",
            quoted(&format!("graph-{}", service.name))
        );
        let mut text = pod(
            &name,
            service.replicas,
            &labels_without(service, "        ", &["app"]),
        );
        let _ = write!(text, "{command}{args}{env}");
        text
    }

    fn sidecar(&self, service: &GraphService) -> String {
        let (port_name, protocol) = port_of(service.protocol);
        let callees: Vec<usize> = service.calls().map(|call| call.service).collect();
        format!(
            "spec:\n  workloadSelector:\n    labels:\n      app: {}\n  ingress:\n    - port:\n        number: {PORT}\n        protocol: {protocol}\n        name: {port_name}\n      defaultEndpoint: 0.0.0.0:{BESIDE}\n      captureMode: NONE\n{}",
            quoted(&service.name),
            self.egress(&callees)
        )
    }

    /// Only what is called: a proxy knows what it uses.
    fn egress(&self, callees: &[usize]) -> String {
        let hosts: BTreeSet<String> = callees
            .iter()
            .map(|&callee| {
                let callee = &self.graph.services[callee];
                let namespace = self.namespace(callee);
                format!("{namespace}/{}.{namespace}.svc.cluster.local", callee.name)
            })
            .collect();
        let hosts: Vec<String> = match hosts.is_empty() {
            true => vec!["\"~/*\"".to_owned()],
            false => hosts.iter().map(|host| quoted(host)).collect(),
        };
        let lines: String = hosts
            .iter()
            .map(|host| format!("        - {host}\n"))
            .collect();
        format!("  egress:\n    - hosts:\n{lines}")
    }

    fn client(&self, rate: f64, connections: usize) -> Result<String, String> {
        let &place = self.entries.first().ok_or("the graph has no service")?;
        let entry = &self.graph.services[place];
        if entry.protocol != ServiceProtocol::Http {
            return Err(format!(
                "`{}` is gRPC: a client is made for HTTP entry points only",
                entry.name
            ));
        }
        let namespace = quoted(&self.options.namespace);
        let prefix = variable(
            entry,
            self.namespace(entry) != self.options.namespace,
            &self.options.namespace,
        );
        // A service may have any name.
        let mut name = "load-client".to_owned();
        while self.graph.find(&name).is_some() {
            name.push('x');
        }
        let metadata = format!("metadata:\n  name: {name}\n  namespace: {namespace}\n");
        let mut text = format!(
            "# Made by `voile graph mesh`: calls {} all the time.\napiVersion: v1\nkind: ServiceAccount\n{metadata}---\napiVersion: apps/v1\nkind: Deployment\n{metadata}",
            entry.name
        );
        text.push_str(&pod(&name, 1, ""));
        let _ = write!(
            text,
            "          command: [\"$(VOILE)\", load]\n          args:\n            - --rate\n            - \"{rate}\"\n            - --connections\n            - \"{connections}\"\n            - --duration\n            - 24h\n            - http://$({prefix}_SERVICE_HOST):$({prefix}_SERVICE_PORT)/\n"
        );
        if self.options.sidecars {
            let _ = write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\n{metadata}spec:\n  workloadSelector:\n    labels:\n      app: {name}\n{}",
                self.egress(&[place])
            );
        }
        Ok(text)
    }
}

/// So many policies, as isotope made them. Each allows a caller that does not exist, but the last allows all.
fn policies(service: &GraphService) -> impl Iterator<Item = (String, String)> {
    let selector = format!(
        "spec:\n  selector:\n    matchLabels:\n      app: {}\n  action: ALLOW\n  rules:\n",
        quoted(&service.name)
    );
    (1..=service.policies).map(move |number| {
        let rules = if number == service.policies {
            "    - {}\n".to_owned()
        } else {
            let nobody = format!("cluster.local/ns/nowhere/sa/nobody-{number}");
            format!("    - from:\n        - source:\n            principals: [{nobody}]\n")
        };
        (
            format!("{}-policy-{number}", service.name),
            format!("{selector}{rules}"),
        )
    })
}

/// A Deployment's `spec` up to its container's command.
fn pod(name: &str, replicas: u32, labels: &str) -> String {
    format!(
        "spec:\n  replicas: {replicas}\n  selector:\n    matchLabels:\n      app: {name}\n  template:\n    metadata:\n      labels:\n        app: {name}\n{labels}    spec:\n      serviceAccountName: {name}\n      containers:\n        - name: app\n          image: voile\n"
    )
}

fn port_of(protocol: ServiceProtocol) -> (&'static str, &'static str) {
    match protocol {
        ServiceProtocol::Http => ("http-web", "HTTP"),
        ServiceProtocol::Grpc => ("grpc", "GRPC"),
    }
}

fn labels(service: &GraphService, indent: &str) -> String {
    labels_without(service, indent, &[])
}

fn labels_without(service: &GraphService, indent: &str, but: &[&str]) -> String {
    let kept = service
        .labels
        .iter()
        .filter(|(key, _)| !but.contains(&&**key));
    kept.map(|(key, value)| format!("{indent}{}: {}\n", quoted(key), quoted(value)))
        .collect()
}

/// The beginning of the variables by which Kubernetes, or for other namespaces `voile up`, tells where a service is.
#[must_use]
pub fn variable(service: &GraphService, elsewhere: bool, default_namespace: &str) -> String {
    let upper = |text: &str| text.to_ascii_uppercase().replace(['-', '.'], "_");
    match elsewhere {
        false => upper(&service.name),
        true => {
            let namespace = service.namespace.as_deref().unwrap_or(default_namespace);
            format!("{}_{}", upper(&service.name), upper(namespace))
        }
    }
}
