//! Bounds of the processes of one outfit: cores by role, and a control group for each sidecar. The lab does not start a process
//! that it cannot bound: a figure under other conditions than the requested ones would belong to another experiment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use voile_host::cgroup::{self, Cgroup, Throttling};
use voile_host::child::Spec;
use voile_host::isolation::ProcessIsolation;
use voile_host::machine::cores_here;

use crate::definition::{CpuSet, Definition, SidecarLimits};
use crate::machine::instance::{Instance, is_proxy};

/// Bounds of a process, in the form that an agent takes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ProcessBound {
    pub(crate) cores: BTreeMap<String, Vec<usize>>,
    pub(crate) cpu: Option<f64>,
    pub(crate) memory_bytes: Option<u64>,
}

/// Bounds of the processes that one lab starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessBounds {
    cores: CpuSet,
    limits: Option<SidecarLimits>,
    /// By the process's name; removed when the last lab that knows them is gone.
    groups: Rc<RefCell<BTreeMap<String, Cgroup>>>,
    /// Places in which processes of a role start, if not in the lab's own.
    places: BTreeMap<&'static str, ProcessIsolation>,
}

impl ProcessBounds {
    /// Bounds of the outfit with that CPU set.
    pub(crate) fn new(definition: &Definition, cpus: &str) -> Self {
        Self {
            cores: definition.cpus.get(cpus).cloned().unwrap_or_default(),
            limits: definition.limits,
            ..Self::default()
        }
    }

    /// The bounds in the form that an agent takes.
    pub(crate) fn tell(&self) -> ProcessBound {
        ProcessBound {
            cores: self.cores.clone(),
            cpu: self.limits.and_then(|limits| limits.cpu),
            memory_bytes: self.limits.and_then(|limits| limits.memory_bytes),
        }
    }

    /// The bounds that an agent received.
    pub(crate) fn told(bound: &ProcessBound) -> Self {
        let limits = SidecarLimits {
            cpu: bound.cpu,
            memory_bytes: bound.memory_bytes,
        };
        Self {
            cores: bound.cores.clone(),
            limits: (limits != SidecarLimits::default()).then_some(limits),
            ..Self::default()
        }
    }

    /// The same bounds, with places for some roles.
    pub(crate) fn with_places<const N: usize>(
        &self,
        places: [(&'static str, ProcessIsolation); N],
    ) -> Self {
        let mut bounds = self.clone();
        bounds.places.extend(places);
        bounds
    }

    /// The same bounds, with groups of its own.
    pub(crate) fn anew(&self) -> Self {
        Self {
            groups: Rc::default(),
            ..self.clone()
        }
    }

    /// Binds a process before it starts.
    pub(crate) fn bind(&self, role: &str, name: &str, spec: Spec) -> Result<Spec, String> {
        let spec = match self.cores.get(role) {
            Some(cores) => spec.cores(cores),
            None => spec,
        };
        let spec = match self.places.get(role) {
            Some(place) => spec.place(place.clone()),
            None => spec,
        };
        let Some(limits) = self.limits.filter(|_| is_proxy(role)) else {
            return Ok(spec);
        };
        let mut groups = self.groups.borrow_mut();
        if !groups.contains_key(name) {
            // Outfits and slices may start one of the same name again.
            let unique = format!("{:08x}-{name}", fastrand::u32(..));
            groups.insert(name.to_owned(), group(&unique, limits)?);
        }
        let group = &groups[name];
        spec.cgroup(group)
            .map_err(|e| format!("{name} cannot be limited: {e}"))
    }

    /// The cores that this role is kept to; none where it may use all.
    pub(crate) fn cores(&self, role: &str) -> Vec<usize> {
        self.cores.get(role).cloned().unwrap_or_default()
    }

    /// Number and length of the instance's throttled periods; none if its CPU is not limited.
    pub(crate) fn throttling(&self, instance: &Instance) -> Option<Throttling> {
        self.limits?.cpu?;
        self.groups.borrow().get(&instance.name)?.throttling().ok()
    }

    /// Reports the kernel's out-of-memory kill of an instance, in words.
    pub(crate) fn killed(&self, instance: &str) -> Option<String> {
        let groups = self.groups.borrow();
        let limits = self
            .limits
            .filter(|_| groups.get(instance).is_some_and(Cgroup::out_of_memory))?;
        Some(format!(
            "{instance} was out of memory under its limit of {}",
            limits.in_words()
        ))
    }
}

fn group(name: &str, limits: SidecarLimits) -> Result<Cgroup, String> {
    let limits = cgroup::CgroupLimits {
        cpu: limits.cpu,
        memory_bytes: limits.memory_bytes,
    };
    Cgroup::create(name, limits).map_err(|e| {
        format!(
            "[limits] needs control groups that this user may make (run as root, or without [limits]): {e}"
        )
    })
}

/// Checks if this machine can do what the definition asks, before anything is started.
pub(crate) fn possible(definition: &Definition, far: bool) -> Result<(), String> {
    let here = cores_here();
    for (name, set) in &definition.cpus {
        let used = definition.cells.iter().any(|cell| cell.shape.cpus == *name);
        // An agent looks at those that run with it.
        let ours = |role: &str| !(far && ["server", "server-sidecar"].contains(&role));
        for (role, cores) in set.iter().filter(|(role, _)| used && ours(role)) {
            if let Some(stranger) = cores.iter().find(|core| !here.contains(core)) {
                let here: Vec<String> = here.iter().map(ToString::to_string).collect();
                return Err(format!(
                    "CPU set {name} gives {role} core {stranger}, but this process may run on {} only",
                    here.join(", ")
                ));
            }
        }
    }
    if let Some(limits) = definition.limits {
        cgroup::sweep();
        drop(group("trial", limits)?);
    }
    Ok(())
}
