//! Pods. Most of a Pod's specification means nothing on one machine; those fields are known by name, so
//! that a folder written for Kubernetes passes and a slip of the pen does not.

use super::Text;
use super::header::Metadata;
use super::probe::Probe;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a Pod or of a template.
#[derive(Debug, Default)]
pub(crate) struct PodSpec {
    pub(crate) service_account: Option<Text>,
    pub(crate) containers: Vec<Container>,
    /// Names of `initContainers`.
    pub(crate) init_containers: Vec<Text>,
    pub(crate) host_network: bool,
    pub(crate) termination_grace_seconds: Option<SpannedValue<i64>>,
    pub(crate) restart_policy: Option<Text>,
    pub(crate) node: Option<Text>,
    pub(crate) security: SecurityContext,
}

/// `securityContext` of a Pod or of a container: user and privileges of the application.
#[derive(Debug, Default)]
pub(crate) struct SecurityContext {
    pub(crate) user: Option<SpannedValue<i64>>,
    pub(crate) group: Option<SpannedValue<i64>>,
    pub(crate) added_capabilities: Vec<Text>,
    pub(crate) privileged: bool,
}

/// `status` of a Pod.
#[derive(Debug, Default)]
pub(crate) struct PodStatus {
    pub(crate) phase: Option<Text>,
    pub(crate) pod_ip: Option<Text>,
    pub(crate) pod_ips: Vec<Text>,
    /// Status of the condition `Ready`.
    pub(crate) ready: Option<bool>,
}

/// One of `containers`.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) image: Option<Text>,
    pub(crate) command: Vec<Text>,
    pub(crate) args: Vec<Text>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) env_from: Vec<EnvFrom>,
    pub(crate) working_dir: Option<Text>,
    pub(crate) ports: Vec<ContainerPort>,
    pub(crate) startup_probe: Option<Probe>,
    pub(crate) readiness_probe: Option<Probe>,
    pub(crate) liveness_probe: Option<Probe>,
    pub(crate) security: SecurityContext,
}

/// One of `env`.
#[derive(Debug)]
pub(crate) struct EnvVar {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) value: Option<Text>,
    pub(crate) field: Option<Text>,
    pub(crate) config_map_key: Option<KeyRef>,
    pub(crate) secret_key: Option<KeyRef>,
}

/// One of `envFrom`.
#[derive(Debug)]
pub(crate) struct EnvFrom {
    pub(crate) at: FieldPath,
    pub(crate) prefix: Option<Text>,
    pub(crate) config_map: Option<(Option<Text>, bool)>,
    pub(crate) secret: Option<(Option<Text>, bool)>,
}

/// A key of another resource.
#[derive(Debug)]
pub(crate) struct KeyRef {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) key: Option<Text>,
    pub(crate) optional: bool,
}

/// One of `ports` of a container.
#[derive(Debug)]
pub(crate) struct ContainerPort {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) number: Option<SpannedValue<i64>>,
    pub(crate) protocol: Option<Text>,
}

/// A Pod template.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) at: FieldPath,
    pub(crate) metadata: Metadata,
    pub(crate) spec: PodSpec,
}

const IGNORED_IN_POD: [&str; 32] = [
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "tolerations",
    "topologySpreadConstraints",
];

const IGNORED_IN_CONTAINER: [&str; 10] = [
    "imagePullPolicy",
    "lifecycle",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
];

impl PodSpec {
    /// Reads `spec`.
    pub(crate) fn read(parent: &mut Fields<'_>) -> Self {
        let Some(mut spec) = parent.inner("spec") else {
            return Self::default();
        };
        let pod = Self {
            service_account: spec.text("serviceAccountName"),
            containers: spec.list("containers", Container::read),
            init_containers: spec.list("initContainers", |one| one.fields()?.text("name")),
            host_network: spec.boolean("hostNetwork").is_some_and(|one| one.value),
            termination_grace_seconds: spec.integer("terminationGracePeriodSeconds"),
            restart_policy: spec.text("restartPolicy"),
            node: spec.text("nodeName"),
            security: SecurityContext::read(&mut spec),
        };
        spec.ignore(&IGNORED_IN_POD);
        spec.ignore(&["volumes"]);
        spec.finish();
        pod
    }
}

impl Template {
    /// Reads `template`.
    pub(crate) fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut template = parent.inner("template")?;
        let read = Self {
            at: template.at().clone(),
            metadata: Metadata::read(&mut template),
            spec: PodSpec::read(&mut template),
        };
        template.finish();
        Some(read)
    }
}

impl PodStatus {
    /// Reads `status`; other fields that a cluster writes there are ignored.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        let Some(mut status) = document.inner("status") else {
            return Self::default();
        };
        Self {
            phase: status.text("phase"),
            pod_ip: status.text("podIP"),
            pod_ips: status.list("podIPs", |cursor| cursor.fields()?.text("ip")),
            ready: status
                .list("conditions", |cursor| {
                    let mut condition = cursor.fields()?;
                    let is_ready = &*condition.text("type")?.value == "Ready";
                    let status = condition.text("status")?;
                    is_ready.then(|| &*status.value == "True")
                })
                .into_iter()
                .next(),
        }
    }
}

impl Container {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let container = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            image: fields.text("image"),
            command: fields.texts("command"),
            args: fields.texts("args"),
            env: fields.list("env", EnvVar::read),
            env_from: fields.list("envFrom", EnvFrom::read),
            working_dir: fields.text("workingDir"),
            ports: fields.list("ports", ContainerPort::read),
            startup_probe: Probe::read(&mut fields, "startupProbe"),
            readiness_probe: Probe::read(&mut fields, "readinessProbe"),
            liveness_probe: Probe::read(&mut fields, "livenessProbe"),
            security: SecurityContext::read(&mut fields),
        };
        fields.ignore(&IGNORED_IN_CONTAINER);
        fields.ignore(&["volumeDevices", "volumeMounts"]);
        fields.finish();
        Some(container)
    }
}

impl SecurityContext {
    /// Its other fields are a container runtime's business.
    fn read(parent: &mut Fields<'_>) -> Self {
        let Some(mut fields) = parent.inner("securityContext") else {
            return Self::default();
        };
        let capabilities = fields.inner("capabilities");
        Self {
            user: fields.integer("runAsUser"),
            group: fields.integer("runAsGroup"),
            privileged: fields.boolean("privileged").is_some_and(|is| is.value),
            added_capabilities: capabilities.map_or_else(Vec::new, |mut all| all.texts("add")),
        }
    }
}

impl EnvVar {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let (name, value) = (fields.text("name"), fields.text("value"));
        let mut env = Self {
            at: cursor.at.clone(),
            name,
            value,
            field: None,
            config_map_key: None,
            secret_key: None,
        };
        if let Some(mut from) = fields.inner("valueFrom") {
            if let Some(mut field) = from.inner("fieldRef") {
                env.field = field.text("fieldPath");
                field.ignore(&["apiVersion"]);
                field.finish();
            }
            env.config_map_key = KeyRef::read(&mut from, "configMapKeyRef");
            env.secret_key = KeyRef::read(&mut from, "secretKeyRef");
            from.without_effect(&[
                ("resourceFieldRef", "the variable is empty"),
                ("fileKeyRef", "the variable is empty"),
            ]);
            from.finish();
        }
        fields.finish();
        Some(env)
    }
}

impl EnvFrom {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let reference = |fields: &mut Fields<'_>, field: &'static str| {
            let mut inner = fields.inner(field)?;
            let name = inner.text("name");
            let optional = inner.boolean("optional").is_some_and(|o| o.value);
            inner.finish();
            Some((name, optional))
        };
        let from = Self {
            at: cursor.at.clone(),
            prefix: fields.text("prefix"),
            config_map: reference(&mut fields, "configMapRef"),
            secret: reference(&mut fields, "secretRef"),
        };
        fields.finish();
        Some(from)
    }
}

impl KeyRef {
    fn read(parent: &mut Fields<'_>, field: &'static str) -> Option<Self> {
        let mut fields = parent.inner(field)?;
        let reference = Self {
            at: fields.at().clone(),
            name: fields.text("name"),
            key: fields.text("key"),
            optional: fields.boolean("optional").is_some_and(|o| o.value),
        };
        fields.finish();
        Some(reference)
    }
}

impl ContainerPort {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let port = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            number: fields.integer("containerPort"),
            protocol: fields.text("protocol"),
        };
        fields.ignore(&["hostIP", "hostPort"]);
        fields.finish();
        Some(port)
    }
}
