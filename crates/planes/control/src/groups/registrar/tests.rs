//! The folder that control planes share: whose file is whose, who takes over from whom, and who is taken away.

use voile_model::mesh::WorkloadGroup;

use super::*;
use crate::groups::tests::{claim, group_of};

/// A control plane's hand on the folder.
fn files(folder: &Path) -> GroupFiles {
    GroupFiles {
        folder: folder.to_path_buf(),
        holder: ReplicaName::new(folder).expect("a folder"),
        grace: Duration::from_secs(10),
        orphans: BTreeMap::new(),
    }
}

/// The wanted document of a member.
fn wanted(
    claim: &Claim,
    group: &WorkloadGroup,
    well: Option<bool>,
    before: Option<&str>,
) -> WantedDocument {
    let health = well.map(|well| match well {
        true => Ok(()),
        false => Err("no".to_owned()),
    });
    WantedDocument {
        entry: Some(GroupDocument::of(group, claim, health.as_ref())),
        claim: claim.clone(),
        before: before.map(str::to_owned),
    }
}

fn there(files: &GroupFiles, name: &str) -> Option<GroupDocument> {
    let text = files.file(name).read().expect("the folder is there")?;
    GroupDocument::parse(&text)
}

#[test]
fn an_address_is_one_members_who_may_move_with_all_that_is_known_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (files(folder.path()), files(folder.path()));
    let claim = claim("10.0.0.7");
    let group = group_of(&claim);
    let file = one.put(wanted(&claim, &group, Some(false), None));
    let file = file.expect("it is taken in").expect("a file");
    let held = there(&one, &file).expect("an entry");
    assert_eq!(held.holder(), one.holder.name());
    // Somebody of another account cannot have it.
    let mut foreign = claim.clone();
    foreign.account = "intruder".into();
    let mut theirs = group.clone();
    theirs.service_account = foreign.account.clone();
    let refusal = other.put(wanted(&foreign, &theirs, None, None));
    let refusal = refusal.expect_err("it is somebody's");
    assert!(
        refusal
            .message()
            .contains("shop/vm-10.0.0.7, which has already joined"),
        "{refusal}"
    );
    assert_eq!(there(&one, &file).as_ref(), Some(&held));
    // It goes to the other control plane, and says nothing of itself there: it is as sick as it was.
    let moved = other.put(wanted(&claim, &group, None, None));
    assert_eq!(moved.expect("it is the same"), Some(file.clone()));
    let mut expected = held.clone();
    expected.set_holder(other.holder.name());
    assert_eq!(there(&one, &file), Some(expected));
    // A control plane that no longer holds the document removes nothing.
    one.remove(&file);
    assert!(there(&one, &file).is_some());
    other.remove(&file);
    assert_eq!(there(&one, &file), None);
}

#[test]
fn a_member_whose_file_is_called_otherwise_by_now_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = files(folder.path());
    let claim = claim("10.0.0.7");
    let mut group = group_of(&claim);
    let file = files.put(wanted(&claim, &group, None, None));
    let file = file.expect("it is taken in").expect("a file");
    group.network = "elsewhere".into();
    let moved = files.put(wanted(&claim, &group, None, Some(&file)));
    let moved = moved.expect("it stays").expect("a file");
    assert_ne!(moved, file);
    assert_eq!(
        (there(&files, &file), there(&files, &moved).is_some()),
        (None, true)
    );
}

#[test]
fn members_of_who_runs_stay_and_those_of_who_ended_have_a_minute_to_come() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, mut other) = (files(folder.path()), files(folder.path()));
    let [left, comes] = ["10.0.0.7", "10.0.0.8"].map(claim);
    let put = |files: &GroupFiles, claim: &Claim| {
        let file = files.put(wanted(claim, &group_of(claim), None, None));
        file.expect("it is taken in").expect("a file")
    };
    let names = [put(&one, &left), put(&one, &comes)];
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let found = |files: &GroupFiles| names.each_ref().map(|name| there(files, name).is_some());
    for seconds in [0, 100, 200] {
        let (seen, next) = other.look(at(seconds));
        assert_eq!(seen.len(), 2);
        assert!(
            next.is_some_and(|next| next > at(seconds)),
            "they are looked at again"
        );
    }
    assert_eq!(found(&other), [true, true]);
    drop(one);
    other.look(at(300));
    other.look(at(359));
    assert_eq!(found(&other), [true, true]);
    // Another control plane has one of them by now.
    let third = files(folder.path());
    put(&third, &comes);
    other.look(at(361));
    assert_eq!(found(&other), [false, true]);
    drop(third);
    other.look(at(370));
    other.look(at(421));
    assert_eq!(found(&other), [false, true], "its minute begins anew");
    let (_, next) = other.look(at(431));
    assert_eq!((found(&other), next), ([false, false], None));
}

#[test]
fn a_group_that_is_for_another_account_by_now_has_no_such_member() {
    let mut groups = MeshSnapshot::default();
    let claim = claim("10.0.0.7");
    let mut group = group_of(&claim);
    let mut desk = |account: &str| {
        group.service_account = account.into();
        let group = Arc::new(group.clone());
        groups.groups = Arc::new([(claim.group.clone(), group)].into_iter().collect());
        let mut roll = MemberList::new(Duration::ZERO, Instant::now());
        roll.joins(1, claim.clone(), oneshot::channel().0, Instant::now());
        let desk = RegistrarThread {
            roll,
            snapshot: Arc::new(groups.clone()),
            ending: false,
        };
        super::wanted(&desk, &"shop/vm-10.0.0.7".to_owned())
            .expect("a member")
            .entry
            .is_some()
    };
    assert!(desk("vm"));
    assert!(!desk("other"));
}
