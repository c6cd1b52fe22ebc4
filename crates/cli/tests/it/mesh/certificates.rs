//! Certificates of a test, made by openssl, which shares no code with us.

use std::path::PathBuf;
use std::process::Command;

/// Certificates and keys of a test.
pub(crate) struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// Replaces a file by another at once, as programs that renew certificates do.
    pub(crate) fn put(&self, from: &str, to: &str) {
        let new = self.path(&format!("{to}.new"));
        std::fs::copy(self.path(from), &new).expect("copied");
        std::fs::rename(new, self.path(to)).expect("renamed");
    }

    fn openssl(&self, arguments: &str) {
        let ran = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(self.folder.path())
            .output()
            .expect("openssl");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }

    /// A certificate that is its own authority: NAME.crt and NAME.key.
    pub(crate) fn own(&self, name: &str, host: &str) {
        self.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} -addext subjectAltName=DNS:{host} -keyout {name}.key -out {name}.crt"
        ));
    }

    /// The same with a key of RSA.
    pub(crate) fn own_rsa(&self, name: &str, host: &str) {
        self.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -addext subjectAltName=DNS:{host} -keyout {name}.key -out {name}.crt"
        ));
    }

    /// A server's certificate by an authority, that ends on this day (`YYYYMMDD000000Z`).
    pub(crate) fn server(&self, name: &str, host: &str, authority: &str, end: &str) {
        let extensions = format!("extendedKeyUsage=serverAuth\nsubjectAltName=DNS:{host}\n");
        std::fs::write(self.path("server.ext"), extensions).expect("written");
        self.request(name);
        let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n";
        for (file, text) in [("ca.cnf", settings), ("index.txt", ""), ("serial", "01\n")] {
            // No two certificates have one number.
            if !self.path(file).exists() {
                std::fs::write(self.path(file), text).expect("written");
            }
        }
        self.openssl(&format!(
            "ca -batch -notext -config ca.cnf -md sha256 -cert {authority}.crt -keyfile {authority}.key -startdate 20200101000000Z -enddate {end} -extfile server.ext -in {name}.csr -out {name}.crt"
        ));
    }

    fn request(&self, name: &str) {
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
    }

    /// An authority that another one certifies.
    pub(crate) fn intermediate(&self, name: &str, authority: &str) {
        let extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n\
                          subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n";
        std::fs::write(self.path("authority.ext"), extensions).expect("written");
        self.request(name);
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 -extfile authority.ext -out {name}.crt"
        ));
    }

    /// Files one behind the other, as another.
    pub(crate) fn join(&self, files: &[&str], name: &str) {
        let all: String = files.iter().map(|file| self.text(file)).collect();
        std::fs::write(self.path(name), all).expect("written");
    }

    /// A client's certificate by an authority.
    pub(crate) fn client(&self, name: &str, authority: &str) {
        std::fs::write(self.path("client.ext"), "extendedKeyUsage=clientAuth\n").expect("written");
        self.request(name);
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 -extfile client.ext -out {name}.crt"
        ));
    }

    /// A revocation list of an authority, with the earlier revocations: NAME.crl. With an end (`YYYYMMDD000000Z`) it is out of
    /// date then.
    pub(crate) fn revoke(&self, authority: &str, names: &[&str], end: Option<&str>) {
        let own = |what: &str| format!("{authority}-{what}");
        let settings = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase={}\ncrlnumber={}\ndefault_md=sha256\ncrl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid\n",
            own("index"),
            own("number")
        );
        std::fs::write(self.path(&own("lists.cnf")), settings).expect("written");
        for (file, text) in [("index", ""), ("number", "01\n")] {
            let path = self.path(&own(file));
            if !path.exists() {
                std::fs::write(path, text).expect("written");
            }
        }
        let as_authority = format!(
            "ca -config {} -cert {authority}.crt -keyfile {authority}.key",
            own("lists.cnf")
        );
        for name in names {
            self.openssl(&format!("{as_authority} -revoke {name}.crt"));
        }
        let time = match end {
            None => "-crldays 2".to_owned(),
            Some(end) => format!("-crl_lastupdate 20200101000000Z -crl_nextupdate {end}"),
        };
        self.openssl(&format!(
            "{as_authority} -gencrl {time} -out {authority}.crl"
        ));
    }

    /// A ConfigMap that holds an authority's certificate as `ca.crt`.
    pub(crate) fn authority(&self, namespace: &str, name: &str, file: &str) -> String {
        let secret = self.secret(namespace, name, &[("ca.crt", file)]);
        let map = secret.replace("kind: Secret", "kind: ConfigMap");
        map.replace("type: kubernetes.io/tls\nstringData:", "data:")
    }

    /// A Secret that holds these files under these keys.
    pub(crate) fn secret(&self, namespace: &str, name: &str, files: &[(&str, &str)]) -> String {
        let mut text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\ntype: kubernetes.io/tls\nstringData:\n"
        );
        for (key, file) in files {
            text += &format!("  {key}: |\n");
            for line in self.text(file).lines() {
                text += &format!("    {line}\n");
            }
        }
        text + "---\n"
    }

    pub(crate) fn pair(&self, name: &str) -> String {
        let (crt, key) = (format!("{name}.crt"), format!("{name}.key"));
        self.secret("shop", name, &[("tls.crt", &crt), ("tls.key", &key)])
    }
}
