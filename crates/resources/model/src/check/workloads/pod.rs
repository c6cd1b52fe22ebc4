//! Reads and checks Pods and the templates of Pods. Most of a Pod's specification means nothing on one machine; those
//! fields are known by name, so that a folder written for Kubernetes passes and a slip of the pen does not.

use std::sync::Arc;
use std::time::Duration;

use crate::check::probe::no_nul;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text};
use crate::mesh::workload::{PROXY_CONTAINER, TUNNEL};
use crate::mesh::{
    Container, ContainerPort, ControllerKind, EnvFrom, EnvValue, Pod, PodPhase, PodTemplate,
    Restart, SecurityContext, WorkloadType,
};
use crate::names::Labels;
use crate::text::clip;

/// Label or annotation that says whether a Pod has a sidecar.
pub(in crate::check) const INJECT: &str = "sidecar.istio.io/inject";
/// Annotation that says whether a node proxy takes the Pod's connections; Istio's CNI and our node agent write it.
pub const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Label of a Pod or namespace that selects the proxy for its connections.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Annotation that says whether probes go round the sidecar.
const REWRITE_PROBES: &str = "sidecar.istio.io/rewriteAppHTTPProbers";

/// Returns true if a Pod asks for a node proxy: by the value of its own label [`DATAPLANE_MODE`] or, without one, by its namespace's.
#[must_use]
pub fn asks_for_node_proxy(pod: Option<&str>, namespace: Option<&str>) -> bool {
    pod.or(namespace) == Some("ambient")
}

/// Fields of a Pod that mean nothing on one machine.
const IGNORED_IN_POD: [&str; 33] = [
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
    "volumes",
];

/// Likewise, of a container.
const IGNORED_IN_CONTAINER: [&str; 12] = [
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
    "volumeDevices",
    "volumeMounts",
];

const PHASES: [(&str, PodPhase); 5] = [
    ("Pending", PodPhase::Pending),
    ("Running", PodPhase::Running),
    ("Succeeded", PodPhase::Succeeded),
    ("Failed", PodPhase::Failed),
    ("Unknown", PodPhase::Unknown),
];

pub(in crate::check) fn pod(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Pod {
    let owner = owner(&meta);
    let mut template = template(None, (meta.labels, meta.annotations), fields, &meta.at);
    template.injected = template.injected.filter(|_| meta.live);
    // Other fields that a cluster writes here are ignored.
    let mut status = fields.inner_or_empty("status");
    let phase = status.one_of("phase", &PHASES);
    let mut ips: Vec<Text> = status.text("podIP").into_iter().collect();
    ips.extend(status.list("podIPs", |one| one.fields()?.text("ip")));
    let ready = status.list("conditions", |one| {
        let mut condition = one.fields()?;
        let is_ready = &*condition.text("type")?.value == "Ready";
        let status = condition.text("status")?;
        is_ready.then(|| &*status.value == "True")
    });
    Pod {
        name: meta.name,
        source: meta.source,
        template,
        addresses: values::unicast_ips(&ips, report),
        phase: phase.unwrap_or(PodPhase::Running),
        ready: ready.first() != Some(&false) && !meta.removed,
        owner,
    }
}

/// The owner of a Pod: a Deployment behind its ReplicaSet, a CronJob behind its Job, or the named owner.
fn owner(meta: &Meta) -> Option<(WorkloadType, Arc<str>)> {
    let hash = meta.labels.get("pod-template-hash");
    let strip_hash = |name: &str| {
        hash.and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-').map(Arc::from))
    };
    for (kind, name) in &meta.owners {
        return Some(match &**kind {
            "Deployment" => (WorkloadType::Deployment, name.clone()),
            "ReplicaSet" => (
                WorkloadType::Deployment,
                strip_hash(name).unwrap_or_else(|| name.clone()),
            ),
            "CronJob" => (WorkloadType::CronJob, name.clone()),
            "Job" => match scheduled_by(name) {
                Some(cron_job) => (WorkloadType::CronJob, cron_job.into()),
                None => (WorkloadType::Job, name.clone()),
            },
            _ => continue,
        });
    }
    // Without owners, a Deployment's Pod is still known by its name: DEPLOYMENT-HASH-SUFFIX.
    let hash = hash?;
    let (before, _) = meta.name.name.rsplit_once(&format!("-{hash}-"))?;
    Some((WorkloadType::Deployment, before.into()))
}

/// A CronJob names its Jobs after itself and the minute they were due.
fn scheduled_by(job: &str) -> Option<&str> {
    const MINUTE_DIGITS: usize = 8; // minutes since 1970, from 2019 on
    let (cron_job, minute) = job.rsplit_once('-')?;
    (minute.len() >= MINUTE_DIGITS && minute.bytes().all(|b| b.is_ascii_digit()))
        .then_some(cron_job)
}

/// Reads `spec` of a Pod, or of the template of a controller.
pub(in crate::check) fn template(
    controller: Option<ControllerKind>,
    (labels, annotations): (Labels, Labels),
    parent: &mut Fields<'_>,
    at: &FieldPath,
) -> PodTemplate {
    let report = parent.report();
    check_words(&labels, &annotations, at, report);
    let mut spec = parent.inner_or_empty("spec");
    let spec_at = FieldPath {
        place: at.place,
        path: spec.at().path.clone(),
    };
    let account = spec.text("serviceAccountName");
    let security = security_context(&mut spec);
    let (mut any, mut names) = (false, Vec::new());
    let containers = spec.mappings("containers", |fields| {
        any = true;
        container(fields, &security.0, &mut names)
    });
    report.required(any.then_some(()), &spec_at, "containers");
    values::unique_names("container", &names, report);
    let init = spec.list("initContainers", |one| one.fields()?.text("name"));
    let host_network = spec.flag("hostNetwork");
    let grace = spec.integer("terminationGracePeriodSeconds");
    let restart = restart(spec.text("restartPolicy").as_ref(), controller, at, report);
    let node = spec.value("nodeName");
    spec.ignore(&IGNORED_IN_POD);
    spec.finish();
    let mut names = names.iter().chain(&init);
    PodTemplate {
        restart,
        labels,
        service_account: values::service_account(account.as_ref(), report),
        service_account_source: account.as_ref().map(|text| report.source(&text.at)),
        has_sidecar: false, // known when the namespace is, at assembly
        // One of the containers is the sidecar, or the proxy of a gateway.
        injected: match controller {
            None => Some(names.any(|name| &*name.value == PROXY_CONTAINER)),
            Some(_) => None,
        },
        host_network,
        ambient: false,          // likewise
        asks_for_ambient: false, // likewise
        node: node.unwrap_or_default(),
        rewrites_probes: annotations.get(REWRITE_PROBES) != Some("false"),
        topology: crate::check::topology::topology(&annotations, at, report),
        capture: crate::check::capture::scope(&annotations, at, report),
        annotations,
        containers,
        termination_grace: termination_grace(grace.as_ref(), report),
    }
}

fn termination_grace(seconds: Option<&SpannedValue<i64>>, report: &Report) -> Duration {
    const DEFAULT_GRACE: Duration = Duration::from_secs(30); // Kubernetes'
    let Some(seconds) = seconds else {
        return DEFAULT_GRACE;
    };
    let value = u32::try_from(seconds.value).ok();
    if value.is_none() {
        let message = format!("{} seconds are not allowed", seconds.value);
        report.error(codes::BAD_VALUE, &seconds.at, message, "0 or more");
    }
    value.map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(seconds.into()))
}

/// `restartPolicy`, as far as a controller allows it.
fn restart(
    text: Option<&Text>,
    controller: Option<ControllerKind>,
    at: &FieldPath,
    report: &Report,
) -> Restart {
    let policies = [
        ("Always", Restart::Always),
        ("OnFailure", Restart::OnFailure),
        ("Never", Restart::Never),
    ];
    let said = text.map_or(Some(Restart::Always), |text| report.one_of(text, &policies));
    let always = said.map(|said| said == Restart::Always);
    match (controller, always, text) {
        (Some(ControllerKind::Job { .. }), Some(true), _) => {
            let at = text.map_or(at, |text| &text.at);
            let message = "a Job's Pods cannot have restartPolicy Always, which is the default";
            report.error(codes::BAD_VALUE, at, message, "OnFailure or Never");
        }
        (Some(ControllerKind::Job { .. }) | None, ..) => {}
        (Some(kind), Some(false), Some(text)) => {
            let message = format!("a {kind}'s Pods cannot have restartPolicy {}", text.value);
            let help = "Always; a Pod or a Job may have the others";
            report.error(codes::BAD_VALUE, &text.at, message, help);
        }
        (Some(_), ..) => {}
    }
    said.unwrap_or(Restart::Always)
}

/// A word that decides about encryption, or whether it is in the way, must be one that is known.
fn check_words(labels: &Labels, annotations: &Labels, at: &FieldPath, report: &Report) {
    const BOOLEAN: &[&str] = &["true", "false"];
    for (key, value, known) in [
        (INJECT, labels.get(INJECT), BOOLEAN),
        (INJECT, annotations.get(INJECT), BOOLEAN),
        (REWRITE_PROBES, annotations.get(REWRITE_PROBES), BOOLEAN),
        (
            REDIRECTION,
            annotations.get(REDIRECTION),
            &["enabled", "disabled", "pending"],
        ),
        (
            DATAPLANE_MODE,
            labels.get(DATAPLANE_MODE),
            &["ambient", "none"],
        ),
        (TUNNEL.0, labels.get(TUNNEL.0), &[TUNNEL.1]),
    ] {
        if let Some(value) = value
            && !known.contains(&value)
        {
            let value = clip(value);
            let at = FieldPath {
                place: at.place,
                path: values::join(&at.path, &format!("metadata[{key}]")),
            };
            report.error(
                codes::BAD_VALUE,
                &at,
                format!("`{value}` is not allowed for {key}"),
                format!("write \"{}\"", known.join("\" or \"")),
            );
        }
    }
}

/// User and group of a `securityContext`.
type Ids = [Option<SpannedValue<i64>>; 2];

/// Reads `securityContext` of a Pod or of a container: user, group and privileges of the application. Its other fields are
/// a container runtime's business.
fn security_context(parent: &mut Fields<'_>) -> (Ids, Vec<Arc<str>>) {
    let mut fields = parent.inner_or_empty("securityContext");
    let ids = ["runAsUser", "runAsGroup"].map(|name| fields.integer(name));
    let privileged = fields.flag("privileged").then(|| "privileged".into());
    let mut privileges = fields.inner_or_empty("capabilities").values("add");
    privileges.extend(privileged);
    (ids, privileges)
}

/// Users and groups are numbers; a container's own are stronger than its Pod's.
fn security(fields: &mut Fields<'_>, pod: &Ids) -> SecurityContext {
    let (own, privileges) = security_context(fields);
    let number = |index: usize| {
        let number = own[index].as_ref().or(pod[index].as_ref())?;
        let value = u32::try_from(number.value).ok();
        if value.is_none() {
            let message = format!("{} is no user or group", number.value);
            let report = fields.report();
            report.error(codes::BAD_VALUE, &number.at, message, "0 or more");
        }
        value
    };
    SecurityContext {
        user: number(0),
        group: number(1),
        privileges,
    }
}

fn env_from(fields: &mut Fields<'_>) -> Option<EnvFrom> {
    let report = fields.report();
    let prefix = fields.value("prefix");
    let reference = |inner: &mut Fields<'_>| (inner.value("name"), inner.flag("optional"));
    let config_map = fields.mapping("configMapRef", reference);
    let ((name, optional), secret) = match (config_map, fields.mapping("secretRef", reference)) {
        (Some(reference), None) => (reference, false),
        (None, Some(reference)) => (reference, true),
        _ => {
            let message = "an envFrom entry has exactly one source";
            let help = "keep `configMapRef` or `secretRef`";
            report.error(codes::CONTRADICTION, fields.at(), message, help);
            return None;
        }
    };
    Some(EnvFrom {
        prefix: prefix.unwrap_or_default(),
        secret,
        name: report.required(name, fields.at(), "name")?,
        optional,
    })
}

fn container(fields: &mut Fields<'_>, pod: &Ids, names: &mut Vec<Text>) -> Option<Container> {
    let report = fields.report();
    let values_of = |texts: Vec<Text>| texts.into_iter().map(|text| text.value).collect();
    let name = fields.text("name");
    names.extend(name.clone());
    let name = report.required(name, fields.at(), "name");
    let name = name.and_then(|name| values::label_name(&name, "the name of a container", report));
    let image = fields.value("image");
    let mut command = fields.texts("command");
    let in_command = command.len();
    command.extend(fields.texts("args"));
    no_nul(&command, report);
    let args = command.split_off(in_command);
    let env = fields.mappings("env", env);
    let env_from = fields.mappings("envFrom", env_from);
    let working_dir = fields.value("workingDir");
    let mut port_names = Vec::new();
    let ports = fields.mappings("ports", |port| container_port(port, &mut port_names));
    // Kubernetes takes a name in several containers, and the first of them for it.
    values::unique_names("container port", &port_names, report);
    let probes = crate::check::probe::probes(fields, &ports);
    let security = security(fields, pod);
    fields.ignore(&IGNORED_IN_CONTAINER);
    Some(Container {
        name: name?,
        image,
        command: values_of(command),
        args: values_of(args),
        env_from,
        env,
        working_dir,
        ports,
        probes,
        security,
        source: report.source(fields.at()),
    })
}

fn container_port(fields: &mut Fields<'_>, names: &mut Vec<Text>) -> Option<ContainerPort> {
    let report = fields.report();
    let name = fields.text("name");
    names.extend(name.clone());
    let number = report.required(
        fields.integer("containerPort"),
        fields.at(),
        "containerPort",
    );
    fields.one_of("protocol", &[("TCP", ()), ("UDP", ()), ("SCTP", ())]);
    fields.ignore(&["hostIP", "hostPort"]);
    let number = number?;
    Some(ContainerPort {
        name: name.and_then(|name| values::port_name(&name, report)),
        number: report.port(&number)?,
        source: report.source(fields.at()),
    })
}

fn env(fields: &mut Fields<'_>) -> Option<(Arc<str>, EnvValue)> {
    let report = fields.report();
    let name = report.required(fields.text("name"), fields.at(), "name");
    let help = "a name has no `=`, no NUL, and is not empty";
    let valid = |text: &str| (!text.is_empty() && !text.contains(['=', '\0'])).then(|| text.into());
    let name = name.and_then(|name| report.parsed(&name, "a variable", valid, help));
    let value = fields.value("value").map(EnvValue::Text);
    let from = fields.mapping("valueFrom", value_from);
    let mut values = value
        .into_iter()
        .chain(from.into_iter().flatten().flatten());
    let value = values.next();
    if values.next().is_some() {
        let message = "a variable has exactly one value";
        let help = "keep `value` or one of `valueFrom`";
        report.error(codes::CONTRADICTION, fields.at(), message, help);
    }
    Some((name?, value.unwrap_or_else(|| EnvValue::Text("".into()))))
}

fn value_from(from: &mut Fields<'_>) -> [Option<EnvValue>; 3] {
    let report = from.report();
    let field = from.mapping("fieldRef", |field| {
        let path = field.text("fieldPath");
        field.ignore(&["apiVersion"]);
        path.map(|path| EnvValue::Field(pod_field(path, report)))
    });
    let key = |reference: &mut Fields<'_>| {
        let [name, key] = ["name", "key"].map(|part| {
            let value = reference.value(part);
            report
                .required(value, reference.at(), part)
                .unwrap_or_default()
        });
        (name, key, reference.flag("optional"))
    };
    let config_map = from.mapping("configMapKeyRef", key);
    let secret = from.mapping("secretKeyRef", key);
    from.without_effect(&[
        ("resourceFieldRef", "the variable is empty"),
        ("fileKeyRef", "the variable is empty"),
    ]);
    [
        field.flatten(),
        config_map.map(|(name, key, optional)| EnvValue::ConfigMapKey {
            name,
            key,
            optional,
        }),
        secret.map(|(name, key, optional)| EnvValue::SecretKey {
            name,
            key,
            optional,
        }),
    ]
}

fn pod_field(field: Text, report: &Report) -> Arc<str> {
    const FIELDS: [&str; 8] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.podIP",
        "status.podIPs",
    ];
    let text = &*field.value;
    let keyed = |prefix: &str| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with("['") && rest.ends_with("']"))
    };
    if !FIELDS.contains(&text) && !keyed("metadata.labels") && !keyed("metadata.annotations") {
        let help = crate::text::suggest(text, FIELDS);
        report.bad(&field, " as a field of a Pod", help);
    }
    field.value
}
