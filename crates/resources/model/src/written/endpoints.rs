//! EndpointSlices, and the older Endpoints: endpoints of a Service without a selector.

use super::Text;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// An EndpointSlice.
#[derive(Debug)]
pub(crate) struct EndpointSlice {
    pub(crate) address_type: Option<Text>,
    pub(crate) subset: Subset,
}

/// Ports, and the endpoints with these ports.
#[derive(Debug)]
pub(crate) struct Subset {
    pub(crate) ports: Vec<Port>,
    pub(crate) endpoints: Vec<WrittenEndpoint>,
}

/// One of `ports`.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) number: Option<SpannedValue<i64>>,
    pub(crate) protocol: Option<Text>,
}

/// One of `endpoints`.
#[derive(Debug)]
pub(crate) struct WrittenEndpoint {
    pub(crate) at: FieldPath,
    pub(crate) addresses: Vec<Text>,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    pub(crate) hostname: Option<Text>,
    pub(crate) zone: Option<Text>,
    pub(crate) target: Option<TargetRef>,
}

/// `targetRef`: the resource behind the endpoint.
#[derive(Debug)]
pub(crate) struct TargetRef {
    pub(crate) kind: Option<Text>,
    pub(crate) namespace: Option<Text>,
    pub(crate) name: Option<Text>,
}

impl EndpointSlice {
    /// Reads its fields.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        Self {
            address_type: document.text("addressType"),
            subset: Subset {
                ports: document.list("ports", Port::read),
                endpoints: document.list("endpoints", WrittenEndpoint::read),
            },
        }
    }
}

impl Port {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let port = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            number: fields.integer("port"),
            protocol: fields.text("protocol"),
        };
        // The Service declares the protocol.
        fields.ignore(&["appProtocol"]);
        fields.finish();
        Some(port)
    }
}

impl WrittenEndpoint {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let mut conditions = fields.inner("conditions");
        let mut condition = |name| Some(conditions.as_mut()?.boolean(name)?.value);
        let (ready, serving, terminating) = (
            condition("ready"),
            condition("serving"),
            condition("terminating"),
        );
        if let Some(conditions) = conditions {
            conditions.finish();
        }
        let endpoint = Self {
            at: cursor.at.clone(),
            addresses: fields.texts("addresses"),
            ready,
            serving,
            terminating,
            hostname: fields.text("hostname"),
            zone: fields.text("zone"),
            target: fields.inner("targetRef").map(TargetRef::read),
        };
        // Hints about callers are ignored; `zone` gives the locality.
        fields.ignore(&["deprecatedTopology", "hints", "nodeName"]);
        fields.finish();
        Some(endpoint)
    }

    /// One of an Endpoints' `addresses`, or of those that are not ready.
    fn read_address(cursor: &Cursor<'_>, ready: bool) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let endpoint = Self {
            at: cursor.at.clone(),
            addresses: fields.text("ip").into_iter().collect(),
            ready: Some(ready),
            serving: None,
            terminating: None,
            hostname: fields.text("hostname"),
            zone: None,
            target: fields.inner("targetRef").map(TargetRef::read),
        };
        fields.ignore(&["nodeName"]);
        fields.finish();
        Some(endpoint)
    }
}

impl TargetRef {
    fn read(mut fields: Fields<'_>) -> Self {
        let target = Self {
            kind: fields.text("kind"),
            namespace: fields.text("namespace"),
            name: fields.text("name"),
        };
        fields.ignore(&["apiVersion", "fieldPath", "resourceVersion", "uid"]);
        fields.finish();
        target
    }
}

/// `subsets` of an Endpoints.
pub(crate) fn subsets(document: &mut Fields<'_>) -> Vec<Subset> {
    document.list("subsets", |cursor| {
        let mut fields = cursor.fields()?;
        let mut endpoints =
            fields.list("addresses", |one| WrittenEndpoint::read_address(one, true));
        endpoints.extend(fields.list("notReadyAddresses", |one| {
            WrittenEndpoint::read_address(one, false)
        }));
        let ports = fields.list("ports", Port::read);
        fields.finish();
        Some(Subset { ports, endpoints })
    })
}
