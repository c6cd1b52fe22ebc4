//! Resources that several Envoys share. Clusters and endpoints of a callee are made once for all. Listeners and routes for
//! outbound calls are made once for each scope. After an edit, the next request makes the dependent resources again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use voile_envoy::{Callee, Configuration, DependencyScope, Translator};
use voile_model::ServiceKey;
use voile_model::check::MeshPatch;
use voile_model::mesh::Mesh;
use voile_proto::type_url;
use voile_xds::server::Resource;

use super::super::translation_cache::resource_like;

/// Resources by type and name, and what could not be said.
#[derive(Debug, Default)]
pub(super) struct ResourceSetPart {
    resources: HashMap<&'static str, BTreeMap<Arc<str>, Arc<Resource>>>,
    pub(super) limits: BTreeSet<String>,
}

impl ResourceSetPart {
    /// Makes a part of a translation, and shares the unchanged resources with the part of before.
    pub(super) fn new(
        made: Configuration,
        secrets: BTreeMap<String, Value>,
        before: Option<&Self>,
    ) -> Self {
        let mut part = Self {
            resources: HashMap::new(),
            limits: made.limits.iter().map(ToString::to_string).collect(),
        };
        for (kind, all) in [
            (type_url::CLUSTER, made.clusters),
            (type_url::ENDPOINTS, made.endpoints),
            (type_url::LISTENER, made.listeners),
            (type_url::ROUTES, made.routes),
            (type_url::SECRET, secrets),
        ] {
            let old = before.and_then(|before| before.resources.get(kind));
            for (name, message) in all {
                part.encode(kind, &name, message, old);
            }
        }
        part
    }

    fn encode(
        &mut self,
        kind: &'static str,
        name: &str,
        mut message: Value,
        old: Option<&BTreeMap<Arc<str>, Arc<Resource>>>,
    ) {
        message["@type"] = Value::from(kind);
        match resource_like(name, &message, old.and_then(|old| old.get(name))) {
            Ok(resource) => {
                let of_kind = self.resources.entry(kind).or_default();
                of_kind.insert(resource.name.clone(), resource);
            }
            Err(why) => drop(self.limits.insert(format!("not-encoded: {name}: {why}"))),
        }
    }

    fn add(&mut self, other: &Self) {
        for (kind, all) in &other.resources {
            let own = self.resources.entry(kind).or_default();
            own.extend(all.iter().map(|(name, one)| (name.clone(), one.clone())));
        }
        self.limits.extend(other.limits.iter().cloned());
    }

    /// All of a type.
    pub(super) fn of(&self, kind: &str) -> impl Iterator<Item = (&Arc<str>, &Arc<Resource>)> {
        self.resources.get(kind).into_iter().flatten()
    }

    /// The one of this name.
    pub(super) fn get(&self, kind: &str, name: &str) -> Option<&Arc<Resource>> {
        self.resources.get(kind)?.get(name)
    }
}

/// Listeners and routes of a scope, and its callees.
struct Calls {
    /// Listeners and routes.
    part: Arc<ResourceSetPart>,
    callees: BTreeSet<Callee>,
    /// The same with all that belongs to the callees, until one of them is another.
    whole: Option<Arc<ResourceSetPart>>,
}

/// Resources of each callee.
type ByCallee = HashMap<Callee, Arc<ResourceSetPart>>;

/// See the module. All of it was made of the mesh that Envoys stand on.
#[derive(Default)]
pub(super) struct SharedResources {
    scopes: HashMap<DependencyScope, Calls>,
    callees: ByCallee,
    /// Those of before, whose resources are the same where they say the same.
    stale: ByCallee,
}

impl SharedResources {
    /// Forgets what may be otherwise in the mesh that follows; all of it where it is not known what changed.
    pub(super) fn follow(&mut self, following: Option<(&Mesh, &MeshPatch)>) {
        let Some((mesh, changes)) = following else {
            return self.forget_all();
        };
        // A new kind of change must decide here which shared resources depend on it.
        let MeshPatch {
            everything,
            services,
            workloads,
            endpoints,
            routes,
            inbound,
            peers: _,
            policies: _,
            tokens: _,
            telemetry: _,
            rate_limits: _,
            health_checks: _,
        } = changes;
        if *everything || !inbound.is_empty() {
            return self.forget_all();
        }
        if !services.is_empty() || routes.is_some() {
            self.scopes.clear();
        }
        if self.callees.is_empty() {
            return;
        }
        let mut touched: BTreeSet<ServiceKey> = services.keys().chain(endpoints).cloned().collect();
        for workload in workloads.values().flat_map(|(old, new)| [old, new]) {
            let of = workload.iter().flat_map(|one| mesh.services_of(one));
            touched.extend(of.map(|member| member.service.key.clone()));
        }
        if touched.is_empty() {
            return;
        }
        let is_touched =
            |callee: &Callee, _: &mut Arc<ResourceSetPart>| touched.contains(&callee.service);
        self.stale = self.callees.extract_if(is_touched).collect();
        self.scopes
            .values_mut()
            .for_each(|calls| calls.whole = None);
    }

    fn forget_all(&mut self) {
        self.scopes.clear();
        self.stale = std::mem::take(&mut self.callees);
    }

    /// All that Envoys of a scope are told of what is called from there.
    pub(super) fn calls(
        &mut self,
        translator: &Translator<'_>,
        scope: DependencyScope,
    ) -> Arc<ResourceSetPart> {
        let calls = self.scopes.entry(scope).or_insert_with_key(|scope| {
            let mut made = translator.calls(scope);
            let callees = std::mem::take(&mut made.callees);
            Calls {
                part: Arc::new(ResourceSetPart::new(made, BTreeMap::new(), None)),
                callees,
                whole: None,
            }
        });
        if let Some(whole) = &calls.whole {
            return whole.clone();
        }
        let mut whole = ResourceSetPart::default();
        whole.add(&calls.part);
        for callee in &calls.callees {
            let others = (&mut self.callees, &mut self.stale);
            whole.add(&of(others, translator, callee));
        }
        let whole = Arc::new(whole);
        calls.whole = Some(whole.clone());
        whole
    }

    /// All that an Envoy is told of those who are called, where nothing else is the same for several.
    pub(super) fn called(
        &mut self,
        translator: &Translator<'_>,
        callees: &BTreeSet<Callee>,
    ) -> Arc<ResourceSetPart> {
        let mut whole = ResourceSetPart::default();
        for callee in callees {
            let others = (&mut self.callees, &mut self.stale);
            whole.add(&of(others, translator, callee));
        }
        Arc::new(whole)
    }
}

/// Resources of one callee, made now if they are missing.
fn of(
    (callees, stale): (&mut ByCallee, &mut ByCallee),
    translator: &Translator<'_>,
    callee: &Callee,
) -> Arc<ResourceSetPart> {
    let made = callees.entry(callee.clone()).or_insert_with_key(|callee| {
        let before = stale.remove(callee);
        let made = translator.callee(callee);
        Arc::new(ResourceSetPart::new(
            made,
            BTreeMap::new(),
            before.as_deref(),
        ))
    });
    made.clone()
}
