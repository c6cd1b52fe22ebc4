//! `tls` of whole Gateways: the authorities of their clients' certificates, and the certificates that they show to backends. Fail
//! closed: a listener without a usable authority serves nobody, and a gateway whose certificate cannot be used calls no backend that
//! a BackendTLSPolicy is for.

use std::sync::Arc;

use super::deployment;
use super::listeners::OpenGateway;
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::gateway_api::{
    ClientValidation, ConditionReason, Gateway, Reference, RefusedCondition,
};
use crate::mesh::{ConfigMap, Secret, TrustedCertificates, trusted};
use crate::names::{Labels, Namespace, ResourceName};

/// A block of PEM that every certificate has.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Verification of a listener's clients.
pub(super) struct ClientVerification {
    /// The authorities, if one is usable.
    pub(super) authorities: Option<Arc<TrustedCertificates>>,
    /// Why the listener serves nobody: no authority is usable.
    pub(super) refused: Option<RefusedCondition>,
    /// The first unusable reference.
    pub(super) unresolved: Option<RefusedCondition>,
}

/// Resolves the authorities of clients' certificates.
pub(super) fn verification(
    world: &AttachmentInputs<'_>,
    gateway: &Gateway,
    validation: &ClientValidation,
) -> ClientVerification {
    let own = &gateway.name.namespace;
    let mut pem = Vec::new();
    let mut revocations: Result<Vec<u8>, Arc<str>> = Ok(Vec::new());
    let mut unresolved: Option<RefusedCondition> = None;
    for to in &validation.authorities {
        match resolve(world, own, to) {
            Ok(found) => {
                append(&mut pem, &found.authorities);
                match (&mut revocations, found.revocations) {
                    (Ok(all), Ok(lists)) => append(all, &lists),
                    (Ok(_), Err(why)) => revocations = Err(why),
                    (Err(_), _) => {}
                }
            }
            Err(why) => drop(unresolved.get_or_insert(why)),
        }
    }
    if pem.is_empty() {
        let refused = unresolved.as_ref().map(|why| RefusedCondition {
            reason: ConditionReason::NoValidCertificate,
            ..why.clone()
        });
        return ClientVerification {
            authorities: None,
            refused,
            unresolved,
        };
    }
    let authorities = TrustedCertificates {
        authorities: pem,
        revocations,
    };
    ClientVerification {
        authorities: Some(Arc::new(authorities)),
        refused: None,
        unresolved,
    }
}

fn append(all: &mut Vec<u8>, pem: &[u8]) {
    if !pem.is_empty() {
        all.extend_from_slice(pem);
        all.push(b'\n');
    }
}

/// The authorities that one reference of a Gateway leads to.
fn resolve(
    world: &AttachmentInputs<'_>,
    own: &Namespace,
    to: &Reference,
) -> Result<TrustedCertificates, RefusedCondition> {
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    let is_map = to.is("", "ConfigMap");
    if !is_map && !to.is("", "Secret") {
        let said = format!(
            "caCertificateRefs supports ConfigMaps and Secrets, but no {}",
            to.kind
        );
        return no(ConditionReason::InvalidAuthorityKind, said);
    }
    if let Some(why) = world.unpermitted("Gateway", own, to) {
        return Err(why);
    }
    if is_map {
        return of_map(world, to).map(|(map, text)| TrustedCertificates {
            authorities: text.as_bytes().to_vec(),
            revocations: match map.data.get("ca.crl") {
                Some(lists) if lists.is_empty() => {
                    Err(format!("`ca.crl` of the ConfigMap {} is empty", to.name).into())
                }
                lists => Ok(lists
                    .map(|lists| lists.as_bytes().to_vec())
                    .unwrap_or_default()),
            },
        });
    }
    let found = trusted(world.mesh, &to.name);
    let is_pem = |found: &TrustedCertificates| {
        let mut blocks = found.authorities.windows(CERTIFICATE.len());
        blocks.any(|block| block == CERTIFICATE.as_bytes())
    };
    match found.filter(is_pem) {
        Some(found) => Ok(found),
        None => no(
            ConditionReason::InvalidAuthority,
            format!(
                "the Secret {} is not there, or has no `ca.crt` in PEM",
                to.name
            ),
        ),
    }
}

/// A ConfigMap, and its certificates.
pub(super) fn of_map<'m>(
    world: &AttachmentInputs<'m>,
    to: &Reference,
) -> Result<(&'m ConfigMap, &'m str), RefusedCondition> {
    let said = match world.mesh.config_maps.get(&to.name) {
        None => format!("the ConfigMap {} does not exist", to.name),
        Some(map) => match map.data.get("ca.crt") {
            Some(text) if text.contains(CERTIFICATE) => return Ok((map, text)),
            _ => format!("the ConfigMap {} has no `ca.crt` in PEM", to.name),
        },
    };
    let reason = ConditionReason::InvalidAuthority;
    Err(refusal(reason, &to.source, &to.field, said))
}

/// A Secret with a certificate and its key.
pub(super) fn pair(
    world: &AttachmentInputs<'_>,
    (kind, own): (&str, &Namespace),
    to: &Reference,
    reason: ConditionReason,
) -> Result<ResourceName, RefusedCondition> {
    let no = |said| Err(refusal(reason, &to.source, &to.field, said));
    if !to.is("", "Secret") {
        return no(format!("{} {} is no Secret", to.kind, to.name));
    }
    if let Some(why) = world.unpermitted(kind, own, to) {
        return Err(why);
    }
    match world.mesh.secrets.get(&to.name) {
        None => no(format!("the Secret {} does not exist", to.name)),
        Some(secret) => match lacks(secret) {
            Some(key) => no(format!("the Secret {} has no `{key}` in PEM", to.name)),
            None => Ok(to.name.clone()),
        },
    }
}

/// The missing entry of a certificate's Secret.
fn lacks(secret: &Secret) -> Option<&'static str> {
    ["tls.crt", "tls.key"].into_iter().find(|key| {
        let held = secret.data.get(*key);
        let begins = |bytes: &Arc<[u8]>| {
            let text = bytes.trim_ascii_start();
            text.starts_with(b"-----BEGIN ")
        };
        !held.is_some_and(begins)
    })
}

/// The Secret that a Gateway shows to backends; `None` if it shows none.
pub(super) fn client_certificate(
    world: &AttachmentInputs<'_>,
    gateway: &Gateway,
) -> Option<Result<ResourceName, RefusedCondition>> {
    let to = gateway.tls.client_certificate.as_ref()?;
    let reason = ConditionReason::InvalidClientCertificateRef;
    let own = ("Gateway", &gateway.name.namespace);
    Some(pair(world, own, to, reason))
}

/// The certificate of a gateway's pods for backends.
pub(super) struct GatewayClientCertificate {
    pub(super) gateway: ResourceName,
    /// Labels of its pods.
    pub(super) selector: Labels,
    /// The Secret; `None` if it cannot be used.
    pub(super) secret: Option<ResourceName>,
}

/// Those of all Gateways that have one.
pub(super) fn client_certificates(
    world: &AttachmentInputs<'_>,
    opened: &[OpenGateway<'_>],
) -> Vec<GatewayClientCertificate> {
    let shown = opened.iter().filter_map(|open| {
        let shown = open.client_certificate.as_ref()?;
        Some(GatewayClientCertificate {
            gateway: open.gateway.name.clone(),
            selector: deployment::selector(world, open.gateway),
            secret: shown.as_ref().ok().cloned(),
        })
    });
    shown.collect()
}
