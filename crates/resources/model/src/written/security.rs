//! `security.istio.io`: PeerAuthentication.

use super::{Selector, Text};
use crate::decode::{Cursor, FieldPath, Fields};

/// `spec` of a PeerAuthentication.
#[derive(Debug, Default)]
pub(crate) struct PeerAuthentication {
    pub(crate) selector: Option<Selector>,
    pub(crate) mode: Option<Text>,
    /// Location of `portLevelMtls`, if present.
    pub(crate) ports_at: Option<FieldPath>,
    /// Keys are port numbers as text.
    pub(crate) ports: Vec<(Text, Option<Text>)>,
}

impl PeerAuthentication {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let selector = Selector::read(&mut spec, "selector", "matchLabels");
        let mode = spec.get("mtls").and_then(|cursor| read_mode(&cursor));
        let ports = spec.get("portLevelMtls");
        let ports_at = ports.as_ref().map(|cursor| cursor.at().clone());
        let ports = ports.map(|cursor| cursor.entries()).unwrap_or_default();
        let ports = ports
            .into_iter()
            .map(|(port, cursor)| (port, read_mode(&cursor)))
            .collect();
        spec.finish();
        Self {
            selector,
            mode,
            ports_at,
            ports,
        }
    }
}

fn read_mode(cursor: &Cursor<'_>) -> Option<Text> {
    let mut fields = cursor.fields()?;
    let mode = fields.text("mode");
    fields.finish();
    mode
}
