//! The proxy's certificate loop against a service that comes, goes and refuses.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use voile_identity::client::ClientError;
use voile_identity::{CertificateClient, CertificateStore, ClientSettings, WorkloadCertificate};

use crate::service::{Control, HOUR, subject};

/// No test waits longer for what must happen.
const DEADLINE: Duration = Duration::from_secs(30);

type News = watch::Receiver<Option<Arc<WorkloadCertificate>>>;

fn settings(control: &Control) -> ClientSettings {
    ClientSettings {
        control: vec![control.uri()],
        root_cert: control.mesh.state().join("root-cert.pem"),
        token_file: None,
        join_token_file: None,
        ttl: None,
    }
}

fn file(control: &Control, name: &str, text: &str) -> PathBuf {
    let path = control.mesh.folder().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

async fn next(news: &mut News) -> Arc<WorkloadCertificate> {
    tokio::time::timeout(DEADLINE, news.changed())
        .await
        .expect("in time")
        .expect("running");
    news.borrow_and_update().clone().expect("a certificate")
}

#[tokio::test]
async fn the_loop_renews_at_half_life_and_rereads_the_token() {
    let control = Control::start().await;
    let token_file = file(&control, "token", &format!("{}\n", control.token("cart")));
    let settings = ClientSettings {
        token_file: Some(token_file.clone()),
        ttl: Some(Duration::from_secs(10)),
        ..settings(&control)
    };
    let store = Arc::new(CertificateStore::new());
    let client = CertificateClient::new(settings, Arc::clone(&store));
    let mut news = client.subscribe();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(client.run(async { drop(stopped.await) }));
    let first = next(&mut news).await;
    assert_eq!(first.identity(), &control.mesh.identity("shop", "cart"));
    std::fs::write(&token_file, control.token("till")).unwrap();
    let second = next(&mut news).await;
    assert_eq!(second.identity(), &control.mesh.identity("shop", "till"));
    assert_eq!(store.current().unwrap().serial(), second.serial());
    drop(stop);
    tokio::time::timeout(DEADLINE, running)
        .await
        .expect("stops when told")
        .unwrap();
    control.stop().await;
}

#[tokio::test]
async fn a_joined_workload_renews_by_its_certificate() {
    let control = Control::start().await;
    let join = control
        .joins
        .create(&subject("cart"), SystemTime::now(), HOUR)
        .unwrap();
    let settings = ClientSettings {
        join_token_file: Some(file(&control, "join", &join)),
        ..settings(&control)
    };
    let client = CertificateClient::new(settings, Arc::new(CertificateStore::new()));
    let first = client.obtain().await.unwrap();
    let second = client.obtain().await.unwrap();
    assert_eq!(first.identity(), second.identity());
    assert_ne!(first.serial(), second.serial());
    control.stop().await;
}

#[tokio::test]
async fn a_stale_token_does_not_cost_a_renewal() {
    let control = Control::start().await;
    let token_file = file(&control, "token", &control.token("cart"));
    let settings = ClientSettings {
        token_file: Some(token_file.clone()),
        ..settings(&control)
    };
    let client = CertificateClient::new(settings, Arc::new(CertificateStore::new()));
    client.obtain().await.unwrap();
    for stale in ["rotten", ""] {
        std::fs::write(&token_file, stale).unwrap();
        client.obtain().await.unwrap();
    }
    std::fs::remove_file(&token_file).unwrap();
    client.obtain().await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn the_loop_outlives_its_control_plane() {
    let control = Control::start().await;
    let settings = ClientSettings {
        token_file: Some(file(&control, "token", &control.token("cart"))),
        ..settings(&control)
    };
    let (mesh, address) = control.stop().await;
    let store = Arc::new(CertificateStore::new());
    let client = CertificateClient::new(settings, Arc::clone(&store));
    assert!(matches!(
        client.obtain().await,
        Err(ClientError::Connect { .. })
    ));
    let mut news = client.subscribe();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(client.run(async { drop(stopped.await) }));
    let control = Control::start_at(mesh, address).await;
    next(&mut news).await;
    drop(stop);
    running.await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let control = Control::start().await;
    let obtain = async |settings| {
        let client = CertificateClient::new(settings, Arc::new(CertificateStore::new()));
        client.obtain().await.unwrap_err().to_string()
    };
    let nothing = settings(&control);
    assert!(obtain(nothing.clone()).await.contains("voile token"));
    let missing = ClientSettings {
        token_file: Some("/nowhere/token".into()),
        ..nothing.clone()
    };
    assert!(obtain(missing).await.contains("/nowhere/token"));
    let token_file = Some(file(&control, "token", &control.token("cart")));
    let plain = ClientSettings {
        control: vec![format!("http://{}", control.address)],
        token_file: token_file.clone(),
        ..nothing.clone()
    };
    assert!(obtain(plain).await.contains("https://"));
    let foreign = voile_testkit::TestAuthority::for_trust_domain("foreign.example");
    let root_cert = foreign.state().join("root-cert.pem");
    let wrong_root = ClientSettings {
        token_file,
        root_cert,
        ..nothing
    };
    let refused = obtain(wrong_root).await;
    assert!(
        refused.contains("UnknownIssuer"),
        "the token is not shown to a stranger: {refused}"
    );
    control.stop().await;
}

#[tokio::test]
async fn those_who_take_turns_ask_no_more_than_so_many_at_once() {
    const ALL: usize = 5;
    const AT_ONCE: usize = 2;
    let control = Control::start().await;
    // Somebody who takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = ClientSettings {
        control: vec![format!("https://{}", silent.local_addr().unwrap())],
        token_file: Some(file(&control, "token", "any")),
        ..settings(&control)
    };
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..ALL {
        let store = Arc::new(CertificateStore::new());
        let client = CertificateClient::new(settings.clone(), store).taking_turns(&turns);
        running.spawn(client.run(pending()));
    }
    let mut asking = VecDeque::new();
    for _ in 0..ALL {
        while asking.len() < AT_ONCE {
            let accepted = tokio::time::timeout(DEADLINE, silent.accept()).await;
            asking.push_back(accepted.expect("in time").unwrap());
        }
        // A client that need not wait has connected by now.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let alone = poll_fn(|cx| Poll::Ready(silent.poll_accept(cx).is_pending())).await;
        assert!(alone, "more than {AT_ONCE} ask");
        // A closed connection makes room for another client.
        drop(asking.pop_front());
    }
    drop(running);
    control.stop().await;
}
