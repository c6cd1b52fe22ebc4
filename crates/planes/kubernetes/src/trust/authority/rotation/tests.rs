//! Changes of the authority, step by step.

use std::time::{Duration, Instant, SystemTime};

use voile_identity::{Authority, AuthorityFiles};
use voile_model::TrustDomain;

use super::{Rotation, certificates};

const OVERLAP: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);

fn authority() -> AuthorityFiles {
    let name = TrustDomain::new("cluster.local").expect("a domain");
    Authority::generate(&name, SystemTime::now()).expect("an authority")
}

/// A rotation, and its clock.
struct Clock {
    rotation: Rotation,
    now: Instant,
}

impl Clock {
    fn of(files: &AuthorityFiles) -> Self {
        Self {
            rotation: Rotation::new(files.clone(), OVERLAP, LONGEST),
            now: Instant::now(),
        }
    }

    /// Whose key signs after a time, and whose roots are trusted.
    fn after<'a>(
        &mut self,
        time: Duration,
        known: &[(&'a str, &AuthorityFiles)],
    ) -> (&'a str, Vec<&'a str>) {
        self.now += time;
        self.rotation
            .advance(self.now, SystemTime::now())
            .expect("an authority");
        let in_force = &self.rotation.in_force;
        let signer = known.iter().find(|(_, one)| one.key == in_force.key);
        let roots = certificates(&in_force.roots);
        let trusted = known.iter().filter(|(_, one)| {
            certificates(&one.certificate)
                .iter()
                .all(|root| roots.contains(root))
        });
        (
            signer.expect("a known signer").0,
            trusted.map(|(name, _)| *name).collect(),
        )
    }
}

#[test]
fn one_edit_is_a_rotation_in_three_steps() {
    let (old, new) = (authority(), authority());
    let known = [("old", &old), ("new", &new)];
    let mut clock = Clock::of(&old);
    assert_eq!(clock.after(Duration::ZERO, &known), ("old", vec!["old"]));
    assert!(clock.rotation.want(new.clone()));
    assert!(!clock.rotation.want(new.clone()));
    let both = vec!["old", "new"];
    assert_eq!(
        clock.after(Duration::ZERO, &known),
        ("old", both.clone()),
        "first the new root is trusted"
    );
    assert_eq!(clock.after(OVERLAP / 2, &known), ("old", both.clone()));
    assert_eq!(
        clock.after(OVERLAP / 2, &known),
        ("new", both.clone()),
        "then its key signs"
    );
    assert_eq!(clock.after(LONGEST - OVERLAP, &known), ("new", both));
    assert_eq!(
        clock.after(OVERLAP, &known),
        ("new", vec!["new"]),
        "the old root goes after its last certificate"
    );
    assert_eq!(clock.rotation.due(), None);
}

#[test]
fn a_root_that_was_trusted_before_needs_no_overlap() {
    let (old, new) = (authority(), authority());
    let known = [("old", &old), ("new", &new)];
    let mut clock = Clock::of(&old);
    let roots = format!("{}{}", old.roots, new.roots);
    clock.rotation.want(AuthorityFiles {
        roots: roots.clone(),
        ..old.clone()
    });
    let both = vec!["old", "new"];
    assert_eq!(clock.after(Duration::ZERO, &known), ("old", both.clone()));
    clock.rotation.want(AuthorityFiles {
        roots,
        ..new.clone()
    });
    assert_eq!(clock.after(OVERLAP, &known), ("new", both.clone()));
    // The old root is taken out too early: certificates below it are alive.
    clock.rotation.want(new.clone());
    assert_eq!(clock.after(OVERLAP, &known), ("new", both));
    assert!(clock.rotation.keeps_old_roots());
    assert_eq!(clock.after(LONGEST + OVERLAP, &known), ("new", vec!["new"]));
}

#[test]
fn a_change_that_is_taken_back_leaves_what_was() {
    let (old, new) = (authority(), authority());
    let known = [("old", &old), ("new", &new)];
    let mut clock = Clock::of(&old);
    clock.rotation.want(new.clone());
    clock.after(OVERLAP / 2, &known);
    clock.rotation.want(old.clone());
    assert_eq!(clock.after(Duration::ZERO, &known), ("old", vec!["old"]));
    // After the new key has signed, the way back is as safe.
    clock.rotation.want(new.clone());
    clock.after(Duration::ZERO, &known);
    assert_eq!(clock.after(OVERLAP, &known).0, "new");
    clock.rotation.want(old.clone());
    assert_eq!(clock.after(OVERLAP, &known), ("old", vec!["old", "new"]));
}

#[test]
fn a_renewed_root_of_the_same_key_signs_at_once() {
    let begun = SystemTime::now() - voile_identity::authority::ROOT_LIFE * 9 / 10;
    let name = TrustDomain::new("cluster.local").expect("a domain");
    let old = Authority::generate(&name, begun).expect("an authority");
    let fresh = authority();
    let renew = |files| voile_identity::renew_root(files, SystemTime::now()).expect("renewed");
    assert!(renew(&fresh).is_none());
    let new = renew(&old).expect("its end is near");
    assert!(renew(&new).is_none());
    let mut clock = Clock::of(&old);
    clock.rotation.want(new.clone());
    clock.after(Duration::ZERO, &[("old", &old)]);
    assert!(!clock.rotation.waits());
    // What the renewed one signs is good below the root before it, and the other way round.
    for (signer, root) in [(&old, &new), (&new, &old)] {
        let files = AuthorityFiles {
            roots: root.roots.clone(),
            ..signer.clone()
        };
        Authority::from_files(&files, SystemTime::now()).expect("one key, one name");
    }
}
