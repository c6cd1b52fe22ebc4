//! One ztunnel for a whole node: it is handed its pods' networks over a socket, as Istio's node agent does it, and asks with
//! its own token for certificates in their names.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, accept, bind, listen as listen_at, recvmsg, sendmsg, socket,
};

use super::*;

/// Another node's pod: its network is handed over all the same, and nobody vouches for it.
const ELSEWHERE: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: elsewhere\n  namespace: shop\n  labels:\n    app: elsewhere\n\
    spec:\n  serviceAccountName: elsewhere\n  nodeName: two\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  \
    podIP: 10.244.0.4\n";

pub(crate) const ZTUNNEL: &str = "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: ztunnel-one\n  namespace: istio-system\nspec:\n  \
    serviceAccountName: ztunnel\n  nodeName: one\n  containers:\n  - name: ztunnel\nstatus:\n  phase: Running\n  \
    podIP: 10.244.0.1\n";

/// Protocol buffers by hand: a field that is text or a message.
pub(crate) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    assert!(length < 0x80, "one byte says the length");
    let mut bytes = vec![number << 3 | 2, length];
    bytes.extend_from_slice(content);
    bytes
}

/// The node agent's end of the socket.
pub(crate) struct Agent {
    listener: OwnedFd,
    stream: Option<OwnedFd>,
    /// Those who greeted before, for as long as they like.
    before: Vec<OwnedFd>,
}

impl Agent {
    pub(crate) fn listen(path: &Path) -> Self {
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        bind(&listener, &SocketAddrUnix::new(path).expect("short")).expect("bound");
        listen_at(&listener, 1).expect("listens");
        Self {
            listener,
            stream: None,
            before: Vec::new(),
        }
    }

    /// Waits for the ztunnel's greeting; from now on it is the one that is told.
    pub(crate) fn greet(&mut self) {
        let greeted = accept(&self.listener).expect("a ztunnel");
        self.before.extend(self.stream.replace(greeted));
        assert_eq!(self.hear(), [0x08, 0x01], "version 1");
    }

    /// Hangs up.
    pub(crate) fn leave(&mut self) {
        self.stream = None;
    }

    fn hear(&self) -> Vec<u8> {
        let mut bytes = [0; 512];
        let read = recvmsg(
            self.stream.as_ref().expect("it greeted"),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut rustix::net::RecvAncillaryBuffer::default(),
            RecvFlags::empty(),
        );
        bytes[..read.expect("a message").bytes].to_vec()
    }

    /// Sends a message, with a network if it has one, and waits for a yes.
    pub(crate) fn say(&self, message: &[u8], network: Option<&Namespace>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        let descriptors = network.map(|network| [network.as_fd()]);
        if let Some(descriptors) = &descriptors {
            assert!(with.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let stream = self.stream.as_ref().expect("it greeted");
        let sent = sendmsg(
            stream,
            &[IoSlice::new(message)],
            &mut with,
            SendFlags::empty(),
        );
        assert_eq!(sent.expect("sent"), message.len());
        assert_eq!(
            self.hear(),
            field(1, &[]),
            "an acknowledgement without an error"
        );
    }

    pub(crate) fn add(&self, pod: &Pod, account: &str) {
        self.add_of(pod, "shop", account);
    }

    /// The same in this Kubernetes namespace.
    pub(crate) fn add_of(&self, pod: &Pod, namespace: &str, account: &str) {
        let who = [
            field(1, pod.name.as_bytes()),
            field(2, namespace.as_bytes()),
            field(3, account.as_bytes()),
        ];
        let workload = [field(1, pod.name.as_bytes()), field(2, &who.concat())].concat();
        self.say(&field(1, &workload), Some(&pod.inside));
    }

    pub(crate) fn remove(&self, pod: &str) {
        self.say(&field(2, &field(2, pod.as_bytes())), None);
    }

    pub(crate) fn complete(&self) {
        self.say(&field(3, &[]), None);
    }
}

/// Starts the ztunnel of a node; it greets its agent.
pub(crate) fn shared(mesh: &mut Mesh, program: &Path, name: &'static str, node: &str) -> Agent {
    let socket = mesh.folder.path().join(format!("{name}.zds"));
    let agent = Agent::listen(&socket);
    let token = mesh.token("istio-system/ztunnel", name);
    let root = mesh.folder.path().join("state/root-cert.pem");
    let control = format!("https://{WORLD}:{}", mesh.asked);
    let start = || {
        Process::start_other(name, program, |ztunnel| {
            ztunnel.arg("proxy").env_clear().env("PROXY_MODE", "shared");
            ztunnel.env("INPOD_UDS", &socket).env("NODE_NAME", node);
            ztunnel
                .env("XDS_ADDRESS", &control)
                .env("CA_ADDRESS", &control);
            ztunnel.env("XDS_ROOT_CA", &root).env("CA_ROOT_CA", &root);
            ztunnel.env("AUTH_TOKEN", &token).env("RUST_LOG", "info");
            ztunnel.env("PACKET_MARK", MARK_INWARD.to_string());
            ztunnel.env("ENABLE_ORIG_SRC", "false");
            ztunnel.env("ISTIO_META_DNS_CAPTURE", "false");
        })
    };
    let process = mesh.world.run(start).expect("entered");
    mesh.processes.push(process);
    agent
}

#[test]
fn a_nodes_ztunnel_gets_certificates_of_its_own_nodes_workloads_alone() {
    let text = resources(&[("first", FIRST)]) + ZTUNNEL;
    let account = ["--node-account", "istio-system/ztunnel"];
    let Some(mut mesh) = Mesh::start(&text, &account) else {
        return;
    };
    mesh.write("elsewhere.yaml", ELSEWHERE);
    let (client, first) = (mesh.pod("client", CLIENT), mesh.pod("first", FIRST));
    let elsewhere = mesh.pod("elsewhere", SECOND);
    serve(&first, FIRST);
    let program = mesh.program.clone();
    let mut agent = shared(&mut mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&client, "client");
    agent.add(&first, "server");
    agent.add(&elsewhere, "elsewhere");
    agent.complete();
    let service = SocketAddr::from((VIP, 80));
    wait_until("traffic flows between two pods of the node", || {
        let answer = client.inside.run(|| TcpStream::connect(service));
        matches!(answer, Ok(Ok(_))) && name(&client.inside, service).as_deref() == Some("first")
    });
    let control = &mesh.processes[0];
    wait_until("certificates are issued in the pods' names", || {
        let log = control.log();
        ["client", "server"].iter().all(|account| {
            let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}");
            log.lines().any(|line| {
                line.contains("certificate issued")
                    && line.contains(&identity)
                    && line.contains("ns/istio-system/sa/ztunnel")
            })
        })
    });
    // A ztunnel leaves other nodes' workloads alone by itself; that they would be refused is tested with less honest callers.
    let issued_elsewhere = control
        .log()
        .lines()
        .any(|line| line.contains("certificate issued") && line.contains("ns/shop/sa/elsewhere"));
    assert!(!issued_elsewhere, "{}", control.log());
}
