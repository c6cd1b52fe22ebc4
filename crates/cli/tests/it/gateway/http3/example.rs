//! `examples/http3` answers as its page says: over TCP by the curl of the page, over UDP by our client in the place of a curl with HTTP/3.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::quic::{self, dial};
use crate::examples::policies::rows_of;
use crate::gateway::http3::{client, get_at};
use crate::mesh::wait_until;
use crate::up::netns::start_with;
use crate::up::{Up, example};

/// Ran by a shell; what it printed.
fn shell(command: &str) -> String {
    let ran = Command::new("sh").args(["-c", command]).output();
    let ran = ran.expect("a shell");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// The page's first step, for another folder and certificate.
pub(crate) fn make_certificate(folder: &Path, own: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http3/README.md");
    let page = std::fs::read_to_string(page).expect("the example's page");
    let mut fenced = page.split("```\n");
    let step = fenced.find(|text| text.starts_with("openssl"));
    let step = step.expect("a step");
    let step = step.replace("examples/http3", &folder.to_string_lossy());
    shell(&step.replace("/tmp/shop", own));
}

#[test]
fn the_http3_example_answers_as_its_page_says_by_tcp_and_udp() {
    let own = tempfile::tempdir().expect("a folder");
    let mut up = Up::start(|folder| copied(folder, own.path()), &[]);
    let published = up.ready();
    answers_as_its_page_says(&published, own.path());
    // The changes that the page describes: another certificate, another process, and no HTTP/3.
    let udp = published["http3/gateway:30453/udp"];
    let shown = || {
        quic::run(async {
            let to = dial(udp, "shop.example", &client(b"h3", None)).await?;
            let shown = to.shown();
            to.leave().await;
            Ok::<_, String>(shown)
        })
    };
    let pair = own.path().join("shop");
    make_certificate(&up.file(""), &pair.to_string_lossy());
    let written = CertificateDer::from_pem_file(pair.with_extension("crt")).expect("one");
    wait_until("the other certificate", || shown().as_ref() == Ok(&written));
    up.signal(Signal::USR2);
    wait_until("the other process", || {
        assert_eq!(shown().as_ref(), Ok(&written));
        up.log("http3.gateway-0.sidecar")
            .contains("handed over to a new process")
    });
    let port = "    - name: http3\n      port: 30453\n      targetPort: 8443\n      nodePort: 30453\n      protocol: UDP\n";
    up.edit("gateway.yaml", port, "");
    wait_until("the port to close", || UdpSocket::bind(udp).is_ok());
}

#[test]
fn the_http3_example_answers_as_its_page_says_in_namespaces() {
    let own = tempfile::tempdir().expect("a folder");
    let started = start_with(|folder| copied(folder, own.path()), None, &[]);
    if let Some((_up, published)) = started {
        answers_as_its_page_says(&published, own.path());
    }
}

/// The example, with a certificate that is in a folder of our own, too.
fn copied(folder: &Path, own: &Path) {
    example("http3", folder);
    make_certificate(folder, &own.join("shop").to_string_lossy());
}

fn answers_as_its_page_says(published: &BTreeMap<String, SocketAddr>, own: &Path) {
    let certificate = own.join("shop").to_string_lossy().into_owned();
    let (tcp, udp) = (
        published["http3/gateway"],
        published["http3/gateway:30453/udp"],
    );
    for (command, promised) in rows_of("http3", "curl ") {
        let (status, more) = match promised.split_once(" and `") {
            Some((status, more)) => (status, more.trim_end_matches('`')),
            None => (&*promised, ""),
        };
        if command.contains("--http3-only") {
            let (_, path) = command.split_once(".example:30453/").expect("a path");
            let path = format!("/{path}");
            wait_until(&command, || {
                quic::run(async {
                    let to = dial(udp, "shop.example", &client(b"h3", None)).await;
                    let Ok(to) = to else { return false };
                    let answer = get_at(&to, "shop.example", &path).await;
                    to.leave().await;
                    answer.is_ok_and(|answer| answer.status.to_string() == status)
                })
            });
            continue;
        }
        let here = command
            .replace("/tmp/shop", &certificate)
            .replace(":30453", &format!(":{}", tcp.port()))
            .replace("curl ", "curl -s --max-time 20 ");
        wait_until(&command, || {
            let text = shell(&here);
            let line = text.lines().next().unwrap_or_default();
            line.split(' ').nth(1) == Some(status) && text.contains(more)
        });
    }
}
