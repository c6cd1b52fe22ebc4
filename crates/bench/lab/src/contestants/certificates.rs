//! Certificates for contestants that have no authority of their own: one root, a leaf for each side, SPIFFE URIs as names, P-256
//! as in the mesh. They are made anew for each run and removed with its folder. Also leaves below the mesh's own root, and a root
//! with its key for a control plane that certifies while it runs.

use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SigningKey,
};

/// Paths of a certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Both in one file, as HAProxy wants them.
    pub(super) both: PathBuf,
}

/// Writes `root.pem` and one leaf per name and SPIFFE id into the folder.
pub(super) fn write(
    folder: &Path,
    leaves: &[(&str, &str)],
) -> Result<(PathBuf, Vec<Leaf>), String> {
    let root = root()?;
    let root_path = folder.join("root.pem");
    write_file(&root_path, &root.pem())?;
    let written = leaves
        .iter()
        .map(|(name, id)| leaf(folder, name, id, &root))
        .collect::<Result<_, _>>()?;
    Ok((root_path, written))
}

fn root() -> Result<CertifiedIssuer<'static, KeyPair>, String> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "lab root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(failed)?).map_err(failed)
}

/// Writes `root.pem` and `root-key.pem` into the folder.
pub(super) fn anchor(folder: &Path) -> Result<(PathBuf, PathBuf), String> {
    let root = root()?;
    let (certificate, key) = (folder.join("root.pem"), folder.join("root-key.pem"));
    write_file(&certificate, &root.pem())?;
    write_file(&key, &root.key().serialize_pem())?;
    Ok((certificate, key))
}

/// Writes a key (`key.p8`) and a request for a certificate of that name (`csr.der`) into the folder, DER both.
pub(super) fn request(folder: &Path, name: &str) -> Result<(), String> {
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![san(name)?];
    let csr = params.serialize_request(&key).map_err(failed)?;
    for (file, bytes) in [("key.p8", key.serialized_der()), ("csr.der", csr.der())] {
        let path = folder.join(file);
        std::fs::write(&path, bytes).map_err(|e| format!("writing {}: {e}", path.display()))?;
    }
    Ok(())
}

/// A SPIFFE id, or a name like a DNS name.
fn san(id: &str) -> Result<SanType, String> {
    let name = Ia5String::try_from(id).map_err(failed)?;
    Ok(if id.contains("://") {
        SanType::URI(name)
    } else {
        SanType::DnsName(name)
    })
}

/// Writes leaves below a root whose key is in files, such as the mesh's.
pub(super) fn below(
    root: &Path,
    root_key: &Path,
    folder: &Path,
    leaves: &[(&str, &str)],
) -> Result<Vec<Leaf>, String> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|e| format!("reading {}: {e}", path.display()))
    };
    let key = KeyPair::from_pem(&read(root_key)?).map_err(failed)?;
    let issuer = Issuer::from_ca_cert_pem(&read(root)?, key).map_err(failed)?;
    leaves
        .iter()
        .map(|(name, id)| leaf(folder, name, id, &issuer))
        .collect()
}

fn failed(e: rcgen::Error) -> String {
    format!("making certificates: {e}")
}

fn write_file(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("writing {}: {e}", path.display()))
}

/// Writes a leaf that was made elsewhere.
pub(super) fn place(
    folder: &Path,
    name: &str,
    certificate: &str,
    key: &str,
) -> Result<Leaf, String> {
    let leaf = Leaf {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}-key.pem")),
        both: folder.join(format!("{name}-both.pem")),
    };
    write_file(&leaf.certificate, certificate)?;
    write_file(&leaf.both, &format!("{certificate}{key}"))?;
    write_file(&leaf.key, key)?;
    Ok(leaf)
}

fn leaf(
    folder: &Path,
    name: &str,
    id: &str,
    issuer: &Issuer<'_, impl SigningKey>,
) -> Result<Leaf, String> {
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = vec![san(id)?];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params.signed_by(&key, issuer).map_err(failed)?;
    place(folder, name, &certificate.pem(), &key.serialize_pem())
}
