//! Check of `tls` of a whole Gateway, and of the `options` of a listener's.

use std::sync::Arc;

use crate::check::routing::gateway_api::fields::{SECRET, at_most, not_done, reference};
use crate::check::routing::intents::istio_gateway;
use crate::check::values;
use crate::decode::{Fields, Report, Text};
use crate::mesh::gateway_api::{ClientValidation, GatewayTlsConfig};
use crate::mesh::routing_intent::ServerTlsMode;
use crate::names::Namespace;
use crate::text::clip;

/// Options of a listener that Istio reads.
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";
const CIPHER_SUITES: &str = "gateway.istio.io/tls-cipher-suites";
/// Values of the first.
const MODES: [(&str, ServerTlsMode); 4] = [
    ("SIMPLE", ServerTlsMode::Simple),
    ("MUTUAL", ServerTlsMode::Mutual),
    ("OPTIONAL_MUTUAL", ServerTlsMode::OptionalMutual),
    ("ISTIO_MUTUAL", ServerTlsMode::IstioMutual),
];
/// Bounds of the API's schema.
const MAX_PORTS: usize = 64;
const MAX_REFERENCES: usize = 16;

pub(super) fn read(mut tls: Fields<'_>, own: &Namespace, report: &Report) -> GatewayTlsConfig {
    let mut config = GatewayTlsConfig::default();
    if let Some(mut backend) = tls.inner("backend") {
        config.client_certificate = backend.inner("clientCertificateRef").and_then(|mut to| {
            let read = reference(&mut to, SECRET, own, report);
            to.finish();
            read
        });
        backend.finish();
    }
    if let Some(mut frontend) = tls.inner("frontend") {
        let at = frontend.at().clone();
        let default = report.required(frontend.inner("default"), &at, "default");
        config.default = default.and_then(|default| validation(default, own, report));
        let ports = frontend.list("perPort", |cursor| {
            let mut fields = cursor.fields()?;
            let number = report.required(fields.integer("port"), cursor.at(), "port");
            let tls = report.required(fields.inner("tls"), cursor.at(), "tls");
            let validation = tls.and_then(|tls| validation(tls, own, report));
            fields.finish();
            Some((report.port(&number?)?, validation))
        });
        at_most(ports.len(), MAX_PORTS, "perPort", &at, report);
        let names = ports
            .iter()
            .map(|(port, _)| (Arc::<str>::from(port.to_string()), &at));
        values::unique("port", names, report);
        config.ports = ports.into_iter().collect();
        frontend.finish();
    }
    tls.finish();
    config
}

fn validation(
    mut fields: Fields<'_>,
    own: &Namespace,
    report: &Report,
) -> Option<ClientValidation> {
    let validation = fields.inner("validation");
    fields.finish();
    let mut validation = validation?;
    let at = validation.at().clone();
    let authorities = validation.list("caCertificateRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let to = reference(&mut fields, ("", ""), own, report);
        fields.finish();
        let to = to?;
        if to.kind.is_empty() {
            report.required(None::<()>, cursor.at(), "kind");
        }
        Some(to)
    });
    if authorities.is_empty() {
        report.required(None::<()>, &at, "caCertificateRefs");
    }
    let count = authorities.len();
    at_most(count, MAX_REFERENCES, "caCertificateRefs", &at, report);
    let mode = validation.text("mode");
    let modes = [("AllowValidOnly", false), ("AllowInsecureFallback", true)];
    let mode = mode.and_then(|text| report.one_of(&text, &modes));
    validation.finish();
    Some(ClientValidation {
        authorities,
        fallback: mode.unwrap_or(false),
    })
}

/// The mode and the suites of a listener that terminates TLS, by its `options`.
pub(super) fn options(written: &[(Text, Text)], report: &Report) -> (ServerTlsMode, Vec<Arc<str>>) {
    let (mut mode, mut suites) = (ServerTlsMode::Simple, Vec::new());
    for (key, value) in written {
        match &*key.value {
            TERMINATE_MODE => mode = report.one_of(value, &MODES).unwrap_or(mode),
            CIPHER_SUITES => {
                let names = value.value.split(',').map(|name| Text {
                    value: name.trim().into(),
                    at: value.at.clone(),
                });
                suites = istio_gateway::suites(&names.collect::<Vec<_>>(), report);
            }
            other => {
                let what = format!("`{}` in `options`", clip(other));
                let help = format!("remove it; there are {TERMINATE_MODE} and {CIPHER_SUITES}");
                not_done(&what, &help, &key.at, report);
            }
        }
    }
    (mode, suites)
}
