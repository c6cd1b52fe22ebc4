//! Local files: the settings in force while files change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use voile_model::{Hostname, Namespace, ServiceKey};
use voile_proto::{proxy, type_url};
use voile_testkit::TestAuthority;

use super::put;
use crate::plan::{Origination, TlsPlan};
use crate::registry::Registry;
use crate::registry::files::{FileContent, Read};

const PATH: &str = "/etc/certs/ca.crt";

/// TLS to a server, with a file of authorities of this content, or without the file.
fn made(registry: &mut Registry, held: Option<&str>) -> Arc<Origination> {
    let wanted = BTreeSet::from([PATH.into()]);
    let read = held.map(|text| FileContent(text.as_bytes().into()));
    let read = read.ok_or_else(|| "No such file".into());
    registry.files_read(&wanted, BTreeMap::from([(PATH.into(), read)]));
    let origin = TlsOrigin {
        revocations: None,
        mutual: false,
        authorities: Authorities::File(PATH.into()),
        credential: None,
        granted: None,
        certificate: None,
        server_name: None,
        subject_alt_names: Vec::new(),
        unverified: false,
    };
    let said = ClientTls::Originate(origin.into());
    let service = ServiceKey {
        namespace: Namespace::new("shop").expect("a name"),
        hostname: Hostname::new("api.example").expect("a host"),
    };
    let made = registry.origination(Some(&said), &service);
    made.expect("TLS").0
}

#[test]
fn the_last_that_was_in_force_stays_in_the_place_of_a_file_that_cannot_be_used() {
    let [first, second] = [TestAuthority::new(), TestAuthority::new()];
    let [first, second] = [&first, &second].map(|one| one.authority().root_pem().to_owned());
    let mut registry = Registry::default();
    for (held, why) in [
        (None, "/etc/certs/ca.crt: No such file"),
        (Some(""), "/etc/certs/ca.crt is empty"),
        (
            Some("junk"),
            "/etc/certs/ca.crt: the certificate authorities cannot be read",
        ),
    ] {
        match &*made(&mut registry, held) {
            Origination::Unmade(found) => assert!(found.starts_with(why), "{found}"),
            other => panic!("{held:?}: {other:?}"),
        }
    }
    // A slow connection holds each of them to the end.
    let one = made(&mut registry, Some(&first));
    assert!(matches!(*one, Origination::World(_)));
    let two = made(&mut registry, Some(&second));
    assert!(!Arc::ptr_eq(&one, &two));
    for (held, expected) in [
        (Some("junk"), &two),
        (None, &two),
        (Some(first.as_str()), &one),
        (Some("junk"), &one),
        (None, &one),
        (Some(&second), &two),
        (Some(""), &two),
    ] {
        let found = made(&mut registry, held);
        assert!(Arc::ptr_eq(&found, expected), "{held:?}");
    }
}

/// A gateway's configuration with a server whose certificate is in files, and whose clients are to show one where authorities are named.
fn gateway(authorities: &str) -> Vec<u8> {
    let tls = proxy::GatewayTls {
        certificate_file: "/tls.crt".to_owned(),
        key_file: "/tls.key".to_owned(),
        authorities_file: authorities.to_owned(),
        tls13: true,
        ..proxy::GatewayTls::default()
    };
    let server = proxy::GatewayServer {
        names: vec!["a.example".to_owned()],
        tls: Some(tls),
        ..proxy::GatewayServer::default()
    };
    let bind = proxy::SocketAddress {
        address: vec![127, 0, 0, 1],
        port: 8443,
    };
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        gateway: Some(proxy::Gateway {
            listeners: vec![proxy::GatewayListener {
                name: "gateway".to_owned(),
                bind: Some(bind),
                port: 443,
                servers: vec![server],
                http3: 0,
            }],
            credentials: Vec::new(),
        }),
        ..proxy::ProxyConfiguration::default()
    };
    configuration.encode_to_vec()
}

/// Applies a configuration and reads these files; returns the server's key and its TLS.
fn server(registry: &mut Registry, said: &[u8], files: &[(&str, &str)]) -> (Arc<str>, TlsPlan) {
    put(registry, type_url::PROXY_CONFIGURATION, "shop/own", said);
    let wanted = registry.files_wanted();
    let held = files
        .iter()
        .map(|(path, text)| (Arc::from(*path), Ok(FileContent(text.as_bytes().into()))));
    let held: BTreeMap<Arc<str>, Read> = held.collect();
    let read = wanted.iter().map(|path| {
        let nothing = || Err("No such file".into());
        (
            path.clone(),
            held.get(path).cloned().unwrap_or_else(nothing),
        )
    });
    let read = read.collect();
    registry.files_read(&wanted, read);
    let held = registry.configuration.as_ref().expect("a configuration");
    let server = registry.edge(&held.value).remove(0).servers.remove(0);
    (server.way.name, server.tls.expect("TLS"))
}

#[test]
fn a_server_goes_on_with_the_certificate_that_was_good() {
    let mesh = TestAuthority::new();
    let [one, two] = [
        mesh.certificate("shop", "web"),
        mesh.certificate("shop", "db"),
    ];
    let (one, two) = (
        (one.chain_pem(), one.private_key_pem()),
        (two.chain_pem(), two.private_key_pem()),
    );
    let mut registry = Registry {
        is_gateway: true,
        ..Registry::default()
    };
    let open = gateway("");
    let (name, tls) = server(&mut registry, &open, &[("/tls.crt", one.0)]);
    assert!(tls.config.is_none(), "nobody is let in");
    let troubles: Vec<_> = registry.gateway.file_troubles().collect();
    let [(server_name, trouble)] = troubles.as_slice() else {
        panic!("{troubles:?}");
    };
    assert_eq!(
        (*server_name, trouble.as_str()),
        (
            &*name,
            "/tls.key: No such file; the server admits no client"
        )
    );
    // A problem with local files is not reported as a rejection to the control plane.
    assert_eq!(registry.gateway.troubles().count(), 0);
    let pair = [("/tls.crt", one.0), ("/tls.key", one.1)];
    let (_, good) = server(&mut registry, &open, &pair);
    assert!(good.config.is_some());
    let (_, same) = server(&mut registry, &open, &pair);
    assert!(good == same, "nothing changed, and nothing is made anew");
    let nothing = BTreeMap::new();
    let wanted = registry.files_wanted();
    assert!(!registry.files_read(&wanted, nothing), "nor published");
    let (_, mixed) = server(
        &mut registry,
        &open,
        &[("/tls.crt", two.0), ("/tls.key", one.1)],
    );
    assert!(good == mixed, "the last good stays");
    let (_, newer) = server(
        &mut registry,
        &open,
        &[("/tls.crt", two.0), ("/tls.key", two.1)],
    );
    assert!(good != newer);
}

#[test]
fn a_server_is_another_where_its_clients_have_to_prove_more_and_keeps_each_part_that_was_good() {
    let mesh = TestAuthority::new();
    let [one, two] = [
        mesh.certificate("shop", "web"),
        mesh.certificate("shop", "db"),
    ];
    let (one, two) = (
        (one.chain_pem(), one.private_key_pem()),
        (two.chain_pem(), two.private_key_pem()),
    );
    let root = mesh.authority().root_pem();
    let mut registry = Registry {
        is_gateway: true,
        ..Registry::default()
    };
    let (open, asking) = (gateway(""), gateway("/ca.crt"));
    let pair = [("/tls.crt", one.0), ("/tls.key", one.1)];
    let (name, _) = server(&mut registry, &open, &pair);
    // A server with client verification never uses the certificate of an earlier server without it.
    let (other, asked) = server(
        &mut registry,
        &asking,
        &[("/tls.crt", one.0), ("/ca.crt", root)],
    );
    assert_ne!(name, other);
    assert!(asked.config.is_none());
    let all = [pair[0], pair[1], ("/ca.crt", root)];
    let (_, asked) = server(&mut registry, &asking, &all);
    assert!(asked.config.is_some());
    // Each part for itself.
    let (_, kept) = server(&mut registry, &asking, &[pair[0], pair[1]]);
    assert!(asked == kept);
    let renewed = [("/tls.crt", two.0), ("/tls.key", two.1)];
    let (_, renewed) = server(&mut registry, &asking, &renewed);
    assert!(
        renewed != kept,
        "the certificate is renewed while the authorities are gone"
    );
    let other = TestAuthority::new();
    let others = [
        ("/tls.crt", "junk"),
        ("/tls.key", two.1),
        ("/ca.crt", other.authority().root_pem()),
    ];
    let (_, stricter) = server(&mut registry, &asking, &others);
    assert!(
        stricter != renewed,
        "who is believed is another while the certificate is junk"
    );
}
