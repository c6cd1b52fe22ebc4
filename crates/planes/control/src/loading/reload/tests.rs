//! Random sequences of edits. A patched snapshot equals one made anew, a sound end equals a fresh start, and an edit wakes every
//! stream whose answer it changes.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use tempfile::TempDir;
use voile_identity::revocation::{CRL_FILE, local};
use voile_identity::{Authority, TrustBundle, TrustStore};
use voile_model::TrustDomain;
use voile_proto::type_url::{
    ADDRESS, AUTHORIZATION_POLICY, KEY_SET, PROXY_CONFIGURATION, REQUEST_AUTHENTICATION,
    REVOCATION_LISTS, REVOCATIONS, SERVICE_POLICY, SERVICE_ROUTES,
};
use voile_xds::server::{CALLER, Resolution};

use super::*;
use crate::keys::{KeyOptions, Origin};

/// Documents that may be in any file; `%` becomes a small number.
const DOCUMENTS: [&str; 49] = [
    "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled%}}",
    "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank, labels: {istio-injection: enabled}}",
    "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {clusterIP: 10.9.0.%, selector: {app: a}, ports: [{name: http, port: 8%, targetPort: 8080}]}",
    "apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: shop}\nspec: {selector: {version: v%}, ports: [{name: tcp, port: 90, targetPort: web}]}",
    "apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: bank, annotations: {networking.istio.io/exportTo: \".\"}}\nspec: {selector: {app: b}, ports: [{name: http, port: 80}]}",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p%, namespace: shop, labels: {app: a, version: v%}}\nspec: {serviceAccountName: a, containers: [{name: app, image: none, ports: [{name: web, containerPort: 808%}]}]}\nstatus: {phase: Running, podIP: 10.0.%.1}",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: q, namespace: shop, labels: {app: a%}}\nspec: {serviceAccountName: q%, containers: [{name: app, image: none}]}\nstatus: {phase: Pending, podIP: 10.0.1.%}",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: r, namespace: bank, labels: {app: b, version: v%}}\nspec: {containers: [{name: app, image: none}]}\nstatus: {phase: Running, podIP: 10.0.1.%}",
    "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: q, namespace: shop}\nspec: {address: 10.0.2.%, labels: {app: a}}",
    "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: out, namespace: shop}\nspec: {hosts: [out%.example.com], ports: [{number: 443, name: tls, protocol: TLS}], resolution: STATIC, endpoints: [{address: 192.0.2.%}]}",
    "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: far, namespace: bank}\nspec: {hosts: [far.example.com], addresses: [10.20.%.0/24], ports: [{number: 443, name: tls, protocol: TLS}], resolution: NONE}",
    "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: asked, namespace: shop}\nspec: {hosts: [asked.example.com], exportTo: [\".\"], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS, endpoints: [{address: e%.example.com}, {address: 192.0.2.%}]}",
    "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: wide, namespace: bank}\nspec: {hosts: [w%.example.com], addresses: [240.240.%.%], ports: [{number: 80%, name: http, protocol: HTTP}], resolution: STATIC, workloadSelector: {labels: {app: a}}}",
    "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: judged, namespace: shop}\nspec: {action: CUSTOM, provider: {name: judge}, rules: [{to: [{operation: {paths: [/%]}}]}]}",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"extensionProviders: [{name: judge, envoyExtAuthzGrpc: {service: a.shop.svc.cluster.local, port: 8%}}]\"}",
    "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: all, namespace: shop}\nspec: {egress: [{port: {number: 8%, protocol: HTTP, name: http}, bind: 127.1.0.1, captureMode: NONE, hosts: [\"./*\"]}]}",
    "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}",
    "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: DISABLE}}",
    "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: one, namespace: shop}\nspec: {selector: {matchLabels: {app: a%}}, rules: [{to: [{operation: {paths: [/%]}}]}]}",
    "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: all, namespace: istio-system}\nspec: {action: DENY, rules: [{to: [{operation: {paths: [/%]}}]}]}",
    "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: two, namespace: shop}\nspec: {selector: {matchLabels: {version: v%}}, rules: [{to: [{operation: {paths: [/%]}}]}]}",
    "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: own, namespace: shop}\nspec: {selector: {matchLabels: {version: v%}}, jwtRules: [{issuer: i%, jwks: '{\"keys\":[{\"crv\":\"Ed25519\",\"kid\":\"%\",\"kty\":\"OKP\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}'}]}",
    "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: useless, namespace: shop}\nspec: {jwtRules: [{issuer: i%, jwks: '{\"keys\":[]}'}]}",
    "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: asked, namespace: istio-system}\nspec: {jwtRules: [{issuer: i%, jwksUri: \"https://keys.example/%\"}]}",
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\nspec: {host: a, subsets: [{name: v1, labels: {version: v1}}, {name: s%, labels: {version: v2}, trafficPolicy: {connectionPool: {http: {useClientProtocol: true}}}}], trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}}",
    "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"trustDomain: td%\"}",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {hosts: [a], http: [{match: [{headers: {x: {exact: y%}}}, {sourceNamespace: bank}], route: [{destination: {host: a, subset: s2}}]}, {retries: {attempts: %}, route: [{destination: {host: a, subset: v1}, weight: 9%}, {destination: {host: b}, weight: 1}]}]}",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: near, namespace: bank}\nspec: {hosts: [a.shop.svc.cluster.local, b], exportTo: [bank], http: [{route: [{destination: {host: b, port: {number: 8%}}}]}]}",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: wide, namespace: shop, creationTimestamp: \"2026-01-0%T00:00:00Z\"}\nspec: {hosts: [\"*.shop.svc.cluster.local\", \"*.example.com\"], http: [{name: all, route: [{destination: {host: asked.example.com}}]}]}",
    "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: some, namespace: shop}\nspec: {selector: {matchLabels: {app: a%}}, mtls: {mode: DISABLE}, portLevelMtls: {808%: {mode: STRICT}}}",
    "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: some, namespace: shop}\nspec: {workloadSelector: {labels: {version: v%}}, ingress: [{port: {number: 808%, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: \"127.0.0.1:8080\"}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}",
    "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: some, namespace: shop}\nspec: {selector: {matchLabels: {app: a%}}, tracing: [{randomSamplingPercentage: %}]}",
    "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: all, namespace: istio-system}\nspec: {tracing: [{randomSamplingPercentage: 1%}]}",
    "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {name: some, namespace: shop}\nspec: {selector: {matchLabels: {app: a%}}, rules: [{limits: [{requests: 1%, per: 1s}]}]}",
    "apiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {name: all, namespace: shop}\nspec: {host: a.test, healthyThreshold: 1%, tcp: {}}",
    "apiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {name: some, namespace: istio-system}\nspec: {host: a.test, selector: {matchLabels: {app: a%}}, healthyThreshold: 2%, tcp: {}}",
    "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {name: all, namespace: istio-system}\nspec: {rules: [{limits: [{requests: 2%, per: 1s}]}]}",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: edge, namespace: bank, labels: {app: a%}, annotations: {inject.istio.io/templates: gateway}}\nspec: {containers: [{name: istio-proxy, image: auto}]}\nstatus: {phase: Running, podIP: 10.0.3.%}",
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: own, namespace: bank}\nspec: {host: a.shop.svc.cluster.local, subsets: [{name: s2, labels: {version: v%}}], trafficPolicy: {outlierDetection: {consecutive5xxErrors: %}}}",
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: lent, namespace: shop}\nspec: {host: \"*.shop.svc.cluster.local\", exportTo: [bank], subsets: [{name: v1, labels: {version: v%}}]}",
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: picked, namespace: shop}\nspec: {host: a, workloadSelector: {matchLabels: {version: v%}}, subsets: [{name: s2, labels: {version: v1}}], trafficPolicy: {loadBalancer: {simple: RANDOM}}}",
    "apiVersion: v1\nkind: Service\nmetadata: {name: c, namespace: shop}\nspec: {clusterIP: 10.9.1.%, ports: [{name: http, port: 8%}, {name: tcp, port: 90}]}",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: c-1, namespace: shop, labels: {kubernetes.io/service-name: c}}\naddressType: IPv4\nports: [{name: http, port: 808%}]\nendpoints: [{addresses: [10.0.%.1], conditions: {ready: false}}, {addresses: [10.0.1.%], conditions: {ready: false, serving: true, terminating: true}}, {addresses: [192.0.2.%]}]",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: c-2, namespace: shop, labels: {kubernetes.io/service-name: c}}\naddressType: IPv4\nports: [{name: tcp, port: 909%}]\nendpoints: [{addresses: [10.0.2.%]}, {addresses: [10.0.1.%], targetRef: {kind: Pod, name: q}}, {addresses: [192.0.2.%]}]",
    "apiVersion: v1\nkind: Endpoints\nmetadata: {name: c, namespace: shop}\nsubsets: [{addresses: [{ip: 10.0.1.%}], notReadyAddresses: [{ip: 192.0.2.%}], ports: [{name: http, port: 80}]}]",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1, namespace: shop, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: http, port: 80}]\nendpoints: [{addresses: [192.0.2.%]}]",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: over, namespace: shop}\nspec: {hosts: [b, c], http: [{match: [{uri: {prefix: /part}}], delegate: {name: part%, namespace: bank}}, {route: [{destination: {host: b, port: {number: 80}}}]}]}",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: part1, namespace: bank}\nspec: {http: [{match: [{uri: {prefix: /part/%}}], timeout: %s, route: [{destination: {host: a.shop.svc.cluster.local}}]}]}",
];
/// Documents with various errors.
const WRONG: [&str; 5] = [
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p1, namespace: shop}\nspec: {containers: 7}",
    "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: one, namespace: shop}\nspec: {action: PERHAPS}",
    "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: own, namespace: shop}\nspec: {jwtRules: [{jwks: 7}]}",
    "apiVersion: [",
    "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop}\nspec: {}",
];
/// A file of its own for each of `DOCUMENTS`.
const NAMES: [&str; DOCUMENTS.len()] = [
    "00.yaml", "01.yaml", "02.yaml", "03.yaml", "04.yaml", "05.yaml", "06.yaml", "07.yaml",
    "08.yaml", "09.yaml", "10.yaml", "11.yaml", "12.yaml", "13.yaml", "14.yaml", "15.yaml",
    "16.yaml", "17.yaml", "18.yaml", "19.yaml", "20.yaml", "21.yaml", "22.yaml", "23.yaml",
    "24.yaml", "25.yaml", "26.yaml", "27.yaml", "28.yaml", "29.yaml", "30.yaml", "31.yaml",
    "32.yaml", "33.yaml", "34.yaml", "35.yaml", "36.yaml", "37.yaml", "38.yaml", "39.yaml",
    "40.yaml", "41.yaml", "42.yaml", "43.yaml", "44.yaml", "45.yaml", "46.yaml", "47.yaml",
    "48.yaml",
];
/// Of `DOCUMENTS`, those that can be patched in.
const PATCHED: [usize; 40] = [
    2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25, 27, 28, 29, 30,
    31, 32, 33, 34, 35, 36, 37, 38, 42, 43, 44, 45, 46, 47, 48,
];
/// A service that needs a virtual address.
const ASKED: usize = 11;
/// Makes a namespace depend on all services.
const LISTS: usize = 15;
/// Documents that clash with another one.
const RIVALS: [usize; 2] = [8, 26];
const FILES: [&str; 4] = ["a.yaml", "b.yaml", "c.yaml", "d.yaml"];

/// Keys that an issuer may have.
const KEYS: [&str; 2] = [
    r#"{"keys":[{"crv":"Ed25519","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
    r#"{"keys":[{"crv":"Ed25519","kid":"1","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
];

type Documents = BTreeMap<&'static str, Vec<String>>;

/// State that the loops share: the texts that they read, and an authority.
struct World {
    texts: Arc<Mutex<Documents>>,
    /// Answers of the key servers.
    keys: BTreeMap<Origin, Arc<str>>,
    trust: Arc<TrustStore>,
    authority: Arc<Authority>,
    state: PathBuf,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let domain = TrustDomain::new("cluster.local").expect("a domain");
        // It is made private.
        let state = folder.path().join("state");
        let authority = Authority::open(&state, &domain, SystemTime::now()).expect("an authority");
        let bundle = TrustBundle::from_pem(domain, Vec::new(), authority.root_pem());
        Self {
            texts: Arc::default(),
            keys: BTreeMap::new(),
            trust: Arc::new(TrustStore::new(bundle.expect("a bundle"))),
            authority: Arc::new(authority),
            state,
            _folder: folder,
        }
    }

    fn texts(&self) -> MutexGuard<'_, Documents> {
        self.texts.lock().expect("texts")
    }

    /// Keys of an issuer are others now.
    fn fetch(&mut self, random: &mut fastrand::Rng) {
        let uri = format!("https://keys.example/{}", random.u8(1..4));
        let keys = KEYS[random.usize(..KEYS.len())];
        self.keys.insert(Origin::Uri(uri.into()), keys.into());
    }

    /// One step: documents, and now and then keys or what is revoked.
    fn step(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..=random.u8(..3) {
            edit(&mut self.texts(), random);
        }
        if random.u8(..3) == 0 {
            self.fetch(random);
        }
        match random.u8(..10) {
            0 => drop(std::fs::remove_file(self.state.join(CRL_FILE))),
            1 => {
                let serial = vec![random.u8(1..)];
                local::revoke(&self.state, &[serial], SystemTime::now()).expect("revoked");
            }
            _ => {}
        }
    }
}

struct Memory {
    texts: Arc<Mutex<Documents>>,
    known: Vec<Arc<SourceFile>>,
    forgetful: bool,
}

impl Source for Memory {
    fn load(&mut self) -> Result<Vec<Arc<SourceFile>>, ControlError> {
        let texts = self.texts.lock().expect("texts");
        let made = texts.iter().map(|(name, documents)| {
            let file = SourceFile::new(*name, documents.join("\n---\n"));
            let old = self.known.iter().find(|old| ***old == file);
            let old = old.filter(|_| !self.forgetful);
            old.cloned().unwrap_or_else(|| Arc::new(file))
        });
        let made: Vec<_> = made.collect();
        self.known.clone_from(&made);
        Ok(made)
    }

    fn follow_file(&mut self, _: &Path) -> Result<(), ControlError> {
        Ok(())
    }

    fn follow_folder(&mut self, _: &Path) -> Result<(), ControlError> {
        Ok(())
    }

    async fn changed(&mut self) {}
}

/// A loop of its own over the texts.
struct Loop {
    reload: Reload<Memory>,
    /// Everything is put together anew each time.
    anew: bool,
    state: TempDir,
}

impl Loop {
    fn new(world: &World, anew: bool) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let empty: Arc<dyn Snapshot<SnapshotCaller>> = Arc::new(MeshSnapshot::default());
        let source = Memory {
            texts: world.texts.clone(),
            known: Vec::new(),
            forgetful: anew,
        };
        let reload = Reload::new(
            source,
            Box::new(|_| ()),
            Publisher {
                snapshots: watch::channel(empty).0,
                interest: Arc::default(),
                staff: watch::channel(Arc::default()).0,
            },
            world.trust.clone(),
            Arc::default(),
            RememberedState::open(state.path(), world.authority.clone(), false),
            Keys::new(state.path(), &KeyOptions::default()),
        );
        Self {
            reload,
            anew,
            state,
        }
    }

    /// Reads; what there is then, but for who left.
    fn read(&mut self, world: &World) -> MeshSnapshot {
        if self.anew {
            self.reload.checker.distrust();
        }
        let lists = self.state.path().join(CRL_FILE);
        if std::fs::copy(world.state.join(CRL_FILE), &lists).is_err() {
            let _ = std::fs::remove_file(lists);
        }
        self.reload.read().expect("read");
        if self.reload.keys.bring(&world.keys) {
            match self.anew {
                true => drop(self.reload.put_in_force(None)),
                false => self.reload.keys_changed(),
            }
        }
        let mut snapshot = (**self.reload.snapshot.as_ref().expect("a snapshot")).clone();
        snapshot.departed = Arc::default();
        snapshot
    }
}

/// Without what those who left obeyed.
fn present(mut snapshot: MeshSnapshot) -> MeshSnapshot {
    let all = snapshot.configurations.values();
    let owners: HashSet<_> = all.map(|private| private.owner.clone()).collect();
    Arc::make_mut(&mut snapshot.obeyed).retain(|identity| owners.contains(identity));
    snapshot
}

fn document(random: &mut fastrand::Rng, wrong: bool) -> String {
    let all = if wrong { &WRONG[..] } else { &DOCUMENTS[..] };
    let text = all[random.usize(..all.len())];
    let pieces = text.split('%');
    let mut made = String::new();
    for (index, piece) in pieces.enumerate() {
        if index > 0 {
            made += &random.u8(1..4).to_string();
        }
        made += piece;
    }
    made.replace("enabled2", "enabled")
        .replace("enabled3", "enabled")
}

/// One edit: a document comes, goes, moves to another file, or a file is renamed.
fn edit(texts: &mut Documents, random: &mut fastrand::Rng) {
    let file = FILES[random.usize(..FILES.len())];
    let other = FILES[random.usize(..FILES.len())];
    let documents = texts.entry(file).or_default();
    match random.u8(..12) {
        0..6 => {
            let wrong = random.u8(..12) == 0;
            documents.push(document(random, wrong));
        }
        6..9 if !documents.is_empty() => {
            documents.swap_remove(random.usize(..documents.len()));
        }
        9 if !documents.is_empty() => {
            let moved = documents.swap_remove(random.usize(..documents.len()));
            texts.entry(other).or_default().push(moved);
        }
        10 => {
            if let Some(moved) = texts.remove(file) {
                texts.entry(other).or_default().extend(moved);
            }
        }
        _ => drop(texts.remove(file)),
    }
}

fn is_wrong(texts: &Documents) -> bool {
    let files: Vec<SourceFile> = texts
        .iter()
        .map(|(name, documents)| SourceFile::new(*name, documents.join("\n---\n")))
        .collect();
    let (_, diagnostics) = voile_model::check(&files, None);
    diagnostics.iter().any(Diagnostic::is_error)
}

fn callers() -> Vec<SnapshotCaller> {
    let known = |namespace: &str| {
        let identity = format!("spiffe://cluster.local/ns/{namespace}/sa/a");
        SnapshotCaller::Known(voile_identity::AuthenticatedCaller {
            certificates: Box::default(),
            identity: identity.parse().expect("an identity"),
            pod: None,
            proof: voile_identity::CallerProof::Token,
            until: SystemTime::now(),
        })
    };
    vec![known("shop"), known("bank"), known("neither")]
}

/// Stock Envoys of the pods that there may be.
fn envoys(snapshot: &MeshSnapshot) -> Vec<SnapshotCaller> {
    let of = |pod: &str| {
        let mut caller = callers().swap_remove(0);
        let node = voile_proto::discovery::Node {
            id: format!("sidecar~-~{pod}.shop~shop.svc.cluster.local"),
            user_agent_name: "envoy".to_owned(),
            ..Default::default()
        };
        snapshot.introduce(&mut caller, &node);
        caller
    };
    ["p1", "p2", "p3"].map(of).into()
}

/// Checks that stock Envoys get the same resources from a patched snapshot as from a new one. Returns the number of resources.
fn check_envoys(kept: &MeshSnapshot, anew: &MeshSnapshot, seed: u64) -> usize {
    let mut told = 0;
    for (one, other) in envoys(kept).iter().zip(envoys(anew)) {
        for kind in crate::foreign_proxies::envoy::TYPES {
            let mine = kept.everything(one, kind);
            // Maps have no order on the wire: what says the same has the same version.
            let versions = |told: &Resolution| match told {
                Resolution::Found(all) => {
                    let said = |one: &Arc<voile_xds::server::Resource>| {
                        (one.name.clone(), one.version.clone())
                    };
                    Ok(all.iter().map(said).collect::<BTreeMap<_, _>>())
                }
                Resolution::Unknown | Resolution::Lacking(_) | Resolution::Refused(_) => {
                    Err(format!("{told:?}"))
                }
            };
            let other = anew.everything(&other, kind);
            assert_eq!(versions(&mine), versions(&other), "seed {seed}: {kind}");
            if let Resolution::Found(all) = mine {
                told += all.len();
                for resource in all {
                    let found = kept.resolve(one, kind, &resource.name);
                    assert_eq!(
                        found,
                        Resolution::Found(vec![resource]),
                        "seed {seed}: {kind}"
                    );
                }
            }
        }
    }
    told
}

/// Everything a proxy may ask for in these meshes.
fn questions(snapshots: [&MeshSnapshot; 2]) -> Vec<(&'static str, Arc<str>)> {
    let mut all: Vec<(&'static str, Arc<str>)> = vec![(REVOCATION_LISTS, REVOCATIONS.into())];
    for snapshot in snapshots {
        let owned = |(name, _): (&Arc<str>, _)| name.clone();
        all.extend(
            snapshot
                .owners
                .iter()
                .map(|one| (ADDRESS, owned((one.0, ())))),
        );
        all.extend(
            snapshot
                .policies
                .iter()
                .map(|one| (SERVICE_POLICY, one.0.clone())),
        );
        let routes = snapshot.routes.iter();
        all.extend(routes.map(|one| (SERVICE_ROUTES, one.0.clone())));
        all.extend(
            snapshot
                .authorization
                .iter()
                .map(|one| (AUTHORIZATION_POLICY, one.0.clone())),
        );
        let tokens = snapshot.tokens.iter();
        all.extend(tokens.map(|one| (REQUEST_AUTHENTICATION, one.0.clone())));
        let key_sets = snapshot.key_sets.iter();
        all.extend(key_sets.map(|one| (KEY_SET, one.0.clone())));
        all.extend(
            snapshot
                .configurations
                .iter()
                .map(|one| (PROXY_CONFIGURATION, one.0.clone())),
        );
    }
    for host in [
        "a",
        "b",
        "b.bank",
        "a.shop.svc",
        "out1.example.com",
        "far.example.com",
    ] {
        all.push((ADDRESS, format!("*/{host}").into()));
    }
    for address in ["10.20.1.7", "10.20.2.7", "10.9.0.1", "10.0.1.2"] {
        all.push((ADDRESS, format!("/{address}").into()));
    }
    all
}

/// Checks that an edit wakes every stream whose answer changed: by the name in the request, or by the name that it resolved to.
fn check_woken(old: &MeshSnapshot, new: &MeshSnapshot, seed: u64) {
    let touched = new.touched_since(old);
    for caller in callers() {
        for (type_url, name) in questions([old, new]) {
            let before = old.resolve(&caller, type_url, &name);
            if before == new.resolve(&caller, type_url, &name) {
                continue;
            }
            let first = match &before {
                Resolution::Found(found) => found.first().map(|one| one.name.clone()),
                _ => None,
            };
            let woken = touched.concerns(type_url, &name)
                || first.is_some_and(|first| touched.concerns(type_url, &first));
            assert!(
                woken,
                "seed {seed}: {caller} is not told of {type_url} {name}"
            );
        }
    }
}

#[test]
fn any_sequence_of_edits_ends_where_a_fresh_start_begins_and_wakes_whom_it_concerns() {
    let (mut patched, mut told) = (0, 0);
    for seed in 0..36 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new();
        // An Envoy may be told something only where its Pod is, and in a namespace that has sidecars.
        let begin = [0, 5].map(|index| DOCUMENTS[index].replace("enabled%", "enabled"));
        let begin = begin.map(|text| text.replace('%', "1"));
        world.texts().insert(FILES[0], begin.into());
        let mut one = Loop::new(&world, false);
        let mut other = Loop::new(&world, true);
        let mut last = one.read(&world);
        assert_eq!(last, other.read(&world));
        for step in 0..30 {
            world.step(&mut random);
            let before = one.reload.checker.is_plain();
            let now = one.read(&world);
            patched += usize::from(before && one.reload.checker.is_plain());
            let anew = other.read(&world);
            assert_eq!(now, anew, "seed {seed}, step {step}");
            told += check_envoys(&now, &anew, seed);
            check_woken(&last, &now, seed);
            if !is_wrong(&world.texts()) {
                let fresh = Loop::new(&world, false).read(&world);
                assert_eq!(present(now.clone()), fresh, "seed {seed}, step {step}");
            }
            last = now;
        }
    }
    assert!(
        patched > 50,
        "only {patched} edits may have been patched in"
    );
    assert!(told > 100, "Envoys were told {told} things");
}

/// The services and policies of a waypoint are computed from the whole mesh: no edit patches them.
#[test]
fn what_a_waypoint_stands_before_ends_where_a_fresh_start_begins() {
    let service = |name: &str, labels: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}\nspec: {{clusterIP: \
             10.9.0.1, selector: {{app: {name}}}, ports: [{{name: http, port: 80}}]}}"
        )
    };
    let pod = |labels: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: shop, labels: {{{labels}}}}}\nspec: {{containers: [{{name: \
             app, image: none}}]}}\nstatus: {{phase: Running, podIP: 10.0.1.1}}"
        )
    };
    let waypoint = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: w, namespace: shop}\nspec: \
                    {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}\n---\n\
                    apiVersion: v1\nkind: Pod\nmetadata: {name: w, namespace: shop, labels: \
                    {gateway.networking.k8s.io/gateway-name: w}, annotations: {inject.istio.io/templates: waypoint}}\nspec: \
                    {containers: [{name: istio-proxy, image: auto}]}\nstatus: {phase: Running, podIP: 10.0.1.9}";
    let policy = |path: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: aimed, namespace: shop}}\nspec: \
             {{targetRefs: [{{kind: Service, group: \"\", name: a}}], rules: [{{to: [{{operation: {{paths: [{path}]}}}}]}}]}}"
        )
    };
    let behind = "istio.io/use-waypoint: w";
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}";
    for with in [
        namespace.to_owned(),
        format!("{namespace}\n---\n{waypoint}"),
    ] {
        let world = World::new();
        let (mut one, mut other) = (Loop::new(&world, false), Loop::new(&world, true));
        let steps = [
            ("a.yaml", with),
            ("b.yaml", service("a", "x: y")),
            ("c.yaml", pod("app: a")),
            ("d.yaml", policy("/one")),
            ("b.yaml", service("a", behind)),
            ("d.yaml", policy("/two")),
            ("c.yaml", pod(&format!("app: a, {behind}"))),
            ("b.yaml", service("a", "x: y")),
            ("d.yaml", policy("/three")),
            ("c.yaml", pod("app: a")),
            ("d.yaml", policy("/four")),
        ];
        for (step, (file, text)) in steps.into_iter().enumerate() {
            world.texts().insert(file, vec![text]);
            let (now, anew) = (one.read(&world), other.read(&world));
            assert_eq!(now, anew, "step {step}");
        }
    }
}

/// A gateway's own configuration has the names of what may be reached by its name.
#[test]
fn what_a_gateway_leads_to_by_name_ends_where_a_fresh_start_begins() {
    let gateway = "apiVersion: v1\nkind: Pod\nmetadata: {name: g, namespace: edge, labels: {app: g, sidecar.istio.io/inject: \"true\"}, annotations: \
                   {inject.istio.io/templates: gateway}}\nspec: {containers: [{name: istio-proxy, image: auto}]}\nstatus: \
                   {phase: Running, podIP: 10.0.1.9}\n---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, \
                   namespace: edge}\nspec: {selector: {app: g}, servers: [{port: {number: 15443, name: tls, protocol: TLS}, hosts: \
                   [\"*\"], tls: {mode: AUTO_PASSTHROUGH}}]}";
    let service = |said: &str, ports: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: shop, annotations: {{{said}}}}}\nspec: {{clusterIP: \
             10.9.0.1, selector: {{app: a}}, ports: [{ports}]}}"
        )
    };
    let entry = |location: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: e, namespace: shop}}\nspec: {{hosts: \
             [e.example], location: {location}, resolution: STATIC, ports: [{{number: 80, name: tcp}}], endpoints: [{{address: \
             10.0.1.1}}]}}"
        )
    };
    let (tcp, udp) = ("{name: u, port: 80}", "{name: u, port: 80, protocol: UDP}");
    let name = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {type: ExternalName, externalName: \
                a.example, ports: [{name: u, port: 80}]}";
    let kept = "networking.istio.io/exportTo: \".\"";
    let world = World::new();
    let (mut one, mut other) = (Loop::new(&world, false), Loop::new(&world, true));
    let steps = [
        ("a.yaml", gateway.to_owned()),
        ("b.yaml", service("x: y", tcp)),
        ("b.yaml", service("x: y", udp)),
        ("b.yaml", service("x: y", tcp)),
        ("b.yaml", name.to_owned()),
        ("b.yaml", service(kept, tcp)),
        ("c.yaml", entry("MESH_EXTERNAL")),
        ("c.yaml", entry("MESH_INTERNAL")),
        ("c.yaml", entry("MESH_EXTERNAL")),
    ];
    for (step, (file, text)) in steps.into_iter().enumerate() {
        world.texts().insert(file, vec![text]);
        let (now, anew) = (one.read(&world), other.read(&world));
        assert_eq!(now, anew, "step {step}");
    }
}

/// The address that a service without one is given.
fn given() -> String {
    let world = World::new();
    let text = DOCUMENTS[ASKED].replace('%', "1");
    world.texts().insert("a.yaml", vec![text]);
    let mut one = Loop::new(&world, false);
    one.read(&world);
    let mesh = one.reload.addressed.expect("one needs an address");
    let mut services = mesh.services.values();
    services.next().expect("a service").addresses[0].to_string()
}

/// A mesh in which nothing is ever wrong: each kind of document once at most, and only what can be patched in changes.
#[test]
fn in_a_sound_mesh_every_edit_is_patched_in_and_ends_where_a_fresh_start_begins() {
    let given = given();
    let (mut patched, mut moved, mut told) = (0, 0, 0);
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let variant = |index: usize, random: &mut fastrand::Rng| {
            let number = random.u8(1..4).to_string();
            let text = DOCUMENTS[index].replace("enabled%", "enabled");
            // Now and then somebody writes down what was given to another.
            let text = match random.bool() {
                true => text.replace("240.240.%.%", &given),
                false => text,
            };
            text.replace('%', &number)
        };
        let mut world = World::new();
        for (index, name) in NAMES.iter().enumerate() {
            let is_left_out = RIVALS.contains(&index) || (index == LISTS && random.bool());
            if !is_left_out && random.u8(..8) > 0 {
                world
                    .texts()
                    .insert(name, vec![variant(index, &mut random)]);
            }
        }
        let mut one = Loop::new(&world, false);
        let mut other = Loop::new(&world, true);
        let mut last = one.read(&world);
        assert_eq!(last, other.read(&world));
        for step in 0..40 {
            for _ in 0..=random.u8(..2) {
                let index = PATCHED[random.usize(..PATCHED.len())];
                let there = world.texts().remove(NAMES[index]).is_some();
                if !there || random.u8(..4) > 0 {
                    let text = variant(index, &mut random);
                    world.texts().insert(NAMES[index], vec![text]);
                }
            }
            if random.u8(..3) == 0 {
                world.fetch(&mut random);
            }
            let now = one.read(&world);
            patched += usize::from(one.reload.checker.is_plain());
            moved += usize::from(now != last);
            let anew = other.read(&world);
            assert_eq!(now, anew, "seed {seed}, step {step}");
            told += check_envoys(&now, &anew, seed);
            check_woken(&last, &now, seed);
            last = now;
        }
    }
    assert!(
        patched > 200 && moved > 100 && told > 500,
        "{patched} patched, {moved} of consequence, Envoys were told {told} things"
    );
}

/// Nothing but the mesh's configuration leads from the one to the other: the pod is in another namespace than the service.
#[test]
fn whoever_asks_a_provider_hears_that_its_service_came_and_went() {
    let provider = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"extensionProviders: [{name: judge, envoyExtAuthzGrpc: {service: judge.bank.svc.cluster.local, port: 80}}]\"}";
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: judge, namespace: bank}\nspec: {selector: {app: judge}, ports: [{name: grpc, port: 80}]}";
    let world = World::new();
    let others = [0, 6, 13].map(|index| DOCUMENTS[index].replace("enabled%", "enabled"));
    let mut always: Vec<String> = others.map(|text| text.replace('%', "1")).into();
    always.push(provider.to_owned());
    world.texts().insert("a.yaml", always);
    let mut one = Loop::new(&world, false);
    let told = |snapshot: &MeshSnapshot| {
        let private = snapshot.configurations.get("shop/q");
        private.expect("its configuration").resource.version.clone()
    };
    let without = told(&one.read(&world));
    world.texts().insert("b.yaml", vec![service.to_owned()]);
    let with = told(&one.read(&world));
    assert!(one.reload.checker.is_plain(), "it was patched in");
    assert_ne!(with, without);
    world.texts().remove("b.yaml");
    assert_eq!(told(&one.read(&world)), without);
}

#[test]
fn who_leaves_is_told() {
    let world = World::new();
    let pod = DOCUMENTS[6].replace('%', "1");
    let namespace = DOCUMENTS[0].replace('%', "").clone();
    world.texts().insert("a.yaml", vec![namespace, pod]);
    let mut one = Loop::new(&world, false);
    one.read(&world);
    let old = one.reload.snapshot.clone().expect("a snapshot");
    world.texts().get_mut("a.yaml").expect("it").pop();
    one.read(&world);
    let new = one.reload.snapshot.clone().expect("a snapshot");
    let touched = new.touched_since(&old);
    assert!(touched.concerns(CALLER, "shop/q"));
    assert!(touched.concerns(CALLER, "spiffe://cluster.local/ns/shop/sa/q1"));
    assert!(!touched.concerns(CALLER, "shop/p1"));
}
