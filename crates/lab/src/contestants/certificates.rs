//! Certificates for contestants that have no authority of their own: one root, a leaf for each side, SPIFFE URIs as names,
//! P-256 as in the mesh, made anew for each run and removed with its folder.

use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// Paths of what was written.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// Both in one file, as HAProxy wants them.
    pub(super) both: PathBuf,
}

/// Writes `root.pem` and one leaf per name and SPIFFE id into the folder.
pub(super) fn write(
    folder: &Path,
    leaves: &[(&str, &str)],
) -> Result<(PathBuf, Vec<Leaf>), String> {
    let failed = |e: rcgen::Error| format!("making certificates: {e}");
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).map_err(|e| format!("writing {}: {e}", path.display()))
    };
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "lab root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(failed)?)
        .map_err(failed)?;
    let root_path = folder.join("root.pem");
    write(&root_path, &root.pem())?;
    let mut written = Vec::new();
    for (name, id) in leaves {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, *name);
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(*id).map_err(failed)?)];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &root).map_err(failed)?;
        let leaf = Leaf {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}-key.pem")),
            both: folder.join(format!("{name}-both.pem")),
        };
        write(&leaf.certificate, &certificate.pem())?;
        write(&leaf.both, &(certificate.pem() + &key.serialize_pem()))?;
        write(&leaf.key, &key.serialize_pem())?;
        written.push(leaf);
    }
    Ok((root_path, written))
}
