//! A gateway's Envoy, value by value: by whose name and certificate it takes whom, for which hosts, after which rules, and where that
//! leads.

use serde_json::{Value, json};
use voile_envoy::{Configuration, InterceptMode, WrittenKeys, translate};
use voile_model::{Namespace, SourceFile, WorkloadKey};

/// A gateway before a service of HTTP, of HTTP/2, and of whatever comes; and Secrets, whole and not.
const MESH: &str = r#"
{apiVersion: v1, kind: Pod, metadata: {name: gateway, namespace: shop, labels: {istio: ingress, sidecar.istio.io/inject: "true"}, annotations: {inject.istio.io/templates: gateway}}, spec: {containers: [{name: istio-proxy}]}, status: {phase: Running, podIP: 127.9.0.4}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: raw, port: 81, targetPort: 8081}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {app: web}}, spec: {containers: [{name: app}]}, status: {phase: Running, podIP: 127.9.0.11}}
---
{apiVersion: v1, kind: Secret, metadata: {name: first, namespace: shop}, stringData: {tls.crt: first's, tls.key: first's key}}
---
{apiVersion: v1, kind: Secret, metadata: {name: second, namespace: shop}, stringData: {tls.crt: second's, tls.key: second's key, ca.crt: second's clients, ca.crl: second's list}}
---
{apiVersion: v1, kind: Secret, metadata: {name: half, namespace: shop}, stringData: {tls.crt: half's}}
---
{apiVersion: v1, kind: Secret, metadata: {name: far, namespace: far}, stringData: {tls.crt: far's, tls.key: far's key}}
"#;

const PLAIN: &str = "gateway_127.9.0.4_80";
const SECURE: &str = "gateway_127.9.0.4_443";
const WEB: &str = "outbound|80||web.shop.svc.cluster.local";
const RAW: &str = "outbound|81||web.shop.svc.cluster.local";
const ISTIO: &str = "apiVersion: networking.istio.io/v1\nkind:";

/// Configuration of the gateway's Envoy with these further resources.
fn told(resources: &str) -> Configuration {
    told_in(MESH, resources, "gateway")
}

/// The same of a workload in a mesh.
fn told_in(mesh: &str, resources: &str, workload: &str) -> Configuration {
    let files = [("mesh.yaml", mesh), ("edge.yaml", resources)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{error:?}");
    let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), workload);
    // Nothing is redirected to a gateway, whatever it says.
    translate(
        &mesh,
        &mesh.workloads[&key],
        InterceptMode::Redirect,
        &WrittenKeys,
    )
}

/// A Gateway with these servers.
fn gateway(servers: &str) -> String {
    format!(
        "{ISTIO} Gateway\nmetadata: {{name: edge, namespace: shop}}\nspec: {{selector: {{istio: ingress}}, servers: [{servers}]}}\n---\n"
    )
}

/// A VirtualService of a namespace for these hosts, with these routes.
fn routes(namespace: &str, name: &str, hosts: &str, http: &str) -> String {
    format!(
        "{ISTIO} VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{hosts: [{hosts}], gateways: [shop/edge], http: [{http}]}}\n---\n"
    )
}

fn plain(hosts: &str) -> String {
    format!("{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [{hosts}]}}")
}

fn secure(hosts: &str, tls: &str) -> String {
    format!(
        "{{port: {{number: 443, name: https, protocol: HTTPS}}, hosts: [{hosts}], tls: {{{tls}}}}}"
    )
}

/// Somebody's.
const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
const TO_WEB: &str = "{route: [{destination: {host: web, port: {number: 80}}}]}";

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn chains<'a>(made: &'a Configuration, listener: &str) -> &'a [Value] {
    list(&made.listeners[listener]["filter_chains"])
}

/// The last filter of a chain, configured.
fn filter(chain: &Value) -> &Value {
    let last = list(&chain["filters"]).last().expect("a filter");
    &last["typed_config"]
}

fn shown(chain: &Value) -> &Value {
    &chain["transport_socket"]["typed_config"]
}

fn limits(made: &Configuration) -> Vec<&'static str> {
    made.limits.iter().map(|one| one.name.as_str()).collect()
}

/// The hosts of a configuration of routes, each with what its routes do.
fn hosts(made: &Configuration, name: &str) -> Value {
    let route = |route: &Value| {
        let kinds = ["route", "redirect", "direct_response"];
        let kind = kinds.into_iter().find(|kind| !route[*kind].is_null());
        let kind = kind.expect("a kind of route");
        match kind {
            "route" => route[kind]["cluster"].clone(),
            "direct_response" => route[kind]["status"].clone(),
            _ => json!(kind),
        }
    };
    let host = |host: &Value| {
        let routes: Vec<Value> = list(&host["routes"]).iter().map(route).collect();
        json!([host["domains"], routes])
    };
    list(&made.routes[name]["virtual_hosts"])
        .iter()
        .map(host)
        .collect()
}

#[test]
fn a_listener_of_tls_looks_for_the_name_that_is_asked_for_and_takes_no_session_up_again() {
    let tls = "mode: SIMPLE, credentialName: first";
    let made = told(&gateway(&secure("a.example", tls)));
    let listener = &made.listeners[SECURE];
    assert_eq!(
        listener["address"]["socket_address"],
        json!({ "address": "127.9.0.4", "port_value": 443 })
    );
    let looks: Vec<&Value> = list(&listener["listener_filters"])
        .iter()
        .map(|filter| &filter["name"])
        .collect();
    assert_eq!(looks, ["envoy.filters.listener.tls_inspector"]);
    let shown = shown(&chains(&made, SECURE)[0]);
    assert_eq!(
        shown["common_tls_context"]["alpn_protocols"],
        json!(["h2", "http/1.1"])
    );
    for kept in ["stateless", "stateful"] {
        let field = format!("disable_{kept}_session_resumption");
        assert_eq!(shown[&field], true);
    }
}

#[test]
fn each_server_of_tls_is_told_by_its_names_and_has_its_own_hosts_and_clients() {
    let servers = [
        secure(
            "a.example, \"*.a.example\"",
            "mode: SIMPLE, credentialName: first",
        ),
        secure("b.example", "mode: MUTUAL, credentialName: second"),
        secure("\"*\"", "mode: OPTIONAL_MUTUAL, credentialName: second"),
    ];
    let made = told(&(gateway(&servers.join(", ")) + &routes("shop", "all", "\"*\"", TO_WEB)));
    assert_eq!(limits(&made), [""; 0]);
    let clients = Some("kubernetes://shop/second-cacert");
    let own = json!(["a.example", "*.a.example"]);
    let open = json!(["*.a.example", "a.example"]);
    let b = json!(["b.example"]);
    let rows = [
        (own, "first", None, false, open),
        (b.clone(), "second", clients, true, b),
        (Value::Null, "second", clients, false, json!(["*"])),
    ];
    let chains = chains(&made, SECURE);
    assert_eq!(chains.len(), rows.len());
    let rows = rows.into_iter().zip(chains).enumerate();
    for (number, ((names, secret, clients, demands, open), chain)) in rows {
        let matched = &chain["filter_chain_match"];
        assert_eq!(matched["transport_protocol"], "tls", "{names}");
        assert_eq!(matched["server_names"], names);
        let asks = &shown(chain)["require_client_certificate"];
        assert_eq!(*asks, demands, "{names}");
        let tls = &shown(chain)["common_tls_context"];
        let certificate = &tls["tls_certificate_sds_secret_configs"][0]["name"];
        assert_eq!(*certificate, format!("kubernetes://shop/{secret}"));
        let believed = &tls["validation_context_sds_secret_config"]["name"];
        assert_eq!(*believed, json!(clients), "{names}");
        let own = format!("{SECURE}~shop/edge~{number}");
        assert_eq!(filter(chain)["rds"]["route_config_name"], own);
        let hosts = hosts(&made, &own);
        let domains = list(&hosts).iter().flat_map(|host| list(&host[0]).to_vec());
        assert_eq!(domains.collect::<Value>(), open, "{names}");
    }
}

#[test]
fn a_name_belongs_to_the_oldest_server_that_has_it() {
    let servers = [
        secure("a.example", "mode: SIMPLE, credentialName: first"),
        secure(
            "a.example, b.example",
            "mode: SIMPLE, credentialName: second",
        ),
        secure("b.example", "mode: SIMPLE, credentialName: first"),
    ];
    let made = told(&gateway(&servers.join(", ")));
    let names: Vec<&Value> = chains(&made, SECURE)
        .iter()
        .map(|chain| &chain["filter_chain_match"]["server_names"])
        .collect();
    assert_eq!(names, [&json!(["a.example"]), &json!(["b.example"])]);
    assert_eq!(limits(&made), ["listener-twice"]);
}

#[test]
fn what_is_shown_is_a_secret_of_the_gateways_own_namespace_and_without_one_nobody_is_let_in() {
    let rows = [
        ("mode: SIMPLE, credentialName: first", true),
        ("mode: SIMPLE, credentialName: \"kubernetes://first\"", true),
        (
            "mode: SIMPLE, credentialName: \"kubernetes://shop/first\"",
            true,
        ),
        (
            "mode: SIMPLE, credentialName: \"kubernetes://far/far\"",
            false,
        ),
        (
            "mode: SIMPLE, credentialName: \"kubernetes://far/first\"",
            false,
        ),
        ("mode: SIMPLE, credentialName: far", false),
        ("mode: SIMPLE, credentialName: absent", false),
        ("mode: SIMPLE, credentialName: half", false),
        // Whose certificates would it believe?
        ("mode: MUTUAL, credentialName: first", false),
        ("mode: OPTIONAL_MUTUAL, credentialName: first", false),
    ];
    for (tls, lets_in) in rows {
        let made =
            told(&(gateway(&secure("a.example", tls)) + &routes("shop", "all", "\"*\"", TO_WEB)));
        let [chain] = chains(&made, SECURE) else {
            panic!("{tls}: one chain");
        };
        assert_eq!(
            chain["filter_chain_match"]["server_names"],
            json!(["a.example"]),
            "{tls}: its name is nobody else's"
        );
        let secrets: Vec<&str> = made.secrets.keys().map(String::as_str).collect();
        if lets_in {
            assert_eq!(secrets, ["kubernetes://shop/first"], "{tls}");
            let secret = &made.secrets["kubernetes://shop/first"]["tls_certificate"];
            let text = |what: &str| secret[what]["inline_string"].clone();
            assert_eq!(
                [text("certificate_chain"), text("private_key")],
                ["first's", "first's key"]
            );
        } else {
            assert_eq!(filter(chain)["cluster"], "BlackHoleCluster", "{tls}");
            assert_eq!(chain["transport_socket"], Value::Null, "{tls}");
            assert_eq!(secrets, [""; 0], "{tls}: no key leaves for nothing");
        }
    }
    let asked = told(&gateway(&secure(
        "a.example",
        "mode: MUTUAL, credentialName: second",
    )));
    let clients = &asked.secrets["kubernetes://shop/second-cacert"]["validation_context"];
    assert_eq!(clients["trusted_ca"]["inline_string"], "second's clients");
    assert_eq!(clients["crl"]["inline_string"], "second's list");
}

#[test]
fn a_secret_of_another_namespace_is_shown_where_gateway_api_permits_it() {
    let api = "gateway.networking.k8s.io/v1";
    let gateway = format!(
        "{{apiVersion: {api}, kind: Gateway, metadata: {{name: door, namespace: shop}}, spec: {{gatewayClassName: voile, listeners: \
         [{{name: https, port: 443, protocol: HTTPS, hostname: a.example, tls: {{certificateRefs: [{{name: alone, namespace: far}}]}}}}]}}}}\n---\n\
         {{apiVersion: v1, kind: Secret, metadata: {{name: alone, namespace: far}}, type: kubernetes.io/tls, \
         stringData: {{tls.crt: \"-----BEGIN CERTIFICATE-----\", tls.key: \"-----BEGIN PRIVATE KEY-----\"}}}}\n---\n\
         {{apiVersion: v1, kind: Pod, metadata: {{name: door, namespace: shop, labels: {{gateway.networking.k8s.io/gateway-name: door, sidecar.istio.io/inject: \"true\"}}, \
         annotations: {{inject.istio.io/templates: gateway}}}}, spec: {{containers: [{{name: istio-proxy}}]}}, status: {{phase: Running, podIP: 127.9.0.5}}}}\n---\n"
    );
    let grant = "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: one, namespace: far}, spec: \
         {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: \"\", kind: Secret, name: alone}]}}\n";
    for (more, lets_in) in [(grant, true), ("", false)] {
        let made = told_in(MESH, &(gateway.clone() + more), "door");
        assert_eq!(
            made.secrets.contains_key("kubernetes://far/alone"),
            lets_in,
            "{:?}",
            made.secrets
        );
    }
}

#[test]
fn tls_is_spoken_in_the_versions_and_suites_that_are_said() {
    let rows = [
        ("", "TLSv1_2", "TLSv1_3", Value::Null),
        (
            ", minProtocolVersion: TLSV1_3",
            "TLSv1_3",
            "TLSv1_3",
            Value::Null,
        ),
        (
            ", maxProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-RSA-AES128-GCM-SHA256]",
            "TLSv1_2",
            "TLSv1_2",
            json!(["ECDHE-RSA-AES128-GCM-SHA256"]),
        ),
    ];
    for (said, oldest, newest, suites) in rows {
        let made = told(&gateway(&secure(
            "a.example",
            &format!("mode: SIMPLE, credentialName: first{said}"),
        )));
        let spoken = &shown(&chains(&made, SECURE)[0])["common_tls_context"]["tls_params"];
        assert_eq!(spoken["tls_minimum_protocol_version"], oldest, "{said}");
        assert_eq!(spoken["tls_maximum_protocol_version"], newest, "{said}");
        assert_eq!(spoken["cipher_suites"], suites, "{said}");
    }
}

#[test]
fn hosts_have_the_routes_of_who_names_them_and_what_takes_everything_comes_last() {
    let answers = |path: &str, status: u16| {
        format!("{{match: [{{uri: {{prefix: {path}}}}}], directResponse: {{status: {status}}}}}")
    };
    // For proxies of the mesh alone, or of another Gateway.
    let elsewhere =
        "{match: [{gateways: [mesh]}, {gateways: [other]}], directResponse: {status: 209}}";
    let servers = [
        plain("a.example, \"*.b.example\""),
        plain("\"far/far.example\", \"./near.example\""),
        plain("moved.example").replace("hosts", "tls: {httpsRedirect: true}, hosts"),
    ];
    let routed = [
        routes(
            "shop",
            "older",
            "a.example",
            &format!(
                "{}, {{directResponse: {{status: 299}}}}",
                answers("/one", 201)
            ),
        ),
        routes(
            "shop",
            "younger",
            "a.example, one.b.example",
            &format!("{elsewhere}, {}", answers("/two", 202)),
        ),
        routes(
            "shop",
            "others",
            "far.example, near.example, moved.example",
            &answers("/", 203),
        ),
        routes(
            "far",
            "far",
            "far.example, near.example, nobody.example",
            &answers("/", 204),
        ),
    ];
    let made = told(&(gateway(&servers.join(", ")) + &routed.concat()));
    assert_eq!(limits(&made), [""; 0]);
    let wanted = json!([
        [["a.example"], [201, 202, 299]],
        [["far.example"], [204]],
        [["moved.example"], ["redirect", 203]],
        [["near.example"], [203]],
        [["one.b.example"], [202]],
    ]);
    assert_eq!(hosts(&made, PLAIN), wanted);
    let all = &made.routes[PLAIN];
    assert_eq!(
        all["ignore_port_in_host_matching"], true,
        "a host is the same at any port"
    );
    assert_eq!(
        all["internal_only_headers"],
        json!(["x-envoy-peer-metadata", "x-envoy-peer-metadata-id"])
    );
    let moved = &all["virtual_hosts"][2]["routes"][0];
    assert_eq!(
        moved["redirect"],
        json!({ "scheme_redirect": "https", "port_redirect": 443 })
    );
    // A client that came by https already, by the header of the proxy before, is not redirected again and again.
    let by_https = json!({ "name": "x-forwarded-proto", "string_match": { "exact": "https" }, "invert_match": true });
    assert_eq!(
        moved["match"],
        json!({ "prefix": "/", "headers": [by_https] })
    );
}

#[test]
fn what_a_token_says_is_not_asked_and_who_would_be_is_refused() {
    for field in ["headers", "withoutHeaders"] {
        let asks = format!(
            "{{match: [{{uri: {{prefix: /a}}, {field}: {{\"@request.auth.claims.sub\": {{exact: me}}}}}}], route: [{{destination: {{host: web, port: {{number: 80}}}}}}]}}"
        );
        let web = routes("shop", "web", "a.example", &format!("{asks}, {TO_WEB}"));
        let made = told(&(gateway(&plain("\"*\"")) + &web));
        let hosts = &hosts(&made, PLAIN)[0];
        assert_eq!(hosts[1], json!([503, WEB]), "{field}");
        assert_eq!(limits(&made), ["virtual-service"], "{field}");
        let asked = made.routes[PLAIN].to_string();
        assert!(!asked.contains("@request"), "{asked}");
    }
}

#[test]
fn whom_a_route_leads_to_is_known_and_nobody_else() {
    let copied = format!(
        "{}, mirrors: [{{destination: {{host: web, port: {{number: 81}}}}, percentage: {{value: 10}}}}]}}",
        &TO_WEB[..TO_WEB.len() - 1]
    );
    for (http, known) in [(TO_WEB, &[WEB][..]), (&copied, &[WEB, RAW])] {
        let made = told(&(gateway(&plain("\"*\"")) + &routes("shop", "all", "\"*\"", http)));
        for cluster in [WEB, RAW] {
            let there = made.clusters.keys().any(|name| name.starts_with(cluster));
            assert_eq!(there, known.contains(&cluster), "{cluster}: {http}");
            assert_eq!(
                made.endpoints.keys().any(|name| name.starts_with(cluster)),
                there,
                "{cluster}: {http}"
            );
        }
        assert!(made.clusters.contains_key("BlackHoleCluster"));
    }
}

#[test]
fn requests_from_outside_are_judged_before_they_are_routed_and_come_from_nobody() {
    let selector = "selector: {matchLabels: {istio: ingress}}";
    let security = "---\napiVersion: security.istio.io/v1\nkind:";
    let more = format!(
        "{security} RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\nspec: {{{selector}, jwtRules: [{{issuer: \"https://i\", jwks: '{KEYS}'}}]}}\n\
         {security} AuthorizationPolicy\nmetadata: {{name: nobody, namespace: shop}}\nspec: {{{selector}, action: DENY, rules: [{{from: [{{source: {{principals: [\"*\"]}}}}]}}]}}\n\
         {security} AuthorizationPolicy\nmetadata: {{name: ask, namespace: shop}}\nspec: {{{selector}, action: CUSTOM, provider: {{name: ext}}, rules: [{{}}]}}\n\
         ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         extensionProviders: [{{name: ext, envoyExtAuthzHttp: {{service: web.shop.svc.cluster.local, port: 80}}}}]\n"
    );
    let made = told(&(gateway(&plain("\"*\"")) + &routes("shop", "all", "\"*\"", TO_WEB) + &more));
    assert_eq!(limits(&made), [""; 0]);
    let filters = list(&filter(&chains(&made, PLAIN)[0])["http_filters"]);
    let names: Vec<&str> = filters
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let wanted = [
        "rbac",
        "ext_authz",
        "jwt_authn",
        "rbac",
        "fault",
        "cors",
        "router",
    ]
    .map(|name| format!("envoy.filters.http.{name}"));
    assert_eq!(names, wanted);
    let rules = filters[3].to_string();
    assert!(
        rules.contains("filter_state") && !rules.contains("authenticated"),
        "a certificate from outside is nobody's: {rules}"
    );
    let asked = filters[1].to_string();
    assert!(asked.contains(&format!("{WEB}~asked")), "{asked}");
    assert!(
        made.clusters.contains_key(&format!("{WEB}~asked")),
        "{:?}",
        made.clusters.keys()
    );
    // Nobody can be asked: what would have been asked about is refused, by what is known before tokens and by what they say.
    let unknown = more.replace("{name: ext}, rules", "{name: nobody}, rules");
    let made = told(&(gateway(&plain("\"*\"")) + &unknown));
    assert_eq!(limits(&made), ["unknown-provider"]);
    let filters = list(&filter(&chains(&made, PLAIN)[0])["http_filters"]);
    let refuses = |filter: &Value| {
        filter["typed_config"]["rules"]["action"] == "DENY"
            && filter.to_string().contains("policy[ask]")
    };
    let refusing: Vec<bool> = filters.iter().take(3).map(refuses).collect();
    assert_eq!(refusing, [true, false, true], "{filters:?}");
}

#[test]
fn what_clients_say_of_themselves_is_believed_as_far_as_is_said() {
    let topology = |said: &str| {
        MESH.replacen(
            "annotations: {inject",
            &format!("annotations: {{proxy.istio.io/config: 'gatewayTopology: {{{said}}}', inject"),
            1,
        )
    };
    for (said, hops, first) in [
        ("numTrustedProxies: 2", 2, None),
        (
            "proxyProtocol: {}",
            0,
            Some("envoy.filters.listener.proxy_protocol"),
        ),
    ] {
        let made = told_in(&topology(said), &gateway(&plain("\"*\"")), "gateway");
        assert_eq!(limits(&made), [""; 0]);
        let manager = filter(&chains(&made, PLAIN)[0]);
        assert_eq!(manager["xff_num_trusted_hops"], hops, "{said}");
        assert_eq!(manager["use_remote_address"], true, "{said}");
        assert_eq!(
            manager["forward_client_cert_details"], "SANITIZE_SET",
            "{said}"
        );
        assert_eq!(
            manager["internal_address_config"],
            json!({ "unix_sockets": false }),
            "{said}"
        );
        assert_eq!(
            made.listeners[PLAIN]["listener_filters"][0]["name"],
            json!(first),
            "{said}"
        );
    }
}

#[test]
fn servers_of_which_nothing_is_translated_let_nobody_in_and_are_named() {
    let tls = |mode: &str| {
        format!(
            "{{port: {{number: 443, name: t, protocol: HTTPS}}, hosts: [a.example], tls: {{mode: {mode}}}}}"
        )
    };
    for server in [
        tls("PASSTHROUGH"),
        tls("ISTIO_MUTUAL"),
        "{port: {number: 443, name: t, protocol: TLS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: first}}".to_owned(),
        "{port: {number: 443, name: t, protocol: TCP}, hosts: [\"*\"]}".to_owned(),
    ] {
        let made = told(&gateway(&server));
        assert_eq!(limits(&made), ["gateway-server"], "{server}");
        assert_eq!(made.listeners.len(), 0, "{server}: {:?}", made.listeners);
    }
    // In plaintext and in TLS at once: the older one counts, whichever it is.
    let one = secure("a.example", "mode: SIMPLE, credentialName: first");
    let other = plain("\"*\"").replace("80", "443");
    for (servers, names) in [
        ([&one, &other], json!(["a.example"])),
        ([&other, &one], Value::Null),
    ] {
        let made = told(&gateway(&format!("{}, {}", servers[0], servers[1])));
        assert_eq!(limits(&made), ["listener-twice"]);
        let [chain] = chains(&made, SECURE) else {
            panic!("one chain");
        };
        assert_eq!(chain["filter_chain_match"]["server_names"], names);
    }
}

#[test]
fn a_server_listens_where_it_says() {
    let elsewhere = plain("\"*\"").replace("hosts", "bind: 127.9.0.44, hosts");
    let other = plain("\"*\"").replace("80", "8088");
    let made = told(&gateway(&format!(
        "{}, {elsewhere}, {other}",
        plain("\"*\"")
    )));
    let names: Vec<&str> = made.listeners.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "gateway_127.9.0.44_80",
            "gateway_127.9.0.4_80",
            "gateway_127.9.0.4_8088"
        ]
    );
    let bound = &made.listeners[names[0]];
    assert_eq!(bound["address"]["socket_address"]["address"], "127.9.0.44");
    assert_eq!(bound["bind_to_port"], Value::Null);
}

#[test]
fn http_to_a_port_of_no_declared_protocol_goes_on_in_the_version_in_which_it_came() {
    let to_raw = TO_WEB.replace("80", "81");
    let servers = [
        plain("\"*\""),
        secure("a.example", "mode: SIMPLE, credentialName: first"),
        secure("\"*\"", "mode: SIMPLE, credentialName: absent"),
    ];
    let all = gateway(&servers.join(", "));
    let leads = |made: &Configuration, name: &str| hosts(made, name)[0][1].clone();
    let made = told(&(all.clone() + &routes("shop", "all", "\"*\"", &to_raw)));
    let [h2, rest] = chains(&made, PLAIN) else {
        panic!("a chain for each version");
    };
    assert_eq!(
        h2["filter_chain_match"],
        json!({ "application_protocols": ["h2c"] })
    );
    assert_eq!(
        rest["filter_chain_match"],
        Value::Null,
        "who says nothing yet speaks HTTP/1.1"
    );
    let looks = &made.listeners[PLAIN]["listener_filters"][0]["name"];
    assert_eq!(looks, "envoy.filters.listener.http_inspector");
    for (chain, cluster) in [(h2, "~h2"), (rest, "~http")] {
        let name = filter(chain)["rds"]["route_config_name"]
            .as_str()
            .expect("a name");
        assert_eq!(leads(&made, name), json!([format!("{RAW}{cluster}")]));
        assert!(made.clusters.contains_key(&format!("{RAW}{cluster}")));
    }
    let [h2, rest, closed] = chains(&made, SECURE) else {
        panic!("a chain for each version of who is shown a certificate");
    };
    for (chain, asked, spoken, cluster) in [
        (h2, json!(["h2"]), json!(["h2"]), "~h2"),
        (rest, Value::Null, json!(["http/1.1"]), "~http"),
    ] {
        let matched = &chain["filter_chain_match"];
        assert_eq!(
            (&matched["server_names"], &matched["application_protocols"]),
            (&json!(["a.example"]), &asked)
        );
        assert_eq!(
            shown(chain)["common_tls_context"]["alpn_protocols"],
            spoken,
            "nobody gets the other one's routes"
        );
        let name = filter(chain)["rds"]["route_config_name"]
            .as_str()
            .expect("a name");
        assert_eq!(leads(&made, name), json!([format!("{RAW}{cluster}")]));
    }
    // With any protocol, a server without its Secret admits no client.
    assert_eq!(
        closed["filter_chain_match"],
        json!({ "transport_protocol": "tls" })
    );
    // If no route depends on the version, there is one chain and no detection.
    let made = told(&(all + &routes("shop", "all", "\"*\"", TO_WEB)));
    assert_eq!(
        [chains(&made, PLAIN).len(), chains(&made, SECURE).len()],
        [1, 2]
    );
    assert_eq!(made.listeners[PLAIN]["listener_filters"], Value::Null);
}

#[test]
fn tokens_of_an_issuer_without_keys_are_refused_and_nothing_else_is() {
    for (keys, limit) in [
        (format!("jwks: '{KEYS}'"), None),
        (
            "jwks: '{\"keys\":[]}'".to_owned(),
            Some("no key in it can be used"),
        ),
        (
            "jwksUri: \"https://i/keys\"".to_owned(),
            Some("are not known here"),
        ),
    ] {
        let tokens = format!(
            "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
             spec: {{jwtRules: [{{issuer: \"https://i\", {keys}}}]}}\n"
        );
        let made = told(&(gateway(&plain("\"*\"")) + &tokens));
        let whys: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
        assert_eq!(whys.len(), usize::from(limit.is_some()), "{whys:?}");
        assert!(
            limit.is_none_or(
                |limit| whys[0].starts_with("keys-missing: ") && whys[0].contains(limit)
            ),
            "{whys:?}"
        );
        let filter = &filter(&chains(&made, PLAIN)[0])["http_filters"][0]["typed_config"];
        let given = filter["providers"]["origins-0"]["local_jwks"]["inline_string"]
            .as_str()
            .expect("keys");
        // Envoy refuses a listener with a set of no key that it could use.
        let read = voile_policy::tokens::KeySet::read(given).expect("a key of some kind");
        assert_eq!((read.usable(), given == KEYS), (1, limit.is_none()));
    }
}

#[test]
fn of_several_certificates_those_that_are_there_are_shown() {
    for (tls, expected) in [
        (
            "mode: MUTUAL, credentialNames: [first, second]",
            &["first", "second"][..],
        ),
        ("mode: SIMPLE, credentialNames: [half, first]", &["first"]),
    ] {
        let servers = gateway(&secure("a.example", tls));
        let made = told(&(servers + &routes("shop", "all", "\"*\"", TO_WEB)));
        let shown = &shown(&chains(&made, SECURE)[0])["common_tls_context"];
        let names = list(&shown["tls_certificate_sds_secret_configs"]).iter();
        let names: Vec<String> = names.map(|one| one["name"].to_string()).collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|name| format!("\"kubernetes://shop/{name}\""))
            .collect();
        assert_eq!(names, expected, "{tls}");
        let believed = &shown["validation_context_sds_secret_config"]["name"];
        let clients = match tls.contains("MUTUAL") {
            true => json!("kubernetes://shop/second-cacert"),
            false => Value::Null,
        };
        assert_eq!(*believed, clients, "{tls}");
    }
}

#[test]
fn what_is_in_files_is_read_by_envoy_itself() {
    let files = "serverCertificate: /certs/a/tls.crt, privateKey: /certs/a/tls.key";
    let servers = [
        secure("a.example", &format!("mode: SIMPLE, {files}")),
        secure(
            "b.example",
            &format!("mode: MUTUAL, {files}, caCertificates: /ca.crt"),
        ),
        secure(
            "c.example",
            &format!("mode: MUTUAL, {files}, caCertificates: /ca.crt, caCrl: /ca.crl"),
        ),
    ];
    let made = told(&(gateway(&servers.join(", ")) + &routes("shop", "all", "\"*\"", TO_WEB)));
    assert_eq!(limits(&made), [""; 0]);
    let pair = "file-cert:/certs/a/tls.crt~/certs/a/tls.key";
    let certificate = &made.secrets[pair]["tls_certificate"];
    assert_eq!(
        *certificate,
        json!({
            "certificate_chain": { "filename": "/certs/a/tls.crt" },
            "private_key": { "filename": "/certs/a/tls.key" },
            "watched_directory": { "path": "/certs/a" },
        })
    );
    let believed = &made.secrets["file-root:/ca.crt"]["validation_context"];
    assert_eq!(
        *believed,
        json!({ "trusted_ca": { "filename": "/ca.crt" }, "watched_directory": { "path": "/" } })
    );
    let looked = &made.secrets["file-root:/ca.crt~/ca.crl"]["validation_context"];
    assert_eq!(looked["crl"], json!({ "filename": "/ca.crl" }));
    let chains = chains(&made, SECURE);
    for (chain, root, demands) in [
        (&chains[0], Value::Null, false),
        (&chains[1], json!("file-root:/ca.crt"), true),
        (&chains[2], json!("file-root:/ca.crt~/ca.crl"), true),
    ] {
        let tls = &shown(chain)["common_tls_context"];
        assert_eq!(tls["tls_certificate_sds_secret_configs"][0]["name"], pair);
        let found = &tls["validation_context_sds_secret_config"]["name"];
        assert_eq!(*found, root);
        assert_eq!(shown(chain)["require_client_certificate"], demands);
    }
}

#[test]
fn what_becomes_of_a_clients_certificate_is_as_the_mesh_says() {
    let plain = gateway(&plain("\"*\""));
    for (said, expected) in [
        ("", "SANITIZE_SET"),
        (
            "gatewayTopology: {forwardClientCertDetails: UNDEFINED}",
            "SANITIZE_SET",
        ),
        (
            "gatewayTopology: {forwardClientCertDetails: APPEND_FORWARD}",
            "APPEND_FORWARD",
        ),
        (
            "proxyHeaders: {forwardedClientCert: FORWARD_ONLY}",
            "SANITIZE_SET",
        ),
    ] {
        let config = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    defaultConfig: {{{said}}}\n---\n"
        );
        let made = told(&(config + &plain + &routes("shop", "all", "\"*\"", TO_WEB)));
        let manager = filter(&chains(&made, PLAIN)[0]);
        assert_eq!(manager["forward_client_cert_details"], expected, "{said}");
        let told = json!({ "subject": true, "cert": true, "dns": true, "uri": true });
        assert_eq!(manager["set_current_client_cert_details"], told);
    }
}
