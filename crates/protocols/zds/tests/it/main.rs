//! Both ends over a real socket.

use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::task::Poll;

use voile_testkit::prerequisites::{Prerequisite, skip};
use voile_zds::{AgentMessage, Agents, Channel, PodIdentity};

fn add(uid: &str) -> AgentMessage {
    AgentMessage::Add {
        uid: uid.to_owned(),
        who: PodIdentity {
            name: "web".to_owned(),
            namespace: "shop".to_owned(),
            service_account: "server".to_owned(),
        },
        inside: File::open("/proc/self/ns/net").expect("a namespace").into(),
    }
}

#[tokio::test]
async fn a_proxy_hears_what_an_agent_tells_and_the_agent_its_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zds");
    let agents = Agents::listen(&path).expect("listens");
    let proxy = async {
        let channel = Channel::connect(&path).await.expect("an agent");
        let Some(AgentMessage::Add { uid, who, inside }) = channel.hear().await.expect("a word")
        else {
            panic!("not a pod");
        };
        assert_eq!((uid.as_str(), who.name.as_str()), ("1", "web"));
        let found = std::fs::read_link(format!("/proc/self/fd/{}", inside.as_raw_fd()));
        let wanted = std::fs::read_link("/proc/self/ns/net");
        assert_eq!(found.expect("a link"), wanted.expect("a link"));
        channel.answer(Err("no room")).await.expect("answered");
        let complete = channel.hear().await.expect("a word");
        assert!(
            matches!(complete, Some(AgentMessage::Complete)),
            "{complete:?}"
        );
        channel.answer(Ok(())).await.expect("answered");
        assert!(channel.hear().await.expect("an end").is_none());
    };
    let agent = async {
        let channel = agents.accept().await.expect("a proxy");
        let answer = channel.tell(&add("1")).await.expect("an answer");
        assert_eq!(answer, Err("no room".to_owned()));
        let answer = channel
            .tell(&AgentMessage::Complete)
            .await
            .expect("an answer");
        assert_eq!(answer, Ok(()));
    };
    tokio::join!(proxy, agent);
}

#[tokio::test]
async fn an_answer_that_was_heard_is_not_the_end_and_a_hang_up_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zds");
    let agents = Agents::listen(&path).expect("listens");
    let (leave, left) = tokio::sync::oneshot::channel();
    let proxy = async {
        let channel = Channel::connect(&path).await.expect("an agent");
        channel.hear().await.expect("a word");
        channel.answer(Ok(())).await.expect("answered");
        left.await.expect("asked to go");
    };
    let agent = async {
        let channel = agents.accept().await.expect("a proxy");
        let answer = channel
            .tell(&AgentMessage::Complete)
            .await
            .expect("an answer");
        assert_eq!(answer, Ok(()));
        let mut ended = std::pin::pin!(channel.ended());
        let waits = std::future::poll_fn(|cx| Poll::Ready(ended.as_mut().poll(cx).is_pending()));
        assert!(waits.await, "the proxy is there");
        leave.send(()).expect("it waits");
        ended.await;
    };
    tokio::join!(proxy, agent);
}

#[tokio::test]
async fn a_word_that_is_too_long_is_answered_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zds");
    let agents = Agents::listen(&path).expect("listens");
    let proxy = async {
        let channel = Channel::connect(&path).await.expect("an agent");
        let error = channel.hear().await.expect_err("too long");
        assert!(
            error.to_string().contains("more than 4096 bytes"),
            "{error}"
        );
    };
    let agent = async {
        let channel = agents.accept().await.expect("a proxy");
        let answer = channel.tell(&AgentMessage::Keep("x".repeat(5000))).await;
        let answer = answer.expect("an answer").expect_err("a no");
        assert!(answer.contains("4096"), "{answer}");
    };
    tokio::join!(proxy, agent);
}

#[tokio::test]
async fn a_socket_is_for_its_user_alone_and_a_stale_one_is_replaced() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zds");
    let first = Agents::listen(&path).expect("listens");
    let there = std::fs::symlink_metadata(&path).expect("it is there");
    assert_eq!(there.mode() & 0o777, 0o600, "its user's alone");
    let error = Agents::listen(&path).expect_err("one at a time");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    drop(first);
    let _second = Agents::listen(&path).expect("what a dead one left is replaced");
    assert!(
        path.symlink_metadata()
            .expect("it is there")
            .file_type()
            .is_socket()
    );
}

#[tokio::test]
async fn what_is_no_socket_and_what_others_may_replace_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zds");
    std::fs::write(&path, "precious").expect("written");
    let error = Agents::listen(&path).expect_err("a file");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
    std::fs::remove_file(&path).expect("removed");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).expect("opened");
    let error = Agents::listen(&path).expect_err("anybody's folder");
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::PermissionDenied,
        "{error}"
    );
}

/// Another user is refused by both ends, whatever the file's mode says. Needs root, to become another user in a thread.
#[test]
fn another_user_is_refused_by_both_ends() {
    if !rustix::process::geteuid().is_root() {
        return skip(Prerequisite::Root, "only root becomes another user");
    }
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let all = || std::fs::Permissions::from_mode(0o777);
    let path = folder.path().join("zds");
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime")
    };
    runtime().block_on(async {
        let agents = Agents::listen(&path).expect("listens");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("open to enter");
        std::fs::set_permissions(&path, all()).expect("the mode does not help");
        let to = path.clone();
        let stranger = std::thread::spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65_534);
            // Of this thread alone, which ends.
            rustix::thread::set_thread_uid(nobody).expect("another user");
            runtime().block_on(async { Channel::connect(&to).await.map(drop) })
        });
        // All users trust root's agent. The connection waits in the listener's queue, so it is whole before the agent refuses it.
        stranger.join().expect("no panic").expect("root is trusted");
        let error = agents.accept().await.expect_err("another user");
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
    });
}
