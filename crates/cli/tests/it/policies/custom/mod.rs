//! CUSTOM policies with real processes: a request waits for an external service's word over gRPC or HTTP, which may change
//! it, refuse it in words of its own, be slow, be dead or lie.

pub(crate) mod authorizer;
mod beside_envoy;
mod connections;
mod over_grpc;
pub(crate) mod over_http;
mod over_http2;
mod under_way;
mod with_tokens;

use std::net::SocketAddr;

use crate::mesh::{Answer, HTTP_PORT, Mesh, exchange, wait_until};

/// MeshConfig with one provider called `ext`, whose fields are in flow style, at a service outside the mesh.
pub(crate) fn provider(kind: &str, at: SocketAddr, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         extensionProviders:\n    - name: ext\n      {kind}: {{service: shop/ext.test, port: {port}{fields}}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: ext, namespace: shop}}\nspec:\n  \
         hosts: [ext.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  \
         ports: [{{number: {port}, name: {name}, protocol: {protocol}}}]\n  endpoints: [{{address: {address}}}]\n",
        port = at.port(),
        address = at.ip(),
        name = if kind.ends_with("Grpc") {
            "grpc"
        } else {
            "http"
        },
        protocol = if kind.ends_with("Grpc") {
            "GRPC"
        } else {
            "HTTP"
        },
    )
}

/// A CUSTOM policy for the server; `rest` is its rules.
fn custom(rest: &str) -> String {
    policy(
        "ask",
        &format!("action: CUSTOM, provider: {{name: ext}}, {rest}"),
    )
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, {spec}}}\n"
    )
}

/// Everything that is sent to the HTTP port.
fn all_requests() -> String {
    custom(&format!(
        "rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\"]}}}}]}}]"
    ))
}

fn set(mesh: &Mesh, resources: &str) {
    let file = mesh.config().join("custom.yaml");
    let new = mesh.config().join(".custom.new");
    std::fs::write(&new, resources).expect("resources");
    std::fs::rename(new, file).expect("in place");
}

/// Waits until every worker obeys: each gets the change by a message of its own.
pub(crate) fn in_force(what: &str, mut seen: impl FnMut() -> bool) {
    const IN_A_ROW: usize = 12; // connections go to the worker with the fewest, so that both get some of these
    wait_until(what, || (0..IN_A_ROW).all(|_| seen()));
}

fn ask(mesh: &Mesh, request: &str) -> Answer {
    let head = format!("{request}\r\nHost: server\r\nConnection: close\r\n\r\n");
    exchange(mesh.http(), head.as_bytes()).expect("an answer")
}

fn path(mesh: &Mesh, path: &str) -> Answer {
    ask(mesh, &format!("GET {path} HTTP/1.1"))
}

fn status(mesh: &Mesh, wanted: &str) -> u16 {
    path(mesh, wanted).status
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// A listener on a free port.
pub(crate) fn free() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port")
}
