//! Files that hold secrets: who may read them, and what happens when several make them at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::SystemTime;

use voile_identity::state::{SECRET_MODE, StateDir};
use voile_identity::{Authority, JoinTokens, RootPolicy, StateError, TokenKey, TrustDomain};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn open(folder: &Path) -> Result<Authority, voile_identity::AuthorityError> {
    let domain = TrustDomain::new("cluster.local").unwrap();
    Authority::open(folder, &domain, SystemTime::now())
}

#[test]
fn secrets_are_for_their_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/state");
    open(&path).unwrap();
    let state = StateDir::open(&path).unwrap();
    TokenKey::open(&state).unwrap();
    JoinTokens::open(&state).unwrap();
    for (name, wanted) in [
        ("", 0o700),
        ("root-key.pem", 0o600),
        ("token-key.pem", 0o600),
        ("join-tokens", 0o700),
        (".lock", 0o600),
    ] {
        assert_eq!(mode(&path.join(name)), wanted, "{name}");
    }
}

#[test]
fn state_that_others_can_reach_is_refused_with_the_cure() {
    for (name, mode, cure) in [
        ("", 0o755, "chmod 0700"),
        ("", 0o710, "chmod 0700"),
        ("root-key.pem", 0o644, "chmod 0600"),
        ("root-key.pem", 0o660, "chmod 0600"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        open(&path).unwrap();
        set_mode(&path.join(name), mode);
        let refused = open(&path).unwrap_err().to_string();
        assert!(refused.contains(cure), "{name} {mode:o}: {refused}");
    }
}

#[test]
fn a_root_that_does_not_fit_is_refused_by_name() {
    let other = tempfile::tempdir().unwrap();
    let other = other.path().join("state");
    open(&other).unwrap();
    let foreign_key = fs::read_to_string(other.join("root-key.pem")).unwrap();
    let foreign_cert = fs::read_to_string(other.join("root-cert.pem")).unwrap();
    let both = format!("{foreign_cert}{foreign_cert}");
    for (what, file, text, word) in [
        (
            "foreign key",
            "root-key.pem",
            foreign_key.as_str(),
            "do not belong together",
        ),
        (
            "foreign certificate",
            "root-cert.pem",
            &foreign_cert,
            "do not belong together",
        ),
        ("two certificates", "root-cert.pem", &both, "2 certificates"),
        ("garbage key", "root-key.pem", "garbage", "not a P-256 key"),
        ("empty key", "root-key.pem", "", "not a P-256 key"),
        (
            "garbage certificate",
            "root-cert.pem",
            "garbage",
            "cannot be used",
        ),
        ("empty certificate", "root-cert.pem", "", "cannot be used"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        open(&path).unwrap();
        fs::write(path.join(file), text).unwrap();
        let refused = open(&path).expect_err(what).to_string();
        assert!(
            refused.contains(word) && refused.contains("state"),
            "{what}: {refused}"
        );
    }
}

#[test]
fn a_lost_key_is_not_silently_replaced_and_a_lost_certificate_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let first = open(&path).unwrap().root_pem().to_owned();
    assert_eq!(
        open(&path).unwrap().root_pem(),
        first,
        "a restart keeps the root"
    );
    fs::remove_file(path.join("root-cert.pem")).unwrap();
    open(&path).unwrap();
    fs::remove_file(path.join("root-key.pem")).unwrap();
    let refused = open(&path).unwrap_err().to_string();
    assert!(refused.contains("root-key.pem"), "{refused}");
}

#[test]
fn a_root_that_is_lost_or_exchanged_is_an_error_until_a_new_one_is_permitted() {
    let domain = TrustDomain::new("cluster.local").unwrap();
    let with = |folder: &Path, new_root: bool| {
        let policy = RootPolicy {
            expected: None,
            new_root,
        };
        Authority::open_with(folder, &domain, &policy, SystemTime::now())
    };
    type Loss = fn(&Path);
    let losses: [(&str, Loss); 3] = [
        ("the folder does not exist", |state| {
            fs::remove_dir_all(state).unwrap();
        }),
        ("it has no root-key.pem", |state| {
            fs::remove_dir_all(state).unwrap();
            StateDir::open(state).unwrap();
        }),
        ("it has the root sha256:", |state| {
            fs::remove_dir_all(state).unwrap();
            let other = tempfile::tempdir().unwrap();
            let other = other.path().join("state");
            open(&other).unwrap();
            StateDir::open(state).unwrap();
            for name in ["root-key.pem", "root-cert.pem"] {
                fs::copy(other.join(name), state.join(name)).unwrap();
            }
        }),
    ];
    for (found, lose) in losses {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = with(&state, false).expect("the first start").fingerprint();
        with(&state, false).expect("a restart");
        // The certificate is made again for the same key.
        fs::remove_file(state.join("root-cert.pem")).unwrap();
        assert_eq!(with(&state, false).expect("made").fingerprint(), first);
        lose(&state);
        let before = fs::read_dir(&state).map_or(0, Iterator::count);
        let refused = with(&state, false).expect_err(found).to_string();
        let words = [found, &first.to_string(), "--new-root", "state.root"];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        let after = fs::read_dir(&state).map_or(0, Iterator::count);
        assert_eq!(before, after, "{found}: something was made");
        let second = with(&state, true).expect("permitted").fingerprint();
        assert_ne!(first, second);
        assert_eq!(with(&state, false).expect("recorded").fingerprint(), second);
        let pinned = RootPolicy {
            expected: Some(first),
            new_root: false,
        };
        let refused = Authority::open_with(&state, &domain, &pinned, SystemTime::now());
        assert!(
            refused.is_err(),
            "the recorded root is not the expected one"
        );
    }
}

#[test]
fn starters_that_race_agree_on_one_root() {
    const STARTERS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = Arc::new(folder.path().join("state"));
    let start = Arc::new(Barrier::new(STARTERS));
    let starters: Vec<_> = (0..STARTERS)
        .map(|_| {
            let (path, start) = (Arc::clone(&path), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                open(&path).unwrap().root_pem().to_owned()
            })
        })
        .collect();
    let roots: std::collections::BTreeSet<_> = starters
        .into_iter()
        .map(|starter| starter.join().unwrap())
        .collect();
    assert_eq!(roots.len(), 1);
}

#[test]
fn a_file_is_written_once_and_links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&folder.path().join("state")).unwrap();
    assert!(state.write_new("a", "first", SECRET_MODE).unwrap());
    assert!(!state.write_new("a", "second", SECRET_MODE).unwrap());
    assert_eq!(state.read_secret("a").unwrap().as_deref(), Some("first"));
    assert_eq!(
        fs::read_dir(state.path()).unwrap().count(),
        1,
        "no drafts stay"
    );
    std::os::unix::fs::symlink(state.path().join("a"), state.path().join("link")).unwrap();
    assert!(matches!(
        state.read_secret("link"),
        Err(StateError::Io { .. })
    ));
    fs::write(state.path().join("huge"), vec![b'x'; 70_000]).unwrap();
    set_mode(&state.path().join("huge"), 0o600);
    assert!(matches!(
        state.read_secret("huge"),
        Err(StateError::Malformed { .. })
    ));
    assert!(state.take("a").unwrap());
    assert!(!state.take("a").unwrap());
}

#[test]
fn secrets_do_not_show_in_logs() {
    let mesh = voile_testkit::TestAuthority::new();
    let certificate = mesh.certificate("shop", "cart");
    let state = StateDir::open(&mesh.state()).unwrap();
    let shown = [
        format!(
            "{:?}",
            voile_identity::client::Credential::Bearer("PRIVATE KEY".into())
        ),
        format!("{certificate:?}"),
        format!("{:?}", voile_identity::Keys::generate().unwrap()),
        format!("{:?}", TokenKey::open(&state).unwrap()),
        format!("{:?}", mesh.authority()),
    ];
    for text in shown {
        assert!(text.len() < 300 && !text.contains("PRIVATE KEY"), "{text}");
    }
}
