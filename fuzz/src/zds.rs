//! Messages of an agent to a node proxy about pods. A message is read or refused in few words. A message that is read
//! names one pod and nothing else.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use voile_zds::{AgentMessage, PodIdentity};

/// Kubernetes' longest name, in bytes.
const MAX_NAME: usize = 253;
/// The longest refusal, in bytes: the agent gets it in a packet of 4,096.
const MAX_REFUSAL: usize = 512;

/// A descriptor that travels with a message.
static DESCRIPTOR: LazyLock<File> = LazyLock::new(|| File::open("/dev/null").expect("it is there"));

fn descriptor() -> OwnedFd {
    let copied = DESCRIPTOR.try_clone();
    copied.expect("a descriptor more").into()
}

/// A name stands in a SPIFFE identity and in lines of logs: it may end neither.
fn assert_name(name: &str) {
    assert!(!name.is_empty() && name.len() <= MAX_NAME, "{name:?}");
    let forbidden = |byte: u8| !byte.is_ascii_graphic() || b"/?#%\"\\".contains(&byte);
    assert!(!name.bytes().any(forbidden), "{name:?}");
}

fn assert_uid(uid: &str) {
    assert!(!uid.is_empty() && uid.len() <= MAX_NAME, "{uid:?}");
    assert!(uid.bytes().all(|byte| byte.is_ascii_graphic()), "{uid:?}");
}

/// The first byte says whether a descriptor comes with the rest.
pub(crate) fn message(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else {
        return;
    };
    let told = match AgentMessage::decode(bytes, (how & 1 == 1).then(descriptor)) {
        Ok(told) => told,
        Err(refusal) => {
            assert!(refusal.len() <= MAX_REFUSAL, "{refusal}");
            assert!(!refusal.contains(char::is_control), "{refusal:?}");
            return;
        }
    };
    match &told {
        AgentMessage::Add { uid, who, .. } => {
            assert_eq!(how & 1, 1, "a pod without its network namespace");
            assert_uid(uid);
            let PodIdentity {
                name,
                namespace,
                service_account,
            } = who;
            for name in [name, namespace, service_account] {
                assert_name(name);
            }
        }
        AgentMessage::Keep(uid) | AgentMessage::Remove(uid) => assert_uid(uid),
        AgentMessage::Complete => {}
    }
    let (written, with) = told.encode();
    let with = with.map(|_| descriptor());
    let again = AgentMessage::decode(&written, with).expect("what we write can be read");
    let told_of = |told: &AgentMessage| match told {
        AgentMessage::Add { uid, who, .. } => format!("{uid} {who:?}"),
        other => format!("{other:?}"),
    };
    assert_eq!(told_of(&told), told_of(&again));
}
