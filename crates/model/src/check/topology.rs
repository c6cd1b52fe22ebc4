//! What stands in front of one Pod's sidecar: `gatewayTopology` in the Pod's annotation `proxy.istio.io/config`.

use crate::codes;
use crate::decode::{At, Cursor, Fields, Report, Spanned};
use crate::mesh::Topology;
use crate::names::Labels;
use crate::text::clip;
use crate::yaml::{self, Value};

use super::values::join;

const ANNOTATION: &str = "proxy.istio.io/config";
const TOPOLOGY: &str = "gatewayTopology";
const FORWARD: &str = "forwardClientCertDetails";

/// Reads it; what is wrong is reported, and the Pod is then not in force.
pub(super) fn topology(annotations: &Labels, at: &At, report: &Report) -> Topology {
    let none = Topology::default();
    let Some(text) = annotations.get(ANNOTATION) else {
        return none;
    };
    let at = At {
        place: at.place,
        path: join(&at.path, &format!("metadata.annotations[{ANNOTATION}]")),
    };
    let mut root = match yaml::parse_document(text, at.place) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => return none,
        Err(error) => {
            report.error(error.code, &at, error.message, error.help);
            return none;
        }
    };
    // Lines inside of an annotation are nobody's: all we can name is where its Pod begins.
    super::config::pin(&mut root, at.place);
    let Value::Map(entries) = &root.value else {
        report.error(codes::WRONG_TYPE, &at, "a mapping is wanted here", "");
        return none;
    };
    for (key, _) in entries.iter().filter(|(key, _)| &*key.text != TOPOLOGY) {
        let message = format!(
            "`{}` of this annotation is not in force: of one Pod only {TOPOLOGY} is heard",
            clip(&key.text)
        );
        let help = "say it for all proxies, in MeshConfig's defaultConfig";
        report.warning(codes::NOT_YET, &at, message, help);
    }
    let Some((_, node)) = entries.iter().find(|(key, _)| &*key.text == TOPOLOGY) else {
        return none;
    };
    let at = At {
        place: at.place,
        path: format!("{}.{TOPOLOGY}", at.path).into(),
    };
    let cursor = Cursor { node, at, report };
    let Some(mut fields) = cursor.fields() else {
        return none;
    };
    let number = fields.integer("numTrustedProxies");
    let proxy_protocol = fields.inner("proxyProtocol").map(Fields::finish);
    fields.not_yet(&[FORWARD]);
    fields.finish();
    Topology {
        trusted_proxies: number.and_then(|number| trusted_proxies(&number, report)),
        proxy_protocol: proxy_protocol.is_some(),
    }
}

/// `numTrustedProxies`.
pub(super) fn trusted_proxies(number: &Spanned<i64>, report: &Report) -> Option<u32> {
    let count = u32::try_from(number.value).ok();
    if count.is_none() {
        let message = format!("{} is not a number of proxies", number.value);
        report.error(codes::BAD_VALUE, &number.at, message, "write 0 or more");
    }
    count
}
