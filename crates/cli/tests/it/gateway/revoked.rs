//! Certificates that their authorities took back, of clients at a gateway and of servers that it calls, in lists by openssl: from Secrets
//! and from files, read again under its hands.

use super::origination::{LATER, rule};
use super::streams::{entry, tls_server};
use super::tls::{PORT, curl, https, path};
use super::{Edge, NETWORKING, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{HTTP_PORT, application, exchange, get, wait_until};

/// Longer ago than any test.
const LONG_AGO: &str = "20200201000000Z";

/// A server's keys, two clients', and an authority with an empty revocation list.
fn keys() -> Keys {
    let keys = Keys::new();
    keys.own("server", "*.example");
    keys.own("clients", "clients");
    for name in ["kept", "lost"] {
        keys.client(name, "clients");
    }
    keys.revoke("clients", &[], None);
    keys
}

/// Returns true if a client with this certificate, or with none, is allowed.
fn enters(edge: &Edge, keys: &Keys, host: &str, shows: Option<&str>) -> bool {
    let files = shows.map(|name| ["crt", "key"].map(|kind| keys.path(&format!("{name}.{kind}"))));
    let mut arguments = vec!["-k"];
    if let Some([certificate, key]) = &files {
        arguments.extend(["--cert", path(certificate), "--key", path(key)]);
    }
    curl(edge, host, &arguments).is_ok_and(|(status, _)| status == "200 2")
}

#[test]
fn who_shows_a_revoked_certificate_is_not_let_in_by_the_list_of_a_secret() {
    let keys = keys();
    let secret = |more: &[(&str, &str)]| {
        let own = [("ca.crt", "clients.crt")];
        keys.secret("shop", "server-cacert", &[&own[..], more].concat())
    };
    let all = servers(&format!(
        "{}, {}",
        https("must.example", "mode: MUTUAL, credentialName: server"),
        https(
            "may.example",
            "mode: OPTIONAL_MUTUAL, credentialName: server"
        ),
    ));
    let edge = Edge::start(
        "",
        &(keys.pair("server") + &all + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    let enters = |host: &str, shows: Option<&str>| enters(&edge, &keys, host, shows);
    let list = [("ca.crl", "clients.crl")];
    say(&edge.mesh, "clients.yaml", &secret(&list));
    wait_until("the clients", || {
        enters("must.example", Some("kept")) && enters("must.example", Some("lost"))
    });
    keys.revoke("clients", &["lost"], None);
    say(&edge.mesh, "clients.yaml", &secret(&list));
    wait_until("the list", || !enters("must.example", Some("lost")));
    for (host, shows, welcome) in [
        ("must.example", Some("kept"), true),
        ("may.example", Some("kept"), true),
        ("may.example", Some("lost"), false),
        // A list does not concern clients without a certificate.
        ("may.example", None, true),
        ("must.example", None, false),
    ] {
        assert_eq!(enters(host, shows), welcome, "{host} {shows:?}");
    }
    // With an out-of-date list no certificate is accepted.
    keys.revoke("clients", &[], Some(LONG_AGO));
    say(&edge.mesh, "clients.yaml", &secret(&list));
    wait_until("the old list", || !enters("must.example", Some("kept")));
    assert!(enters("may.example", None));
    // With an unreadable or empty list no client is allowed, not even one without a certificate; the
    // status page has the reason.
    let back = |what: &str| {
        keys.revoke("clients", &[], None);
        say(&edge.mesh, "clients.yaml", &secret(&list));
        wait_until(what, || enters("must.example", Some("kept")));
    };
    back("a new list");
    std::fs::write(keys.path("junk.crl"), "junk\n").expect("written");
    say(
        &edge.mesh,
        "clients.yaml",
        &secret(&[("ca.crl", "junk.crl")]),
    );
    wait_until("the junk", || !enters("may.example", None));
    assert!(!enters("must.example", Some("kept")));
    let why = "the certificate revocation lists cannot be read: it has no such PEM block";
    let status = || body(&get(edge.mesh.monitoring(), "/debug/status").expect("an answer"));
    wait_until("the refusal", || status().contains(why));
    back("a list after the junk");
    std::fs::write(keys.path("empty.crl"), "").expect("written");
    say(
        &edge.mesh,
        "clients.yaml",
        &secret(&[("ca.crl", "empty.crl")]),
    );
    wait_until("nothing", || !enters("may.example", None));
    assert!(!enters("must.example", Some("kept")));
    back("a list after nothing");
    // Without a list nothing is checked.
    say(&edge.mesh, "clients.yaml", &secret(&[]));
    wait_until("no list", || enters("must.example", Some("lost")));
}

#[test]
fn a_list_in_a_file_is_read_again_and_what_cannot_be_read_leaves_the_last() {
    let keys = keys();
    let at = |name: &str| keys.path(name).display().to_string();
    let tls = format!(
        "mode: MUTUAL, serverCertificate: {}, privateKey: {}, caCertificates: {}, caCrl: {}",
        at("server.crt"),
        at("server.key"),
        at("clients.crt"),
        at("list.crl")
    );
    let all = servers(&https("must.example", &tls)) + &routes("must.example", TO_SERVER);
    let edge = Edge::start("", &all);
    application::reflect(edge.mesh.http_app());
    let enters = |name: &str| enters(&edge, &keys, "must.example", Some(name));
    // No client is allowed before there is a list.
    let missing = format!("{}: No such file", at("list.crl"));
    wait_until("the list to be missed", || edge.dump().contains(&missing));
    assert!(!enters("kept"));
    keys.put("clients.crl", "list.crl");
    wait_until("the clients", || enters("kept") && enters("lost"));
    keys.revoke("clients", &["lost"], None);
    keys.put("clients.crl", "list.crl");
    wait_until("the list", || !enters("lost"));
    assert!(enters("kept"));
    std::fs::write(keys.path("junk"), "junk\n").expect("written");
    keys.put("junk", "list.crl");
    let why = format!(
        "{}: the certificate revocation lists cannot be read",
        at("list.crl")
    );
    wait_until("a line in the log", || edge.gateway.log().contains(&why));
    assert!(enters("kept") && !enters("lost"));
    // Others follow for themselves: the certificate is renewed beside a list that cannot be read.
    keys.own("next", "must.example");
    keys.put("next.key", "server.key");
    keys.put("next.crt", "server.crt");
    let certificate = keys.path("next.crt");
    let [kept, key] = ["kept.crt", "kept.key"].map(|name| keys.path(name));
    let shown = [
        "--cacert",
        path(&certificate),
        "--cert",
        path(&kept),
        "--key",
        path(&key),
    ];
    wait_until("the next certificate", || {
        curl(&edge, "must.example", &shown).is_ok_and(|(status, _)| status == "200 2")
    });
    assert!(!enters("lost"));
    // And the list beside a certificate that cannot be read.
    keys.put("junk", "server.crt");
    keys.revoke("clients", &["kept"], None);
    keys.put("clients.crl", "list.crl");
    wait_until("the longer list", || !enters("kept"));
    keys.put("next.crt", "server.crt");
    keys.client("third", "clients");
    wait_until("the certificate again", || enters("third"));
    assert!(!enters("kept"));
}

/// A host to the server of its name.
fn route(name: &str) -> String {
    format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [{name}.test]\n  gateways: [edge]\n  http: [{{route: [{{destination: {{host: {name}.test}}}}]}}]\n---\n"
    )
}

#[test]
fn a_server_whose_certificate_is_revoked_is_not_called() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    for name in ["kept", "lost"] {
        keys.server(name, &format!("{name}.test"), "authority", LATER);
    }
    keys.revoke("authority", &["lost"], None);
    let edge = Edge::start(
        "",
        &(servers(&http_server("\"*.test\"")) + &route("kept") + &route("lost")),
    );
    let both = [("kept", 20), ("lost", 21)];
    let at = |last: u8| edge.mesh.address(last, PORT);
    let _servers = both.map(|(name, last)| tls_server(&keys, name, at(last), &[]));
    let entries: String = both
        .map(|(name, last)| entry(name, at(last), "HTTP"))
        .concat();
    say(&edge.mesh, "entries.yaml", &entries);
    let ask = |name: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {name}.test\r\nConnection: close\r\n\r\n");
        let answer = exchange(edge.at(HTTP_PORT), request.as_bytes()).expect("an answer");
        (answer.status, body(&answer))
    };
    let refused = |name: &str| {
        let (status, why) = ask(name);
        status == 503 && why.contains("its certificate is revoked")
    };
    let by_secret = |files: &[(&str, &str)]| {
        let simple = |name: &str| rule(name, "mode: SIMPLE, credentialName: authority");
        keys.secret("shop", "authority", files) + &simple("kept") + &simple("lost")
    };
    let authority = ("ca.crt", "authority.crt");
    say(&edge.mesh, "rules.yaml", &by_secret(&[authority]));
    wait_until("both servers", || {
        ask("kept").0 == 200 && ask("lost").0 == 200
    });
    let with_list = [authority, ("ca.crl", "authority.crl")];
    say(&edge.mesh, "rules.yaml", &by_secret(&with_list));
    wait_until("the list", || refused("lost"));
    assert_eq!(ask("kept").0, 200);
    // With an out-of-date list no server is accepted.
    keys.revoke("authority", &[], Some(LONG_AGO));
    say(&edge.mesh, "rules.yaml", &by_secret(&with_list));
    wait_until("the old list", || ask("kept").0 == 503);
    keys.revoke("authority", &[], None);
    say(&edge.mesh, "rules.yaml", &by_secret(&with_list));
    wait_until("a new list", || ask("kept").0 == 200);
    // A list that cannot be read is no reason to look at none, or at that of before.
    std::fs::write(keys.path("junk.crl"), "junk\n").expect("written");
    let spoilt = [authority, ("ca.crl", "junk.crl")];
    say(&edge.mesh, "rules.yaml", &by_secret(&spoilt));
    let uncalled = || {
        let (status, why) = ask("kept");
        status == 503 && why.contains("TLS settings of the DestinationRule are invalid")
    };
    wait_until("the junk", uncalled);
    // The same by files; with a missing file no server is called.
    let file = |name: &str| keys.path(name).display().to_string();
    let by_file = |list: &str| {
        let tls = format!(
            "mode: SIMPLE, caCertificates: {}, caCrl: {}",
            file("authority.crt"),
            file(list)
        );
        rule("kept", &tls) + &rule("lost", &tls)
    };
    say(&edge.mesh, "rules.yaml", &by_file("gone.crl"));
    wait_until("no list", || edge.dump().contains("gone.crl") && uncalled());
    say(&edge.mesh, "rules.yaml", &by_file("authority.crl"));
    wait_until("the file", || ask("kept").0 == 200);
    assert!(refused("lost"));
}

/// A root, an authority that it certifies, and an empty list of each.
fn two_authorities() -> Keys {
    let keys = Keys::new();
    keys.own("root", "root");
    keys.intermediate("inter", "root");
    for name in ["root", "inter"] {
        keys.revoke(name, &[], None);
    }
    keys
}

/// Of two authorities' certificates, what becomes of `kept` and `lost` by the second one and `direct` by the root where these lists are
/// given; each begins where the one before ended.
fn by_lists(keys: &Keys, mut becomes: impl FnMut(&str, &[&str], [bool; 3])) {
    let both = ["root", "inter"];
    becomes("empty lists", &both, [true, true, true]);
    keys.revoke("inter", &["lost"], None);
    becomes("one is taken back", &both, [true, false, true]);
    becomes(
        "of the second authority nothing is said",
        &["inter"],
        [false; 3],
    );
    becomes("lists again", &both, [true, false, true]);
    becomes(
        "of its certificates nothing is said",
        &["root"],
        [false, false, true],
    );
    becomes("lists once more", &both, [true, false, true]);
    keys.revoke("inter", &[], Some(LONG_AGO));
    becomes("its list is out of date", &both, [false, false, true]);
    keys.revoke("inter", &[], None);
    becomes("a new list", &both, [true, false, true]);
    keys.revoke("root", &[], Some(LONG_AGO));
    becomes("the root's is out of date", &both, [false; 3]);
    keys.revoke("root", &["inter"], None);
    becomes(
        "the second authority is taken back",
        &both,
        [false, false, true],
    );
}

/// A file of these authorities' lists.
fn lists(keys: &Keys, of: &[&str]) {
    let files: Vec<String> = of.iter().map(|name| format!("{name}.crl")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    keys.join(&files, "lists.crl");
}

#[test]
fn of_every_certificate_that_a_client_shows_a_list_must_say_that_it_is_not_revoked() {
    let keys = two_authorities();
    keys.own("server", "*.example");
    keys.client("direct", "root");
    for name in ["kept", "lost"] {
        keys.client(name, "inter");
        keys.join(
            &[&format!("{name}.crt"), "inter.crt"],
            &format!("{name}.crt"),
        );
    }
    let all = servers(&https(
        "must.example",
        "mode: MUTUAL, credentialName: server",
    ));
    let edge = Edge::start(
        "",
        &(keys.pair("server") + &all + &routes("must.example", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    by_lists(&keys, |what, of, expected| {
        lists(&keys, of);
        let told = [("ca.crt", "root.crt"), ("ca.crl", "lists.crl")];
        say(
            &edge.mesh,
            "clients.yaml",
            &keys.secret("shop", "server-cacert", &told),
        );
        let enters = |name| enters(&edge, &keys, "must.example", Some(name));
        wait_until(what, || ["kept", "lost", "direct"].map(enters) == expected);
    });
}

#[test]
fn of_every_certificate_that_a_server_shows_a_list_must_say_that_it_is_not_revoked() {
    let keys = two_authorities();
    let names = ["kept", "lost", "direct"];
    for (name, by) in names.into_iter().zip(["inter", "inter", "root"]) {
        keys.server(name, &format!("{name}.test"), by, LATER);
    }
    let edge = Edge::start(
        "",
        &(servers(&http_server("\"*.test\"")) + &names.map(route).concat()),
    );
    let inter = keys.path("inter.crt");
    let at = |last: u8| edge.mesh.address(last, PORT);
    let places = names.into_iter().zip(20..);
    let _servers: Vec<_> = places
        .clone()
        .map(|(name, last)| tls_server(&keys, name, at(last), &["-cert_chain", path(&inter)]))
        .collect();
    let entries: String = places
        .map(|(name, last)| entry(name, at(last), "HTTP"))
        .collect();
    say(&edge.mesh, "entries.yaml", &entries);
    let rules = names.map(|name| rule(name, "mode: SIMPLE, credentialName: root"));
    by_lists(&keys, |what, of, expected| {
        lists(&keys, of);
        let told = [("ca.crt", "root.crt"), ("ca.crl", "lists.crl")];
        say(
            &edge.mesh,
            "rules.yaml",
            &(keys.secret("shop", "root", &told) + &rules.concat()),
        );
        let called = |name| edge.status(&format!("{name}.test"), "/") == 200;
        wait_until(what, || names.map(called) == expected);
    });
    // An empty file is no list, and no certificate is accepted by it.
    by_lists_of_nothing(&edge, &keys, &rules.concat());
}

/// An empty `ca.crl`.
fn by_lists_of_nothing(edge: &Edge, keys: &Keys, rules: &str) {
    let say_lists = |told: &[(&str, &str)]| {
        let secret = keys.secret("shop", "root", told);
        say(&edge.mesh, "rules.yaml", &(secret + rules));
    };
    let called = || edge.ask("GET", "direct.test", "/", "");
    std::fs::write(keys.path("empty.crl"), "").expect("written");
    say_lists(&[("ca.crt", "root.crt"), ("ca.crl", "empty.crl")]);
    wait_until("an empty list", || {
        let answer = called();
        answer.status == 503
            && body(&answer).contains("TLS settings of the DestinationRule are invalid")
    });
    say_lists(&[("ca.crt", "root.crt")]);
    wait_until("no list", || called().status == 200);
}
