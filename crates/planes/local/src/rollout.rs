//! Which pods of a controller there are while it follows its template, as Kubernetes does it: a Deployment's new ones come before
//! old ones go, within the bounds of its strategy; those of StatefulSets, DaemonSets and Jobs keep their numbers. Pure: readiness
//! comes in, a list of pods goes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::mesh::{ControllerKind, Deployment, PodNumbering, PodTemplate, Strategy};
use voile_model::{Labels, Mesh, ResourceName, Source};

/// Annotations with these beginnings are the sidecar's: they take effect while it runs, and no pod is replaced for them.
const LIVE_ANNOTATIONS: [&str; 1] = ["proxy.istio.io/"];

/// One pod of a Deployment. Its number stays with it; a number is given again only when its pod is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// The last part of its name.
    pub number: u32,
    /// Template of its pods.
    pub template: PodTemplate,
    essence: PodTemplate,
}

/// State of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// It does not take traffic.
    Unready,
    /// It takes traffic, and perhaps not every client knows.
    Ready,
    /// Every client knows.
    Known,
}

/// Environment of a rollout: the state of its pods.
pub trait RolloutEnvironment {
    /// Returns the state of a pod.
    fn progress(&self, pod: &ResourceName) -> Progress;
    /// Numbers of pods of this Deployment that have not ended yet.
    fn leaving(&self, deployment: &ResourceName) -> BTreeSet<u32>;
    /// Returns true if old and new pods of this Deployment can run side by side.
    fn fits_twice(&self, deployment: &ResourceName) -> bool;
    /// Returns true if the applications of a pod have ended for good.
    fn is_over(&self, pod: &ResourceName) -> bool;
}

/// At the beginning: nothing runs.
#[derive(Debug)]
pub struct EmptyEnvironment;

impl RolloutEnvironment for EmptyEnvironment {
    fn progress(&self, _: &ResourceName) -> Progress {
        Progress::Unready
    }
    fn leaving(&self, _: &ResourceName) -> BTreeSet<u32> {
        BTreeSet::new()
    }
    fn fits_twice(&self, _: &ResourceName) -> bool {
        true
    }
    fn is_over(&self, _: &ResourceName) -> bool {
        false
    }
}

/// The pods of all controllers, by `Deployment::key`.
#[derive(Debug, Clone, Default)]
pub struct PodRoster {
    groups: BTreeMap<ResourceName, ReplicaGroup>,
}

#[derive(Debug, Clone)]
struct ReplicaGroup {
    wanted: Arc<Deployment>,
    essence: PodTemplate,
    replicas: Vec<Replica>,
}

/// Labels that Kubernetes gives to the pods of a StatefulSet and of a Job.
const STATEFUL_POD: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
const JOB_NAMES: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
/// The same, of a Job whose pods have numbers of their own; the variable JOB_COMPLETION_INDEX says it, too.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The template of one pod, with the labels by which Kubernetes tells it from the others.
fn template_of(wanted: &Deployment, number: u32) -> PodTemplate {
    let mut template = wanted.template.clone();
    let index = || Arc::<str>::from(number.to_string());
    let added: Vec<(&str, Arc<str>)> = match wanted.kind {
        ControllerKind::Deployment | ControllerKind::DaemonSet => return template,
        ControllerKind::StatefulSet => {
            let name = pod_name(&wanted.name, number).name;
            vec![(STATEFUL_POD, name), (POD_INDEX, index())]
        }
        ControllerKind::Job { indexed } => {
            let name = &wanted.name.name;
            let names = JOB_NAMES.map(|label| (label, name.clone()));
            let index = indexed.then(|| (COMPLETION_INDEX, index()));
            names.into_iter().chain(index).collect()
        }
    };
    let own = template.labels.iter();
    let own = own.map(|(key, value)| (key.clone(), value.clone()));
    let added = added
        .into_iter()
        .map(|(key, value)| (Arc::<str>::from(key), value));
    template.labels = own.chain(added).collect();
    template
}

/// The pod's name.
pub fn pod_name(deployment: &ResourceName, number: u32) -> ResourceName {
    let name = format!("{}-{number}", deployment.name);
    ResourceName::new(deployment.namespace.clone(), name)
}

/// Returns the part of a template whose change makes another pod. It leaves out the source, and settings that the
/// sidecar learns while it runs.
pub fn essence(template: &PodTemplate) -> PodTemplate {
    let nowhere = Source {
        file: "".into(),
        line: 0,
        column: 0,
    };
    let mut essence = template.clone();
    essence.service_account_source = None;
    for container in &mut essence.containers {
        container.source = nowhere.clone();
        for port in &mut container.ports {
            port.source = nowhere.clone();
        }
    }
    let lives = |key: &str| LIVE_ANNOTATIONS.iter().any(|start| key.starts_with(start));
    let kept = template.annotations.iter().filter(|(key, _)| !lives(key));
    essence.annotations = kept
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect::<Labels>();
    essence
}

impl PodRoster {
    /// Every controller's pods are to become these. Nothing comes or goes yet, but for controllers that are no more.
    pub fn want(&mut self, mesh: &Mesh) {
        self.groups
            .retain(|name, _| mesh.deployments.contains_key(name));
        for (name, deployment) in &mesh.deployments {
            let essence = essence(&deployment.template);
            let group = self
                .groups
                .entry(name.clone())
                .or_insert_with(|| ReplicaGroup {
                    wanted: deployment.clone(),
                    essence: essence.clone(),
                    replicas: Vec::new(),
                });
            for replica in &mut group.replicas {
                if replica.essence == essence {
                    // Written elsewhere, or with other words for its sidecar.
                    replica.template = template_of(deployment, replica.number);
                }
            }
            (group.wanted, group.essence) = (deployment.clone(), essence);
        }
    }

    /// The pods of a Deployment, old and new, in order.
    pub fn replicas(&self, deployment: &ResourceName) -> &[Replica] {
        self.groups
            .get(deployment)
            .map_or(&[], |group| &group.replicas)
    }

    /// Returns true if every controller has exactly the pods it wants.
    pub fn is_settled(&self) -> bool {
        self.groups.values().all(ReplicaGroup::is_settled)
    }

    /// Returns the controllers whose pods come in order and are not all there yet. The mesh is not ready before they
    /// are.
    pub fn comes_in_order(&self) -> impl Iterator<Item = &ResourceName> {
        let coming = |group: &&ReplicaGroup| match group.wanted.strategy {
            Strategy::Numbered(numbering) => {
                numbering.in_order && group.replicas.len() < group.wanted.replicas as usize
            }
            Strategy::Recreate | Strategy::RollingUpdate { .. } => false,
        };
        let groups = self.groups.values().filter(coming);
        groups.map(|group| &group.wanted.name)
    }

    /// One step: pods that may go now go, pods that may come now come. Says whether anything changed.
    pub fn step(&mut self, scene: &impl RolloutEnvironment) -> bool {
        let mut changed = false;
        for (name, group) in &mut self.groups {
            if !group.is_settled() {
                changed |= group.step(name, scene);
            }
        }
        changed
    }
}

impl ReplicaGroup {
    fn is_settled(&self) -> bool {
        let kept_below = match self.wanted.strategy {
            Strategy::Numbered(numbering) => numbering.kept_below,
            Strategy::Recreate | Strategy::RollingUpdate { .. } => 0,
        };
        self.replicas.len() == self.wanted.replicas as usize
            && self
                .replicas
                .iter()
                .all(|replica| self.is_new(replica) || replica.number < kept_below)
    }

    fn is_new(&self, replica: &Replica) -> bool {
        replica.essence == self.essence
    }

    fn step(&mut self, key: &ResourceName, scene: &impl RolloutEnvironment) -> bool {
        if let Strategy::Numbered(numbering) = self.wanted.strategy {
            return self.step_numbered(key, numbering, scene);
        }
        let name = &self.wanted.name;
        let before: BTreeSet<u32> = self.numbers().collect();
        let leaving = scene.leaving(key);
        let wanted = self.wanted.replicas as usize;
        let how_far = |replica: &Replica| scene.progress(&pod_name(name, replica.number));
        let (mut new, old): (Vec<Replica>, Vec<Replica>) = std::mem::take(&mut self.replicas)
            .into_iter()
            .partition(|replica| replica.essence == self.essence);
        // Too many: first those that do not serve, then the latest.
        new.sort_by_key(|replica| (std::cmp::Reverse(how_far(replica)), replica.number));
        new.truncate(wanted);
        let twice = self.wanted.strategy != Strategy::Recreate && scene.fits_twice(key);
        let (surge, unavailable) = match (twice, self.wanted.strategy.bounds(self.wanted.replicas))
        {
            (true, (surge, unavailable)) => (surge as usize, unavailable as usize),
            (false, (_, unavailable)) => (0, unavailable.max(1) as usize),
        };
        let least = wanted.saturating_sub(unavailable);
        let known = new.iter().filter(|new| how_far(new) == Progress::Known);
        let stay = staying(old, (new.len(), known.count()), least, how_far);
        let gone = before.len().saturating_sub(new.len() + stay.len());
        let ending = if twice { 0 } else { leaving.len() + gone };
        let room = (wanted + surge).saturating_sub(new.len() + stay.len() + ending);
        let missing = wanted.saturating_sub(new.len()).min(room);
        self.replicas = stay.into_iter().chain(new).collect();
        let used: BTreeSet<u32> = self
            .numbers()
            .chain(leaving)
            .chain(before.iter().copied())
            .collect();
        let free = (0..).filter(|number| !used.contains(number)).take(missing);
        self.replicas.extend(free.map(|number| Replica {
            number,
            template: self.wanted.template.clone(),
            essence: self.essence.clone(),
        }));
        self.replicas.sort_by_key(|replica| replica.number);
        self.numbers().collect::<BTreeSet<u32>>() != before
    }

    /// Pods keep their numbers: too many go, an old one becomes a new one in its place, and missing ones come.
    fn step_numbered(
        &mut self,
        key: &ResourceName,
        numbering: PodNumbering,
        scene: &impl RolloutEnvironment,
    ) -> bool {
        let wanted = self.wanted.clone();
        let first = numbering.first;
        let numbers = first..first.saturating_add(wanted.replicas);
        let before = self.replicas.len();
        self.replicas
            .retain(|replica| numbers.contains(&replica.number));
        let mut changed = self.replicas.len() != before;
        let leaving = scene.leaving(key);
        let serves = |replica: &Replica| {
            scene.progress(&pod_name(&wanted.name, replica.number)) > Progress::Unready
        };
        // The last first; each waits until those after it serve.
        for replica in self.replicas.iter_mut().rev() {
            if replica.essence != self.essence && replica.number >= numbering.kept_below {
                if numbering.in_turn && !leaving.is_empty() {
                    break;
                }
                replica.template = template_of(&wanted, replica.number);
                replica.essence = self.essence.clone();
                changed = true;
                if numbering.in_turn {
                    break;
                }
            } else if numbering.in_turn && !serves(replica) {
                break;
            }
        }
        let is_over = |replica: &&Replica| scene.is_over(&pod_name(&wanted.name, replica.number));
        let over = self.replicas.iter().filter(is_over).count();
        let mut running = self.replicas.len() - over;
        for number in numbers {
            if self.replicas.iter().any(|replica| replica.number == number) {
                continue;
            }
            let mut before = self.replicas.iter().filter(|one| one.number < number);
            let waits = numbering.in_order && !before.all(serves);
            if waits || running >= numbering.at_once as usize || leaving.contains(&number) {
                break;
            }
            self.replicas.push(Replica {
                number,
                template: template_of(&wanted, number),
                essence: self.essence.clone(),
            });
            self.replicas.sort_by_key(|replica| replica.number);
            running += 1;
            changed = true;
        }
        changed
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.replicas.iter().map(|replica| replica.number)
    }
}

/// The old pods that stay for now, when of the new ones (all, known) are there and `least` must serve.
fn staying(
    mut old: Vec<Replica>,
    (new, known): (usize, usize),
    least: usize,
    how_far: impl Fn(&Replica) -> Progress,
) -> Vec<Replica> {
    let serves = |replica: &Replica| how_far(replica) > Progress::Unready;
    let mut serving = known + old.iter().filter(|old| serves(old)).count();
    let mut spare = (new + old.len()).saturating_sub(least + (new - known));
    // The latest go first.
    old.sort_by_key(|replica| std::cmp::Reverse(replica.number));
    old.retain(|replica| {
        let (count, bound) = match serves(replica) {
            true => (&mut serving, least),
            false => (&mut spare, 0),
        };
        let stays = *count <= bound;
        if !stays {
            *count -= 1;
        }
        stays
    });
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State of pods in a test: their numbers, then `*` known, `+` ready, `x` over, nothing: unready.
    struct Said<'a> {
        pods: &'a str,
        leaving: &'a [u32],
        twice: bool,
    }

    impl RolloutEnvironment for Said<'_> {
        fn progress(&self, pod: &ResourceName) -> Progress {
            let number = pod.name.rsplit('-').next().unwrap_or_default();
            let said = self
                .pods
                .split(' ')
                .find_map(|pod| pod.strip_prefix(number));
            match said {
                Some("*") => Progress::Known,
                Some("+") => Progress::Ready,
                _ => Progress::Unready,
            }
        }
        fn leaving(&self, _: &ResourceName) -> BTreeSet<u32> {
            self.leaving.iter().copied().collect()
        }
        fn fits_twice(&self, _: &ResourceName) -> bool {
            self.twice
        }
        fn is_over(&self, pod: &ResourceName) -> bool {
            let number = pod.name.rsplit('-').next().unwrap_or_default();
            let over = format!("{number}x");
            self.pods.split(' ').any(|pod| pod == over)
        }
    }

    fn mesh(replicas: u32, version: &str, strategy: &str) -> Mesh {
        let text = format!(
            r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec:
  replicas: {replicas}
  strategy: {strategy}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: app, command: [{version}], ports: [{{containerPort: 80}}]}}]}}
"#
        );
        let files = [voile_model::SourceFile::new("web.yaml", text)];
        let (mesh, problems) = voile_model::check(&files, None);
        assert!(problems.is_empty(), "{problems:?}");
        mesh
    }

    /// The pods as `number:command`.
    fn shown(roster: &PodRoster, mesh: &Mesh) -> String {
        let deployment = mesh.deployments.keys().next().expect("one");
        let shown = |replica: &Replica| {
            let command = &replica.template.containers[0].command[0];
            format!("{}:{command}", replica.number)
        };
        let shown: Vec<_> = roster.replicas(deployment).iter().map(shown).collect();
        shown.join(" ")
    }

    /// Checks the pods after each state of the world, from `replicas` old pods on.
    fn check(replicas: u32, strategy: &str, twice: bool, steps: &[(&str, &[u32], &str)]) {
        let mut roster = PodRoster::default();
        roster.want(&mesh(replicas, "old", strategy));
        assert!(roster.step(&EmptyEnvironment));
        assert!(roster.is_settled());
        let mesh = mesh(replicas, "new", strategy);
        roster.want(&mesh);
        for (number, (pods, leaving, expected)) in steps.iter().enumerate() {
            assert!(!roster.is_settled(), "step {number} is not needed");
            let (pods, leaving) = (*pods, *leaving);
            roster.step(&Said {
                pods,
                leaving,
                twice,
            });
            assert_eq!(shown(&roster, &mesh), *expected, "step {number}: {pods}");
        }
        assert!(roster.is_settled());
    }

    #[test]
    fn the_only_pod_stays_until_every_client_knows_its_successor() {
        check(
            1,
            "{}",
            true,
            &[
                ("0*", &[], "0:old 1:new"),
                ("0* 1", &[], "0:old 1:new"),
                ("0* 1+", &[], "0:old 1:new"),
                ("0* 1*", &[], "1:new"),
            ],
        );
    }

    #[test]
    fn a_quarter_may_be_too_many_and_a_quarter_missing() {
        check(
            4,
            "{}",
            true,
            &[
                // One goes at once, and two come: four and one too many.
                ("0* 1* 2* 3*", &[], "0:old 1:old 2:old 4:new 5:new"),
                ("0* 1* 2*", &[3], "0:old 1:old 2:old 4:new 5:new"),
                ("0* 1* 2* 4*", &[3], "0:old 1:old 4:new 5:new 6:new"),
                ("0* 1* 4* 5* 6*", &[2], "3:new 4:new 5:new 6:new"),
            ],
        );
    }

    #[test]
    fn bounds_are_the_strategys() {
        let none_missing = "{rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}";
        check(
            2,
            none_missing,
            true,
            &[
                ("0* 1*", &[], "0:old 1:old 2:new"),
                ("0* 1* 2*", &[], "0:old 2:new 3:new"),
                ("0* 2* 3", &[1], "0:old 2:new 3:new"),
                ("0* 2* 3*", &[], "2:new 3:new"),
            ],
        );
        check(
            2,
            "{type: Recreate}",
            true,
            &[
                ("0* 1*", &[], ""),
                ("", &[0, 1], ""),
                ("", &[1], "0:new"),
                ("0", &[], "0:new 1:new"),
            ],
        );
    }

    #[test]
    fn where_two_do_not_fit_the_new_comes_when_the_old_is_gone() {
        check(
            1,
            "{}",
            false,
            &[("0*", &[], ""), ("", &[0], ""), ("", &[], "0:new")],
        );
    }

    #[test]
    fn a_version_that_never_becomes_ready_keeps_the_old_and_the_next_one_replaces_it_first() {
        let mut roster = PodRoster::default();
        roster.want(&mesh(1, "old", "{}"));
        roster.step(&EmptyEnvironment);
        let pods = "0*";
        let scene = Said {
            pods,
            leaving: &[],
            twice: true,
        };
        let broken = mesh(1, "broken", "{}");
        roster.want(&broken);
        for _ in 0..3 {
            roster.step(&scene);
            assert_eq!(shown(&roster, &broken), "0:old 1:broken");
        }
        let good = mesh(1, "good", "{}");
        roster.want(&good);
        roster.step(&scene);
        assert_eq!(shown(&roster, &good), "0:old 2:good", "a number of its own");
    }

    #[test]
    fn an_edit_that_only_moves_lines_or_speaks_to_the_sidecar_replaces_nobody() {
        let mut roster = PodRoster::default();
        let first = mesh(2, "old", "{}");
        roster.want(&first);
        roster.step(&EmptyEnvironment);
        let deployment = first.deployments.values().next().expect("one");
        let mut moved = deployment.template.clone();
        moved.containers[0].source.line += 7;
        moved.containers[0].ports[0].source.line += 7;
        assert_eq!(essence(&moved), essence(&deployment.template));
        moved.containers[0].command = vec!["other".into()];
        assert_ne!(essence(&moved), essence(&deployment.template));
        roster.want(&first);
        assert!(roster.is_settled());
        // Fewer: the latest goes.
        let fewer = mesh(1, "old", "{}");
        roster.want(&fewer);
        roster.step(&EmptyEnvironment);
        assert_eq!(shown(&roster, &fewer), "0:old");
    }

    fn numbered(kind: &str, version: &str, more: &str) -> Mesh {
        let text = format!(
            r#"
apiVersion: {api}
kind: {kind}
metadata: {{name: web, namespace: shop}}
spec:
  {more}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{{restart} containers: [{{name: app, command: [{version}], ports: [{{containerPort: 80}}]}}]}}
"#,
            api = if kind == "Job" { "batch/v1" } else { "apps/v1" },
            restart = if kind == "Job" {
                "restartPolicy: Never,"
            } else {
                ""
            },
        );
        let files = [voile_model::SourceFile::new("web.yaml", text)];
        let (mesh, problems) = voile_model::check(&files, None);
        assert!(problems.is_empty(), "{problems:?}");
        mesh
    }

    /// Checks the pods after each state of the world, from none on.
    fn check_numbered(roster: &mut PodRoster, mesh: &Mesh, steps: &[(&str, &[u32], &str)]) {
        roster.want(mesh);
        for (number, (pods, leaving, expected)) in steps.iter().enumerate() {
            let (pods, leaving) = (*pods, *leaving);
            let twice = true;
            roster.step(&Said {
                pods,
                leaving,
                twice,
            });
            let key = mesh.deployments.keys().next().expect("one");
            let shown: Vec<_> = roster
                .replicas(key)
                .iter()
                .map(|one| format!("{}:{}", one.number, one.template.containers[0].command[0]))
                .collect();
            assert_eq!(shown.join(" "), *expected, "step {number}: {pods}");
        }
        assert!(roster.is_settled());
    }

    #[test]
    fn pods_of_a_stateful_set_come_in_order_and_are_replaced_from_the_last() {
        let selector = "selector: {matchLabels: {app: web}}\n  replicas: 3";
        let mut roster = PodRoster::default();
        let old = numbered("StatefulSet", "old", selector);
        check_numbered(
            &mut roster,
            &old,
            &[
                ("", &[], "0:old"),
                ("0", &[], "0:old"),
                ("0+", &[], "0:old 1:old"),
                ("0+ 1", &[], "0:old 1:old"),
                ("0+ 1+", &[], "0:old 1:old 2:old"),
            ],
        );
        let key = old.deployments.keys().next().expect("one");
        let pod = &roster.replicas(key)[2].template;
        assert_eq!(pod.labels.get(STATEFUL_POD), Some("web-2"));
        assert_eq!(pod.labels.get(POD_INDEX), Some("2"));
        let new = numbered("StatefulSet", "new", selector);
        check_numbered(
            &mut roster,
            &new,
            &[
                ("0+ 1+ 2+", &[], "0:old 1:old 2:new"),
                ("0+ 1+", &[2], "0:old 1:old 2:new"),
                ("0+ 1+ 2", &[], "0:old 1:old 2:new"),
                ("0+ 1+ 2+", &[], "0:old 1:new 2:new"),
                ("0+ 1+ 2+", &[], "0:new 1:new 2:new"),
            ],
        );
        let some = format!("{selector}\n  updateStrategy: {{rollingUpdate: {{partition: 2}}}}");
        let newer = numbered("StatefulSet", "newer", &some);
        check_numbered(
            &mut roster,
            &newer,
            &[("0+ 1+ 2+", &[], "0:new 1:new 2:newer")],
        );
        let fewer = "selector: {matchLabels: {app: web}}\n  replicas: 1\n  ordinals: {start: 1}";
        let fewer = numbered("StatefulSet", "new", fewer);
        check_numbered(&mut roster, &fewer, &[("0+ 1+ 2+", &[], "1:new")]);
    }

    #[test]
    fn a_job_runs_so_many_at_a_time_and_none_again_that_is_over() {
        let job = numbered(
            "Job",
            "do",
            "completions: 3\n  parallelism: 2\n  completionMode: Indexed",
        );
        let mut roster = PodRoster::default();
        check_numbered(
            &mut roster,
            &job,
            &[
                ("", &[], "0:do 1:do"),
                ("0 1", &[], "0:do 1:do"),
                ("0 1x", &[], "0:do 1:do 2:do"),
                ("0x 1x 2x", &[], "0:do 1:do 2:do"),
            ],
        );
        let key = job.deployments.keys().next().expect("one");
        let pod = &roster.replicas(key)[2].template;
        assert_eq!(pod.labels.get(COMPLETION_INDEX), Some("2"));
        assert_eq!(pod.labels.get("job-name"), Some("web"));
        assert_eq!(pod.restart, voile_model::mesh::Restart::Times(6));
    }

    #[test]
    fn a_daemon_set_has_one_pod_whose_successor_has_its_name() {
        let selector = "selector: {matchLabels: {app: web}}";
        let mut roster = PodRoster::default();
        let old = numbered("DaemonSet", "old", selector);
        check_numbered(&mut roster, &old, &[("", &[], "0:old")]);
        let new = numbered("DaemonSet", "new", selector);
        check_numbered(&mut roster, &new, &[("0+", &[], "0:new")]);
    }
}
