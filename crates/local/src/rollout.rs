//! Which pods of a Deployment there are while it follows its template: new ones come before old ones go, within the bounds of
//! its strategy, as Kubernetes does it. Pure: readiness comes in, a list of pods goes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::mesh::{Deployment, PodTemplate, Strategy};
use voile_model::{Labels, Mesh, ResourceName, Source};

/// Annotations with these beginnings are the sidecar's: they take effect while it runs, and no pod is replaced for them.
const LIVE_ANNOTATIONS: [&str; 1] = ["proxy.istio.io/"];

/// One pod of a Deployment. Its number stays with it; a number is given again only when its pod is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// The last part of its name.
    pub number: u32,
    /// What it is.
    pub template: PodTemplate,
    essence: PodTemplate,
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// It does not take traffic.
    Unready,
    /// It takes traffic, and perhaps not every client knows.
    Ready,
    /// Every client knows.
    Known,
}

/// What the world says to a rollout.
pub trait Scene {
    /// How far a pod is.
    fn progress(&self, pod: &ResourceName) -> Progress;
    /// Numbers of pods of this Deployment that have not ended yet.
    fn leaving(&self, deployment: &ResourceName) -> BTreeSet<u32>;
    /// Whether old and new pods of this Deployment can run side by side.
    fn fits_twice(&self, deployment: &ResourceName) -> bool;
}

/// At the beginning: nothing runs.
#[derive(Debug)]
pub struct Beginning;

impl Scene for Beginning {
    fn progress(&self, _: &ResourceName) -> Progress {
        Progress::Unready
    }
    fn leaving(&self, _: &ResourceName) -> BTreeSet<u32> {
        BTreeSet::new()
    }
    fn fits_twice(&self, _: &ResourceName) -> bool {
        true
    }
}

/// The pods of all Deployments.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    groups: BTreeMap<ResourceName, Group>,
}

#[derive(Debug, Clone)]
struct Group {
    wanted: Arc<Deployment>,
    essence: PodTemplate,
    replicas: Vec<Replica>,
}

/// The pod's name.
pub fn pod_name(deployment: &ResourceName, number: u32) -> ResourceName {
    let name = format!("{}-{number}", deployment.name);
    ResourceName::new(deployment.namespace.clone(), name)
}

/// What makes a pod another one when it changes: not where it was written, nor what its sidecar follows as it runs.
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

impl Roster {
    /// Every Deployment's pods are to become these. Nothing comes or goes yet, but for Deployments that are no more.
    pub fn want(&mut self, mesh: &Mesh) {
        self.groups
            .retain(|name, _| mesh.deployments.contains_key(name));
        for (name, deployment) in &mesh.deployments {
            let essence = essence(&deployment.template);
            let group = self.groups.entry(name.clone()).or_insert_with(|| Group {
                wanted: deployment.clone(),
                essence: essence.clone(),
                replicas: Vec::new(),
            });
            for replica in &mut group.replicas {
                if replica.essence == essence {
                    // Written elsewhere, or with other words for its sidecar.
                    replica.template = deployment.template.clone();
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

    /// Whether every Deployment has the pods it wants, and no others.
    pub fn is_settled(&self) -> bool {
        self.groups.values().all(Group::is_settled)
    }

    /// One step: pods that may go now go, pods that may come now come. Says whether anything changed.
    pub fn step(&mut self, scene: &impl Scene) -> bool {
        let mut changed = false;
        for (name, group) in &mut self.groups {
            if !group.is_settled() {
                changed |= group.step(name, scene);
            }
        }
        changed
    }
}

impl Group {
    fn is_settled(&self) -> bool {
        self.replicas.len() == self.wanted.replicas as usize
            && self.replicas.iter().all(|replica| self.is_new(replica))
    }

    fn is_new(&self, replica: &Replica) -> bool {
        replica.essence == self.essence
    }

    fn step(&mut self, name: &ResourceName, scene: &impl Scene) -> bool {
        let before: BTreeSet<u32> = self.numbers().collect();
        let leaving = scene.leaving(name);
        let wanted = self.wanted.replicas as usize;
        let how_far = |replica: &Replica| scene.progress(&pod_name(name, replica.number));
        let (mut new, old): (Vec<Replica>, Vec<Replica>) = std::mem::take(&mut self.replicas)
            .into_iter()
            .partition(|replica| replica.essence == self.essence);
        // Too many: first those that do not serve, then the latest.
        new.sort_by_key(|replica| (std::cmp::Reverse(how_far(replica)), replica.number));
        new.truncate(wanted);
        let twice = self.wanted.strategy != Strategy::Recreate && scene.fits_twice(name);
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

    /// What is said of pods in a test: their numbers, then `*` known, `+` ready, nothing: unready.
    struct Said<'a> {
        pods: &'a str,
        leaving: &'a [u32],
        twice: bool,
    }

    impl Scene for Said<'_> {
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
    fn shown(roster: &Roster, mesh: &Mesh) -> String {
        let deployment = mesh.deployments.keys().next().expect("one");
        let shown = |replica: &Replica| {
            let command = &replica.template.containers[0].command[0];
            format!("{}:{command}", replica.number)
        };
        let shown: Vec<_> = roster.replicas(deployment).iter().map(shown).collect();
        shown.join(" ")
    }

    /// From `replicas` old pods on, what is there after each word about the world.
    fn check(replicas: u32, strategy: &str, twice: bool, steps: &[(&str, &[u32], &str)]) {
        let mut roster = Roster::default();
        roster.want(&mesh(replicas, "old", strategy));
        assert!(roster.step(&Beginning));
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
        let mut roster = Roster::default();
        roster.want(&mesh(1, "old", "{}"));
        roster.step(&Beginning);
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
        let mut roster = Roster::default();
        let first = mesh(2, "old", "{}");
        roster.want(&first);
        roster.step(&Beginning);
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
        roster.step(&Beginning);
        assert_eq!(shown(&roster, &fewer), "0:old");
    }
}
