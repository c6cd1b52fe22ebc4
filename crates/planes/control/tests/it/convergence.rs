//! Any sequence of edits ends where a fresh start begins.

use voile_control::translate::translate;
use voile_model::SourceFile;

/// Documents that may or may not be there; `%` becomes a number, so that variants exist.
const DOCUMENTS: [&str; 6] = [
    "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {selector: {app: a}, ports: [{name: http, port: 8%, targetPort: 8080}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: a-1, namespace: shop, labels: {app: a, sidecar.istio.io/inject: \"true\"}}\nspec: {serviceAccountName: a, containers: [{name: app, image: none}]}\nstatus: {podIP: 127.1.0.%}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: a-2, namespace: shop, labels: {app: a}}\nspec: {serviceAccountName: a%, containers: [{name: app, image: none}]}\nstatus: {podIP: 127.1.1.%}\n",
    "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n",
    "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: all, namespace: shop}\nspec: {egress: [{port: {number: 8%, protocol: HTTP, name: http}, bind: 127.1.0.1, captureMode: NONE, hosts: [\"./*\"]}]}\n",
    "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: out, namespace: shop}\nspec: {hosts: [out%.example.com], ports: [{number: 443, name: tls, protocol: TLS}], resolution: STATIC, endpoints: [{address: 192.0.2.%}]}\n",
];

fn files(random: &mut fastrand::Rng) -> Vec<SourceFile> {
    let mut files = Vec::new();
    for (index, document) in DOCUMENTS.iter().enumerate() {
        if random.u8(0..4) > 0 {
            let text = document.replace('%', &random.u8(1..4).to_string());
            files.push(SourceFile::new(format!("{index}.yaml"), text));
        }
    }
    files
}

#[test]
fn any_sequence_of_edits_ends_where_a_fresh_start_begins() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut mesh, mut snapshot) = (None, None);
        for step in 0..8 {
            let files = files(&mut random);
            let (next, diagnostics) = voile_model::check(&files, mesh.as_ref());
            let errors: Vec<_> = diagnostics.iter().filter(|d| d.is_error()).collect();
            assert!(errors.is_empty(), "seed {seed} step {step}: {errors:?}");
            let (edited, _) = translate(&next, snapshot.as_ref());
            let (fresh, _) = translate(&voile_model::check(&files, None).0, None);
            assert_eq!(edited, fresh, "seed {seed} step {step}");
            (mesh, snapshot) = (Some(next), Some(edited));
        }
    }
}
