//! Messages of an agent, checked. Users of this module never see a pod without a name or a namespace without a pod.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use prost::Message;
use voile_proto::zds as wire;
use voile_proto::zds::workload_request::Payload;

/// Identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its name.
    pub name: String,
    /// Its namespace, in the cluster's sense.
    pub namespace: String,
    /// Its service account.
    pub service_account: String,
}

/// One word of the agent's. A pod's `uid` is the agent's own name for it.
#[derive(Debug)]
pub enum AgentMessage {
    /// Serve this pod, in this network namespace.
    Add {
        /// The agent's name for it.
        uid: String,
        /// Its identity.
        who: PodIdentity,
        /// Its network namespace.
        inside: OwnedFd,
    },
    /// Go on serving it, if it is served; only before [`Told::Complete`].
    Keep(String),
    /// Serve it no more.
    Remove(String),
    /// All there is was told.
    Complete,
}

impl AgentMessage {
    /// The bytes and the descriptor that travel.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Option<BorrowedFd<'_>>) {
        let (payload, inside) = match self {
            Self::Add { uid, who, inside } => {
                let workload_info = Some(wire::WorkloadInfo {
                    name: who.name.clone(),
                    namespace: who.namespace.clone(),
                    service_account: who.service_account.clone(),
                });
                let add = wire::AddWorkload {
                    uid: uid.clone(),
                    workload_info,
                };
                (Payload::Add(add), Some(inside.as_fd()))
            }
            Self::Keep(uid) => (Payload::Keep(wire::KeepWorkload { uid: uid.clone() }), None),
            Self::Remove(uid) => (Payload::Del(wire::DelWorkload { uid: uid.clone() }), None),
            Self::Complete => (Payload::SnapshotSent(wire::SnapshotSent {}), None),
        };
        let payload = Some(payload);
        (wire::WorkloadRequest { payload }.encode_to_vec(), inside)
    }

    /// Checks a message.
    ///
    /// # Errors
    /// In few words, the reason why it is no message of an agent.
    pub fn decode(bytes: &[u8], inside: Option<OwnedFd>) -> Result<Self, String> {
        let request = wire::WorkloadRequest::decode(bytes);
        let request = request.map_err(|error| format!("not a message of the protocol: {error}"))?;
        let payload = request.payload.ok_or("the message has no payload")?;
        let named = |uid: String| match uid.as_str() {
            "" => Err("the pod has no uid".to_owned()),
            text if !is_uid(text) => {
                Err("the uid of the pod is too long or not printable ASCII".to_owned())
            }
            _ => Ok(uid),
        };
        match (payload, inside) {
            (Payload::Add(add), Some(inside)) => Ok(Self::Add {
                uid: named(add.uid)?,
                who: who(add.workload_info)?,
                inside,
            }),
            (Payload::Add(_), None) => {
                Err("the pod has no network namespace descriptor".to_owned())
            }
            (_, Some(_)) => Err("a descriptor without a pod".to_owned()),
            (Payload::Keep(keep), None) => named(keep.uid).map(Self::Keep),
            (Payload::Del(del), None) => named(del.uid).map(Self::Remove),
            (Payload::SnapshotSent(_), None) => Ok(Self::Complete),
        }
    }
}

/// Longest name of a pod, a namespace or an account, in bytes: Kubernetes' own bound (RFC 1123), also of a uid.
const MAX_NAME_BYTES: usize = 253;

/// Returns true if a text is a valid name. Names appear in identities, logs and pages, where no other meaning may be
/// read into them.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    text.len() <= MAX_NAME_BYTES && text.bytes().all(plain)
}

/// Returns true if a text is a valid uid: opaque to the node proxy, which prints it.
fn is_uid(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn who(info: Option<wire::WorkloadInfo>) -> Result<PodIdentity, String> {
    let info = info.ok_or("the pod has no workload_info")?;
    let fields = [
        ("name", &info.name),
        ("namespace", &info.namespace),
        ("service_account", &info.service_account),
    ];
    if let Some((field, _)) = fields.iter().find(|(_, value)| value.is_empty()) {
        return Err(format!("the pod has no workload_info.{field}"));
    }
    if let Some((field, _)) = fields.iter().find(|(_, value)| !is_name(value)) {
        return Err(format!("workload_info.{field} of the pod is not a name"));
    }
    Ok(PodIdentity {
        name: info.name,
        namespace: info.namespace,
        service_account: info.service_account,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null")
            .expect("it is there")
            .into()
    }

    fn add(uid: &str, info: Option<(&str, &str, &str)>) -> Vec<u8> {
        let workload_info = info.map(|(name, namespace, account)| wire::WorkloadInfo {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            service_account: account.to_owned(),
        });
        let add = wire::AddWorkload {
            uid: uid.to_owned(),
            workload_info,
        };
        let payload = Some(Payload::Add(add));
        wire::WorkloadRequest { payload }.encode_to_vec()
    }

    #[test]
    fn a_pod_is_told_whole_or_not_at_all() {
        let whole = Some(("web", "shop", "server"));
        for (what, bytes, with, wanted) in [
            ("a pod", add("1", whole), true, None),
            ("no uid", add("", whole), true, Some("uid")),
            ("nobody", add("1", None), true, Some("workload_info")),
            (
                "no name",
                add("1", Some(("", "shop", "a"))),
                true,
                Some("name"),
            ),
            (
                "no namespace",
                add("1", Some(("a", "", "a"))),
                true,
                Some("namespace"),
            ),
            (
                "no account",
                add("1", Some(("a", "b", ""))),
                true,
                Some("service_account"),
            ),
            (
                "another's identity",
                add("1", Some(("a", "b/sa/root", "c"))),
                true,
                Some("namespace of the pod is not a name"),
            ),
            (
                "a second line",
                add("1", Some(("a\nb", "b", "c"))),
                true,
                Some("name of the pod is not a name"),
            ),
            (
                "a long uid",
                add(&"u".repeat(254), whole),
                true,
                Some("not printable ASCII"),
            ),
            (
                "no network",
                add("1", whole),
                false,
                Some("network namespace"),
            ),
            ("nothing", Vec::new(), false, Some("no payload")),
            ("garbage", vec![0xff; 9], false, Some("not a message")),
        ] {
            let found = AgentMessage::decode(&bytes, with.then(null));
            match (found, wanted) {
                (Ok(AgentMessage::Add { uid, who, .. }), None) => {
                    assert_eq!((uid.as_str(), who.name.as_str()), ("1", "web"), "{what}");
                }
                (Err(reason), Some(word)) => assert!(reason.contains(word), "{what}: {reason}"),
                (found, wanted) => panic!("{what}: {found:?}, wanted {wanted:?}"),
            }
        }
    }

    #[test]
    fn the_other_words_come_as_they_went_and_bring_no_descriptor() {
        for told in [
            AgentMessage::Keep("1".to_owned()),
            AgentMessage::Remove("1".to_owned()),
            AgentMessage::Complete,
        ] {
            let (bytes, inside) = told.encode();
            assert!(inside.is_none());
            let back = AgentMessage::decode(&bytes, None).expect("a word");
            assert_eq!(format!("{back:?}"), format!("{told:?}"));
            assert!(AgentMessage::decode(&bytes, Some(null())).is_err());
        }
    }

    #[test]
    fn what_istios_agent_sends_is_understood() {
        // Bytes as Istio's Go code writes them: add(uid "u", info(name "n", namespace "s", service account "a")).
        let bytes = [
            0x0a, 14, 0x0a, 1, b'u', 0x12, 9, 0x0a, 1, b'n', 0x12, 1, b's', 0x1a, 1, b'a',
        ];
        let found = AgentMessage::decode(&bytes, Some(null())).expect("a pod");
        let AgentMessage::Add { uid, who, .. } = found else {
            panic!("{found:?}");
        };
        let wanted = PodIdentity {
            name: "n".to_owned(),
            namespace: "s".to_owned(),
            service_account: "a".to_owned(),
        };
        assert_eq!((uid.as_str(), who), ("u", wanted));
        assert!(
            matches!(AgentMessage::decode(&[0x12, 3, 0x12, 1, b'u'], None), Ok(AgentMessage::Remove(uid)) if uid == "u")
        );
        assert!(
            matches!(AgentMessage::decode(&[0x2a, 3, 0x0a, 1, b'u'], None), Ok(AgentMessage::Keep(uid)) if uid == "u")
        );
        assert!(matches!(
            AgentMessage::decode(&[0x1a, 0], None),
            Ok(AgentMessage::Complete)
        ));
    }
}
