//! Peer authentication as tables: which mode holds, and which connection may come in.

mod agreement;
mod cost;
mod tokens;

use voile_model::{Identity, Port, SourceFile, TrustDomain, check};
use voile_policy::{ConnectionFacts, DenialReason, Mode, Trust, effective, inbound};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\n\
spec: {containers: [{name: a}]}\nstatus: {podIP: 127.1.0.3}\n";

/// One row: case | policies joined by `;` | port | mode that holds | policy it comes from.
/// A policy: NAMESPACE/NAME[@MONTH] [app=SELECTED] [MODE] [PORT=MODE].
const TABLE: &str = "
nothing said                        |                                                  | 80 | PERMISSIVE | -
the mesh                            | root/m STRICT                                    | 80 | STRICT     | m
namespace over mesh                 | root/m STRICT; shop/n DISABLE                    | 80 | DISABLE    | n
another namespace                   | other/n STRICT                                   | 80 | PERMISSIVE | -
unset inherits                      | root/m STRICT; shop/n UNSET                      | 80 | STRICT     | m
silence inherits                    | root/m STRICT; shop/n                            | 80 | STRICT     | m
workload over namespace             | shop/n STRICT; shop/w app=web PERMISSIVE         | 80 | PERMISSIVE | w
unset workload inherits             | shop/n STRICT; shop/w app=web UNSET              | 80 | STRICT     | n
another workload                    | shop/w app=db STRICT                             | 80 | PERMISSIVE | -
an empty selector is none           | shop/n app= STRICT                               | 80 | STRICT     | n
port over workload                  | shop/w app=web STRICT 80=DISABLE                 | 80 | DISABLE    | w
a port not named inherits           | shop/w app=web STRICT 80=DISABLE                 | 81 | STRICT     | w
an unset port inherits              | shop/w app=web STRICT 80=UNSET                   | 80 | STRICT     | w
another port of a silent workload   | root/m STRICT; shop/w app=web 80=DISABLE         | 81 | STRICT     | m
a selector in the root is ignored   | root/m app=web STRICT                            | 80 | PERMISSIVE | -
the oldest of a namespace           | shop/young@02 STRICT; shop/old@01 DISABLE        | 80 | DISABLE    | old
the oldest of a workload            | shop/y@02 app=web STRICT; shop/o@01 app=web DISABLE | 80 | DISABLE | o
the oldest of the mesh              | root/young@02 STRICT; root/old@01 PERMISSIVE     | 80 | PERMISSIVE | old
without times the first is oldest   | shop/b STRICT; shop/a DISABLE                    | 80 | STRICT     | b
";

fn policy(notation: &str) -> String {
    let mut words = notation.split_whitespace();
    let (namespace, name) = words
        .next()
        .and_then(|word| word.split_once('/'))
        .expect("NAMESPACE/NAME");
    let namespace = namespace.replace("root", "istio-system");
    let (name, created) = match name.split_once('@') {
        Some((name, month)) => (
            name,
            format!(", creationTimestamp: \"2026-{month}-01T00:00:00Z\""),
        ),
        None => (name, String::new()),
    };
    let mut spec = String::new();
    for word in words {
        spec += &match word.split_once('=') {
            Some(("app", "")) => "  selector: {matchLabels: {}}\n".to_owned(),
            Some(("app", app)) => format!("  selector: {{matchLabels: {{app: {app}}}}}\n"),
            Some((port, mode)) => format!("  portLevelMtls: {{{port}: {{mode: {mode}}}}}\n"),
            None => format!("  mtls: {{mode: {word}}}\n"),
        };
    }
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {{name: \"{name}\", namespace: {namespace}{created}}}\nspec:\n{spec}"
    )
}

#[test]
fn the_nearest_word_about_mutual_tls_holds() {
    for row in TABLE.trim().lines() {
        let [name, policies, port, mode, by] =
            row.split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            panic!("not five columns: {row}");
        };
        let policies: String = policies
            .split(';')
            .filter(|p| !p.trim().is_empty())
            .map(policy)
            .collect();
        let (mesh, diagnostics) = check(
            &[SourceFile::new("mesh.yaml", format!("{POD}{policies}"))],
            None,
        );
        assert!(diagnostics.is_empty(), "{name}: {diagnostics:?}");
        let workload = mesh.workloads.values().next().expect("the pod");
        let found = effective(
            &mesh,
            workload,
            Port::new(port.parse().expect("a number")).expect("a port"),
        );
        let by_found = found
            .policy
            .as_ref()
            .map_or("-", |policy| &policy.name.name);
        assert_eq!(
            (format!("{:?}", found.mode).to_uppercase(), by_found),
            (mode.to_owned(), by),
            "{name}"
        );
    }
}

#[test]
fn a_connection_comes_in_by_mode_and_identity_only() {
    let ours: Identity = "spiffe://shop.example/ns/shop/sa/web".parse().unwrap();
    let alias: Identity = "spiffe://old.example/ns/shop/sa/web".parse().unwrap();
    let foreign: Identity = "spiffe://evil.example/ns/shop/sa/web".parse().unwrap();
    let trust = Trust::new(
        TrustDomain::new("shop.example").unwrap(),
        vec![TrustDomain::new("old.example").unwrap()],
    );
    let tls = ConnectionFacts::MutualTls;
    let rows = [
        (Mode::Disable, ConnectionFacts::Plaintext, Ok(None)),
        (
            Mode::Disable,
            tls(Some(&ours)),
            Err(DenialReason::MutualTlsUnderDisable),
        ),
        (
            Mode::Disable,
            tls(None),
            Err(DenialReason::MutualTlsUnderDisable),
        ),
        (Mode::Permissive, ConnectionFacts::Plaintext, Ok(None)),
        (Mode::Permissive, tls(Some(&ours)), Ok(Some(&ours))),
        (Mode::Permissive, tls(Some(&alias)), Ok(Some(&alias))),
        (
            Mode::Permissive,
            tls(Some(&foreign)),
            Err(DenialReason::ForeignTrustDomain),
        ),
        (Mode::Permissive, tls(None), Err(DenialReason::NoIdentity)),
        (
            Mode::Strict,
            ConnectionFacts::Plaintext,
            Err(DenialReason::PlaintextUnderStrict),
        ),
        (Mode::Strict, tls(Some(&ours)), Ok(Some(&ours))),
        (Mode::Strict, tls(Some(&alias)), Ok(Some(&alias))),
        (
            Mode::Strict,
            tls(Some(&foreign)),
            Err(DenialReason::ForeignTrustDomain),
        ),
        (Mode::Strict, tls(None), Err(DenialReason::NoIdentity)),
    ];
    for (mode, facts, expected) in rows {
        let found = inbound(mode, facts, &trust);
        let short = found
            .as_ref()
            .map(|permit| permit.peer())
            .map_err(voile_policy::Denial::reason);
        assert_eq!(short, expected, "{mode:?} {facts:?}");
        assert_eq!(
            found.is_ok_and(|permit| permit.is_mutual_tls()),
            matches!(expected, Ok(Some(_)))
        );
    }
}
