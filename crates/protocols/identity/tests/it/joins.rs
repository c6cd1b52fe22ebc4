//! Join tokens: one use, whoever tries and however.

use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime};

use voile_identity::state::StateDir;
use voile_identity::{JoinError, JoinTokens, TokenSubject};

const HOUR: Duration = Duration::from_secs(3600);

fn joins() -> (tempfile::TempDir, JoinTokens) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&folder.path().join("state")).unwrap();
    let joins = JoinTokens::open(&state).unwrap();
    (folder, joins)
}

fn subject() -> TokenSubject {
    TokenSubject {
        namespace: "shop".into(),
        service_account: "cart".into(),
        pod: None,
    }
}

#[test]
fn a_join_token_works_once() {
    let (_folder, joins) = joins();
    let now = SystemTime::now();
    let token = joins.create(&subject(), now, HOUR).unwrap();
    assert!(token.starts_with("voile-join."));
    assert_eq!(joins.redeem(&token, now).unwrap(), subject());
    assert!(matches!(joins.redeem(&token, now), Err(JoinError::Unknown)));
}

#[test]
fn of_many_at_once_exactly_one_joins() {
    const THREADS: usize = 16;
    let (folder, joins) = joins();
    let now = SystemTime::now();
    for _ in 0..20 {
        let token = joins.create(&subject(), now, HOUR).unwrap();
        let start = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (token, start) = (token.clone(), Arc::clone(&start));
                // Each opens the folder itself, as another process would.
                let state = StateDir::open(&folder.path().join("state")).unwrap();
                let joins = JoinTokens::open(&state).unwrap();
                std::thread::spawn(move || {
                    start.wait();
                    joins.redeem(&token, now).is_ok()
                })
            })
            .collect();
        let won = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .filter(|won| *won)
            .count();
        assert_eq!(won, 1);
    }
}

#[test]
fn the_folder_holds_no_secret_and_is_empty_after_use() {
    let (folder, joins) = joins();
    let now = SystemTime::now();
    let token = joins.create(&subject(), now, HOUR).unwrap();
    let secret = token.rsplit('.').next().unwrap();
    let files = || -> Vec<_> {
        let folder = std::fs::read_dir(folder.path().join("state/join-tokens")).unwrap();
        folder.map(|entry| entry.unwrap().path()).collect()
    };
    let text = std::fs::read_to_string(&files()[0]).unwrap();
    assert!(text.contains("shop") && !text.contains(secret), "{text}");
    joins.redeem(&token, now).unwrap();
    assert_eq!(files(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn wrong_tokens_are_refused_and_do_not_spend_the_right_one() {
    let (folder, joins) = joins();
    let now = SystemTime::now();
    let token = joins.create(&subject(), now, HOUR).unwrap();
    let (id, secret) = token
        .strip_prefix("voile-join.")
        .unwrap()
        .split_once('.')
        .unwrap();
    std::fs::write(folder.path().join("state/outside.json"), "{}").unwrap();
    let zeros = "0".repeat(32);
    for wrong in [
        String::new(),
        "voile-join.".to_owned(),
        format!("voile-join.{id}"),
        format!("voile-join.{id}."),
        format!("voile-join.{id}.{}", "A".repeat(43)),
        format!("voile-join.{id}.{secret}A"),
        format!("voile-join.{id}.{}", &secret[1..]),
        format!("voile-join.{}.{secret}", id.to_uppercase()) + "\n",
        format!("voile-join.{zeros}.{secret}"),
        format!("voile-join.../outside.{secret}"),
        format!("voile-join.../../../../../../../etc/passwd.{secret}"),
        format!("voile-join.{}/{id}.{secret}", "join-tokens"),
        format!("VOILE-JOIN.{id}.{secret}"),
        format!(" {token}"),
        "voile-join.".to_owned() + &"a".repeat(1_000_000),
    ] {
        let refused = joins.redeem(&wrong, now);
        let shown: String = wrong.chars().take(80).collect();
        assert!(
            matches!(refused, Err(JoinError::Unknown)),
            "{shown}: {refused:?}"
        );
    }
    assert!(joins.redeem(&token, now).is_ok());
}

#[test]
fn an_expired_join_token_is_refused_for_good() {
    let (_folder, joins) = joins();
    let now = SystemTime::now();
    let token = joins.create(&subject(), now, HOUR).unwrap();
    assert!(matches!(
        joins.redeem(&token, now + 2 * HOUR),
        Err(JoinError::Expired)
    ));
    assert!(
        matches!(joins.redeem(&token, now), Err(JoinError::Unknown)),
        "swept away"
    );
}

#[test]
fn looking_does_not_spend() {
    let (_folder, joins) = joins();
    let now = SystemTime::now();
    let token = joins.create(&subject(), now, HOUR).unwrap();
    let (first, second) = (
        joins.check(&token, now).unwrap(),
        joins.check(&token, now).unwrap(),
    );
    assert_eq!(first.subject(), &subject());
    assert!(joins.consume(first).is_ok());
    assert!(matches!(joins.consume(second), Err(JoinError::Unknown)));
}

#[test]
fn absurd_join_tokens_are_not_made() {
    let (_folder, joins) = joins();
    let now = SystemTime::now();
    for ttl in [Duration::ZERO, 200 * HOUR, Duration::MAX] {
        assert!(matches!(
            joins.create(&subject(), now, ttl),
            Err(JoinError::Ttl(_))
        ));
    }
    let nobody = TokenSubject {
        namespace: "../x".into(),
        ..subject()
    };
    assert!(matches!(
        joins.create(&nobody, now, HOUR),
        Err(JoinError::Subject(_))
    ));
}
