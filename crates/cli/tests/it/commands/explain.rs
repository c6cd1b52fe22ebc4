//! `voile explain`, `voile who-can` and `voile generate policies`, from their command lines.

use std::path::Path;

use crate::mesh::Process;

const MESH: &str = r#"apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-db, port: 81, targetPort: 9000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {serviceAccountName: web, containers: [{name: app, image: none, command: [web], ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {serviceAccountName: client, containers: [{name: app, image: none, command: [client]}]}
"#;

const POLICIES: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: shop}
spec:
  rules:
  - from: [{source: {principals: ["cluster.local/ns/shop/sa/client"]}}]
    to: [{operation: {methods: [GET], paths: ["/a*"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: ["*/admin"], ports: ["8080"]}}]
"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("mesh.yaml"), MESH).expect("the mesh");
    std::fs::write(folder.path().join("policies.yaml"), POLICIES).expect("the policies");
    folder
}

fn voile(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let output = Process::output(|voile| {
        let folder = folder.to_string_lossy();
        voile.args(arguments.iter().map(|word| word.replace("DIR", &folder)));
    });
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn explain_names_the_rule_that_decides_and_what_would_have_to_be_otherwise() {
    let folder = folder();
    let ask = |more: &[&str]| {
        let mut words = vec!["explain", "DIR", "--to", "web.shop:80"];
        words.extend(more);
        voile(&words, folder.path())
    };
    let client = ["--from", "spiffe://cluster.local/ns/shop/sa/client"];
    let (code, said) = ask(&[client[0], client[1], "--path", "/a/b"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("ALLOWED by Deployment shop/web, port 8080"),
        "{said}"
    );
    assert!(
        said.contains("AuthorizationPolicy shop/readers, rule 0"),
        "{said}"
    );
    assert!(said.contains("policies.yaml:6:"), "{said}");

    let (code, said) = ask(&[client[0], client[1], "--path", "/a/x/../admin"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("DENIED") && said.contains("shop/no-admin, rule 0"),
        "{said}"
    );
    assert!(
        said.contains("it denies while") && said.contains("request.path is one of */admin"),
        "{said}"
    );

    let (code, said) = ask(&["--from", "shop/other", "--method", "POST", "--path", "/a"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("none of their rules matches"), "{said}");
    assert!(
        said.contains("source.principal is one of cluster.local/ns/shop/sa/client"),
        "{said}"
    );
    assert!(said.contains("request.method is one of GET"), "{said}");

    let (code, said) = ask(&["--output", "json"]);
    assert_eq!(code, Some(1), "{said}");
    let read: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(read[0]["allowed"], false, "{said}");

    let (code, said) = voile(&["explain", "DIR", "--to", "nobody:80"], folder.path());
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn who_can_tells_what_each_caller_may() {
    let folder = folder();
    let (code, said) = voile(
        &["who-can", "DIR", "web", "--namespace", "shop"],
        folder.path(),
    );
    assert_eq!(code, Some(0), "{said}");
    // HTTP's words allow nothing on an opaque port.
    let expected = "\
Deployment shop/web, port 80
  if not (request.path is one of */admin) and request.method is one of GET and request.path is one of /a*
    spiffe://cluster.local/ns/shop/sa/client
  nothing (no ALLOW rule can match)
    plaintext
    spiffe://cluster.local/ns/shop/sa/web
Deployment shop/web, port 81
  nothing (no ALLOW rule can match)
    plaintext
    spiffe://cluster.local/ns/shop/sa/client
    spiffe://cluster.local/ns/shop/sa/web
";
    assert_eq!(said, expected);
    let (_, json) = voile(
        &["who-can", "DIR", "shop/web", "--output", "json"],
        folder.path(),
    );
    let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(
        read.as_array().is_some_and(|rows| rows.len() == 6),
        "{json}"
    );
}

const EDGE: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: edge, namespace: shop}
spec:
  selector: {matchLabels: {istio: edge}}
  template:
    metadata:
      labels: {istio: edge, sidecar.istio.io/inject: "true"}
      annotations: {inject.istio.io/templates: gateway}
    spec: {serviceAccountName: edge, containers: [{name: istio-proxy, image: auto}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example.com"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: [shop.example.com]
  gateways: [edge]
  http: [{route: [{destination: {host: web, port: {number: 80}}}]}]
"#;

#[test]
fn who_can_marks_gateways_and_names_the_routes_that_lead_from_them() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    std::fs::write(folder.path().join("edge.yaml"), EDGE).expect("written");
    let (code, said) = voile(&["who-can", "DIR", "shop/web"], folder.path());
    assert_eq!(code, Some(0), "{said}");
    let place = folder.path().join("edge.yaml").display().to_string();
    let expected = format!(
        "\
Deployment shop/web, port 80
Deployment shop/web, port 81
  everything
    plaintext
    spiffe://cluster.local/ns/shop/sa/client
    spiffe://cluster.local/ns/shop/sa/edge (gateway)
    spiffe://cluster.local/ns/shop/sa/web
from outside of the mesh
  shop.example.com at Gateway shop/edge, by VirtualService shop/edge in {place}:21:18
"
    );
    assert_eq!(said, expected);
    let question = ["who-can", "DIR", "shop/web", "-o", "json"];
    let (_, json) = voile(&question, folder.path());
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    let gateways = rows.iter().filter(|row| row["role"] == "gateway");
    let callers: Vec<&str> = gateways.filter_map(|row| row["caller"].as_str()).collect();
    assert_eq!(
        callers, ["spiffe://cluster.local/ns/shop/sa/edge"; 2],
        "{json}"
    );
}

/// A gateway whose Service names its ports otherwise than the servers that listen there.
const OUT: &str = r#"apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {selector: {app: out}, ports: [{name: https, port: 443, targetPort: 8443}, {name: http-raw, port: 81, targetPort: 8081}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: out, namespace: shop}
spec:
  selector: {matchLabels: {app: out}}
  template:
    metadata: {labels: {app: out}, annotations: {inject.istio.io/templates: gateway}}
    spec: {containers: [{name: istio-proxy, image: auto}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: out, namespace: shop}
spec:
  selector: {app: out}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [news.example], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 81, name: tls, protocol: TLS}, hosts: [other.example], tls: {mode: PASSTHROUGH}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: out, namespace: shop}
spec:
  selector: {matchLabels: {app: out}}
  rules: [{from: [{source: {serviceAccounts: [client]}}], to: [{operation: {methods: [GET]}}]}]
"#;

#[test]
fn explain_reads_the_protocol_of_a_gateway_from_its_servers() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    std::fs::write(folder.path().join("out.yaml"), OUT).expect("written");
    let question = [
        "explain",
        "DIR",
        "--from",
        "shop/client",
        "--method",
        "GET",
        "--to",
    ];
    let terminated = voile(&[&question[..], &["out.shop:443"]].concat(), folder.path());
    assert!(
        terminated
            .1
            .starts_with("ALLOWED by Deployment shop/out, port 8443"),
        "{terminated:?}"
    );
    // Nobody reads a method of what passes through: a rule about methods allows nothing there.
    let passed = voile(&[&question[..], &["out.shop:81"]].concat(), folder.path());
    assert!(
        passed
            .1
            .starts_with("DENIED by Deployment shop/out, port 8081"),
        "{passed:?}"
    );
    let (_, said) = voile(&["who-can", "DIR", "shop/out"], folder.path());
    let (https, raw) = said.split_once("port 81\n").expect("both ports");
    assert!(https.contains("request.method is one of GET"), "{said}");
    assert!(!raw.contains("request.method"), "{said}");
}

#[test]
fn misspelt_callers_and_services_are_told_with_what_was_meant() {
    let folder = folder();
    for (from, to, expected) in [
        ("shop/clinet", "web.shop:80", "did you mean shop/client?"),
        ("shop/client", "wbe.shop:80", "did you mean shop/web?"),
        ("bank/client", "shop/web:80", "did you mean shop/client?"),
        ("shop/client", "web.bank:80", "did you mean shop/web?"),
    ] {
        let words = ["explain", "DIR", "--from", from, "--to", to];
        let (_, said) = voile(&words, folder.path());
        assert!(said.contains(expected), "{from} {to}: {said}");
    }
}

#[test]
fn generated_policies_are_right_the_same_for_a_seed_and_hit_where_they_are_told() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    let kinds = [
        "paths",
        "source-ips",
        "namespaces",
        "principals",
        "request-principals",
        "headers",
        "mixed",
    ];
    for kind in kinds {
        let words = [
            "generate",
            "policies",
            "--kind",
            kind,
            "--rules",
            "50",
            "--policies",
            "7",
            "--namespace",
            "shop",
            "--selector",
            "app=web",
            "--peer-authentications",
            "2",
            "--seed",
            "9",
        ];
        let (code, made) = voile(&words, folder.path());
        assert_eq!(code, Some(0), "{made}");
        assert_eq!(voile(&words, folder.path()).1, made, "{kind}");
        std::fs::write(folder.path().join("generated.yaml"), &made).expect("written");
        let (code, said) = voile(&["analyze", "DIR"], folder.path());
        assert_eq!(code, Some(0), "{kind}: {said}");
        let rules = made
            .lines()
            .filter(|line| line.starts_with("  - {"))
            .count();
        assert_eq!(
            (rules, made.matches("kind: AuthorizationPolicy").count()),
            (50, 7),
            "{kind}"
        );
    }
    for (hit, allowed) in [("first", 0), ("last", 0), ("17", 0), ("miss", 1)] {
        let words = [
            "generate",
            "policies",
            "--rules",
            "50",
            "--policies",
            "5",
            "--namespace",
            "shop",
            "--hit",
            hit,
        ];
        let (_, made) = voile(&words, folder.path());
        std::fs::write(folder.path().join("generated.yaml"), &made).expect("written");
        let (code, said) = voile(
            &["explain", "DIR", "--to", "shop/web:80", "--path", "/"],
            folder.path(),
        );
        assert_eq!(code, Some(allowed), "{hit}: {said}");
    }
}

#[test]
fn generated_policies_do_what_they_are_told_to_do_and_are_tried_out_where_they_are_told() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    let generate = |more: &str| {
        let words = format!("generate policies --rules 20 --namespace shop {more}");
        voile(&words.split_whitespace().collect::<Vec<_>>(), folder.path()).1
    };
    for (more, verdict) in [
        ("--action deny --hit last", "DENIED"),
        ("--action deny --hit miss", "ALLOWED"),
        (
            "--action audit --hit last",
            "AUDIT policies mark it: shop/generated-0",
        ),
        (
            "--action deny --hit last --dry-run",
            "DENY policies on dry run would deny it: shop/generated-0",
        ),
        (
            "--action allow --hit miss --dry-run",
            "ALLOW policies on dry run would deny it",
        ),
        (
            "--action allow --hit last --dry-run",
            "ALLOW policies on dry run would allow it: shop/generated-0",
        ),
    ] {
        std::fs::write(folder.path().join("generated.yaml"), generate(more)).expect("written");
        let (_, said) = voile(
            &["explain", "DIR", "--to", "shop/web:80", "--path", "/"],
            folder.path(),
        );
        assert!(said.contains(verdict), "{more}: {said}");
    }
    let (one, other) = (generate("--seed 1"), generate("--seed 2"));
    assert_ne!(one, other, "another seed makes other policies");
}

/// Makes resources with tokens into the folder; gives the tokens.
fn generate_tokens(folder: &Path, kind: &str, hit: &str) -> Vec<String> {
    let tokens = tempfile::tempdir().expect("a folder");
    let tokens = tokens.path().join("tokens");
    let words = format!(
        "generate policies --kind {kind} --rules 40 --policies 4 --namespace shop --hit {hit} --seed 3 --token-count 2 --tokens {}",
        tokens.display()
    );
    let words: Vec<&str> = words.split(' ').collect();
    let (code, made) = voile(&words, folder);
    assert_eq!(code, Some(0), "{made}");
    let written = std::fs::read_to_string(&tokens).expect("tokens");
    assert_eq!(voile(&words, folder).1, made, "{kind}");
    let again = std::fs::read_to_string(&tokens).expect("tokens");
    assert_eq!(again, written, "the same for a seed");
    std::fs::write(folder.join("generated.yaml"), &made).expect("written");
    let (code, said) = voile(&["analyze", "DIR"], folder);
    assert_eq!(code, Some(0), "{kind}: {said}");
    written.lines().map(str::to_owned).collect()
}

#[test]
fn generated_issuers_and_their_tokens_fit_and_explain_says_so() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    let explain = |token: &str| {
        let words = ["explain", "DIR", "--to", "shop/web:80", "--jwt", token];
        voile(&words, folder.path())
    };
    let (good, name) = ("token: good, of", "generated.example/subject");
    let stranger = "token: refused: Jwt issuer is not configured (401)";
    for (kind, hit, code, part) in [
        (
            "jwt",
            "first",
            0,
            format!("{good} https://issuer-0.{name}-0"),
        ),
        ("jwt", "17", 0, format!("{good} https://issuer-17.{name}-0")),
        ("jwt", "miss", 1, stranger.to_owned()),
        (
            "request-principals",
            "last",
            0,
            format!("{good} https://issuer-0.{name}"),
        ),
        (
            "request-principals",
            "miss",
            1,
            "none of their rules".to_owned(),
        ),
    ] {
        let written = generate_tokens(folder.path(), kind, hit);
        assert_eq!(written.len(), 2, "{kind}");
        let (found, said) = explain(&written[0]);
        assert_eq!(found, Some(code), "{kind} {hit}: {said}");
        assert!(said.contains(&part), "{kind} {hit}: {said}");
        if code == 0 {
            let policy = "RequestAuthentication shop/generated";
            assert!(said.contains(policy), "{said}");
            let forged = format!("{}x", &written[0][..written[0].len() - 1]);
            let (found, said) = explain(&forged);
            assert_eq!(found, Some(1), "{said}");
            let part = "the token is refused, before any policy decides (401)";
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn explain_looks_at_a_token_where_its_issuer_is_believed_at_a_waypoint() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    let token = generate_tokens(folder.path(), "jwt", "first").remove(0);
    let mesh = folder.path().join("mesh.yaml");
    let text = std::fs::read_to_string(&mesh).expect("read");
    let named = "metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: gate}}\nspec: {selector: {app: web}, ports";
    let text = text.replacen(
        "metadata: {name: web, namespace: shop}\nspec: {selector: {app: web}, ports",
        named,
        1,
    );
    let gate = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gate, namespace: shop}\n\
        spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}\n";
    std::fs::write(&mesh, text + gate).expect("written");
    let client = "spiffe://cluster.local/ns/shop/sa/client";
    let explain = |token: &str| {
        let words = ["explain", "DIR", "--to", "shop/web:80", "--from", client];
        voile(&[&words[..], &["--jwt", token]].concat(), folder.path())
    };
    let (code, said) = explain(&token);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("tokens are not verified"),
        "it selects Pods, not the service: {said}"
    );
    let generated = folder.path().join("generated.yaml");
    let written = std::fs::read_to_string(&generated).expect("read");
    let aimed = "spec:\n  targetRefs: [{group: \"\", kind: Service, name: web}]\n";
    let of_it = written.find("kind: RequestAuthentication").expect("there");
    let (before, after) = written.split_at(of_it);
    std::fs::write(
        &generated,
        before.to_owned() + &after.replacen("spec:\n", aimed, 1),
    )
    .expect("written");
    let limit = |name: &str, to: &str| {
        format!(
            "---\napiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{targetRefs: [{{kind: Service, name: {to}}}], rules: [{{limits: [{{requests: 7, per: 1s}}]}}]}}\n"
        )
    };
    let other = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop, labels: {istio.io/use-waypoint: gate}}\n\
        spec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n";
    let limits = limit("aimed", "web") + &limit("beside", "other") + other;
    std::fs::write(folder.path().join("limits.yaml"), limits).expect("written");
    let (code, said) = explain(&token);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("token: good, of"), "{said}");
    assert!(
        said.contains("7 in 1s, 7 at once (rule `aimed`") && !said.contains("`beside`"),
        "{said}"
    );
    let (code, said) = explain(&format!("{}x", &token[..token.len() - 1]));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("refused") && said.contains("waypoint shop/gate"),
        "{said}"
    );
}

/// A mesh whose CUSTOM policy asks about what has an `authorization` header below `/asked`.
fn asking() -> (tempfile::TempDir, String) {
    let folder = folder();
    std::fs::remove_file(folder.path().join("policies.yaml")).expect("removed");
    let token = generate_tokens(folder.path(), "jwt", "first").remove(0);
    let asks = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    \
         extensionProviders:\n    - name: login\n      envoyExtAuthzHttp: {service: shop/web.shop.svc.cluster.local, port: 80}\n\
         ---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask, namespace: shop}\nspec:\n  \
         action: CUSTOM\n  provider: {name: login}\n  rules:\n  - to: [{operation: {paths: [\"/asked*\"]}}]\n    \
         when: [{key: \"request.headers[authorization]\", values: [\"*\"]}]\n";
    std::fs::write(folder.path().join("ask.yaml"), asks).expect("written");
    (folder, token)
}

#[test]
fn explain_says_who_is_asked_before_the_token_is_looked_at() {
    let (folder, good) = asking();
    let ask = |path: &str, token: &str, more: &[&str]| {
        let words = [
            "explain",
            "DIR",
            "--to",
            "shop/web:80",
            "--path",
            path,
            "--jwt",
            token,
        ];
        voile(&[&words, more].concat(), folder.path())
    };
    let asked = "asked first: provider `login`, by AuthorizationPolicy shop/ask, rule 0, in ";
    // The external service sees the token's header, though policies no longer see it.
    let (code, said) = ask("/asked", &good, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains(asked) && said.contains("ask.yaml:17:"),
        "{said}"
    );
    assert!(said.starts_with("ASKED ABOUT by Deployment"), "{said}");
    assert!(
        said.contains("if the provider allows the request, so do the other policies"),
        "{said}"
    );
    let (code, said) = ask("/asked", "x.y.z", &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(asked), "{said}");
    assert!(said.starts_with("DENIED by "), "{said}");
    let part = "the token is refused, unless the provider of the CUSTOM policy denies the request or replaces the token (401)";
    assert!(said.contains(part), "{said}");
    let (_, said) = ask("/asked", "x.y.z", &["--output", "json"]);
    let read: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(read[0]["asked"]["policy"], "shop/ask", "{said}");
    // If no CUSTOM rule matches, no service is asked.
    let (code, said) = ask("/", "x.y.z", &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        !said.contains("asked first") && said.contains("before any policy decides (401)"),
        "{said}"
    );
    let (code, said) = ask("/", &good, &[]);
    assert_eq!(
        (code, said.contains("asked first")),
        (Some(0), false),
        "{said}"
    );
}

#[test]
fn who_can_tells_who_is_asked() {
    let (folder, _) = asking();
    let (code, said) = voile(&["who-can", "DIR", "shop/web"], folder.path());
    assert_eq!(code, Some(0), "{said}");
    let part = "if (`login` allows or not (request.path is one of /asked* and request.headers[authorization] is one of *))";
    assert!(said.contains(part), "{said}");
    let file = folder.path().join("ask.yaml");
    let text = std::fs::read_to_string(&file).expect("written");
    let (before, _) = text.split_once("  rules:").expect("rules");
    std::fs::write(&file, format!("{before}  rules: [{{}}]\n")).expect("written");
    let (code, said) = voile(&["who-can", "DIR", "shop/web"], folder.path());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("if `login` allows"), "{said}");
}

#[test]
fn explain_tells_how_many_of_the_requests_that_are_let_in_may_come() {
    let folder = folder();
    let limits = "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {name: web, namespace: shop}\nspec:\n  \
         targetRefs: [{kind: Service, name: web}]\n  \
         global: {service: web.shop.svc.cluster.local, port: 80, domain: d}\n  rules:\n  \
         - {name: few, match: [{uri: {prefix: /a}}], limits: [{requests: 5, per: 1s, burst: 9, by: {headers: [x-user]}}]}\n  \
         - {name: all, descriptors: [{entries: [{key: who, identity: true}]}]}\n";
    std::fs::write(folder.path().join("limits.yaml"), limits).expect("limits");
    let from = "spiffe://cluster.local/ns/shop/sa/client";
    let explain = |path: &str| {
        let words = [
            "explain",
            "DIR",
            "--to",
            "web.shop:80",
            "--from",
            from,
            "--path",
            path,
        ];
        voile(&words, folder.path()).1
    };
    let said = explain("/ab");
    for line in [
        "limit: requests that match by uri: 5 in 1s, 9 at once, by header x-user (rule `few` of RateLimit shop/web, in ",
        "limit: every request: counted by web.shop.svc.cluster.local:80 in domain `d` with 1 hits for who=the identity, rejected while it is unreachable (rule `all`",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(
        !explain("/x").contains("limit:"),
        "who is denied is not counted"
    );
}
