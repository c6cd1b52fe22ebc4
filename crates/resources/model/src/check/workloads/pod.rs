//! Checks of Pods and of the templates of Pods.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue};
use crate::mesh::workload::{PROXY_CONTAINER, TUNNEL};
use crate::mesh::{
    Container, ContainerPort, EnvFrom, EnvValue, Pod, PodPhase, PodTemplate, Restart,
    SecurityContext, WorkloadType,
};
use crate::names::Labels;
use crate::text::clip;
use crate::written::pod as written;

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

pub(in crate::check) fn pod(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<Pod> {
    let spec = written::PodSpec::read(fields);
    let status = written::PodStatus::read(fields);
    let phases = [
        ("Pending", PodPhase::Pending),
        ("Running", PodPhase::Running),
        ("Succeeded", PodPhase::Succeeded),
        ("Failed", PodPhase::Failed),
        ("Unknown", PodPhase::Unknown),
    ];
    let phase = status
        .phase
        .as_ref()
        .map_or(Some(PodPhase::Running), |text| report.one_of(text, &phases));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in status.pod_ip.iter().chain(&status.pod_ips) {
        if let Some(address) = values::unicast_ip(text, report)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    let owner = owner(&meta);
    let at = meta.at.clone();
    let ready = status.ready.unwrap_or(true) && !meta.removed;
    let live = meta.live;
    let template = template(meta.labels, meta.annotations, &spec, &at, report)?;
    Some(Pod {
        name: meta.name,
        source: meta.source,
        template: PodTemplate {
            injected: live.then(|| has_proxy(&spec)),
            ..template
        },
        addresses,
        phase: phase?,
        ready,
        owner,
    })
}

/// Returns true if one of the containers is the sidecar, or the proxy of a gateway.
fn has_proxy(spec: &written::PodSpec) -> bool {
    let containers = spec.containers.iter().filter_map(|one| one.name.as_ref());
    let mut names = containers.chain(&spec.init_containers);
    names.any(|name| &*name.value == PROXY_CONTAINER)
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

pub(in crate::check) fn template(
    labels: Labels,
    annotations: Labels,
    spec: &written::PodSpec,
    at: &FieldPath,
    report: &Report,
) -> Option<PodTemplate> {
    const DEFAULT_GRACE: Duration = Duration::from_secs(30); // Kubernetes'
    check_words(&labels, &annotations, at, report);
    let capture = crate::check::capture::scope(&annotations, at, report);
    let spec_at = FieldPath {
        place: at.place,
        path: values::join(&at.path, "spec"),
    };
    if spec.containers.is_empty() {
        report.required(None::<()>, &spec_at, "containers");
    }
    let grace = spec
        .termination_grace_seconds
        .as_ref()
        .map_or(Some(DEFAULT_GRACE), |seconds| {
            let value = u32::try_from(seconds.value)
                .ok()
                .map(|s| Duration::from_secs(s.into()));
            if value.is_none() {
                report.error(
                    codes::BAD_VALUE,
                    &seconds.at,
                    format!("{} seconds are not allowed", seconds.value),
                    "0 or more",
                );
            }
            value
        });
    let containers: Vec<Container> = spec
        .containers
        .iter()
        .filter_map(|c| container(c, &spec.security, report))
        .collect();
    names_once(&spec.containers, report);
    let policies = [
        ("Always", Restart::Always),
        ("OnFailure", Restart::OnFailure),
        ("Never", Restart::Never),
    ];
    let policy = spec.restart_policy.as_ref();
    let restart = policy.map_or(Some(Restart::Always), |text| report.one_of(text, &policies));
    Some(PodTemplate {
        restart: restart?,
        labels,
        service_account: values::service_account(spec.service_account.as_ref(), report),
        service_account_source: spec
            .service_account
            .as_ref()
            .map(|text| report.source(&text.at)),
        has_sidecar: false, // known when the namespace is, at assembly
        injected: None,
        host_network: spec.host_network,
        ambient: false,          // likewise
        asks_for_ambient: false, // likewise
        node: spec
            .node
            .as_ref()
            .map_or_else(|| "".into(), |text| text.value.clone()),
        rewrites_probes: annotations.get(REWRITE_PROBES) != Some("false"),
        topology: crate::check::topology::topology(&annotations, at, report),
        annotations,
        containers,
        termination_grace: grace?,
        capture,
    })
}

fn names_once(containers: &[written::Container], report: &Report) {
    let names = containers.iter().filter_map(|c| c.name.as_ref());
    values::unique(
        "container",
        names.map(|name| (name.value.clone(), &name.at)),
        report,
    );
    // Kubernetes takes a name in several containers, and the first of them for it.
    for container in containers {
        let names = container.ports.iter().filter_map(|port| port.name.as_ref());
        values::unique(
            "container port",
            names.map(|name| (name.value.clone(), &name.at)),
            report,
        );
    }
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

/// Users and groups are numbers; a container's own are stronger than its Pod's.
fn security(
    own: &written::SecurityContext,
    pod: &written::SecurityContext,
    report: &Report,
) -> SecurityContext {
    let number = |own: &Option<SpannedValue<i64>>, pod: &Option<SpannedValue<i64>>| {
        let number = own.as_ref().or(pod.as_ref())?;
        let value = u32::try_from(number.value).ok();
        if value.is_none() {
            let message = format!("{} is no user or group", number.value);
            report.error(codes::BAD_VALUE, &number.at, message, "0 or more");
        }
        value
    };
    let added = own.added_capabilities.iter();
    let privileged = own.privileged.then(|| "privileged".into());
    SecurityContext {
        user: number(&own.user, &pod.user),
        group: number(&own.group, &pod.group),
        privileges: added
            .map(|text| text.value.clone())
            .chain(privileged)
            .collect(),
    }
}

fn env_from(written: &written::EnvFrom, report: &Report) -> Option<EnvFrom> {
    let (reference, secret) = match (&written.config_map, &written.secret) {
        (Some(reference), None) => (reference, false),
        (None, Some(reference)) => (reference, true),
        _ => {
            let message = "an envFrom entry has exactly one source";
            let help = "keep `configMapRef` or `secretRef`";
            report.error(codes::CONTRADICTION, &written.at, message, help);
            return None;
        }
    };
    let prefix = written.prefix.as_ref();
    Some(EnvFrom {
        prefix: prefix.map_or_else(|| "".into(), |text| text.value.clone()),
        secret,
        name: report
            .required(reference.0.as_ref(), &written.at, "name")?
            .value
            .clone(),
        optional: reference.1,
    })
}

fn container(
    written: &written::Container,
    pod: &written::SecurityContext,
    report: &Report,
) -> Option<Container> {
    let values_of = |texts: &[crate::written::Text]| {
        texts
            .iter()
            .map(|text| text.value.clone())
            .collect::<Vec<_>>()
    };
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
    if let Some(text) = written
        .command
        .iter()
        .chain(&written.args)
        .find(|text| text.value.contains('\0'))
    {
        report.bad(text, " as an argument", "remove the NUL character");
    }
    let env = written
        .env
        .iter()
        .filter_map(|var| env(var, report))
        .collect();
    let ports = written.ports.iter().filter_map(|port| {
        let number = report.required(port.number.as_ref(), &port.at, "containerPort")?;
        if let Some(protocol) = &port.protocol {
            report.one_of(protocol, &[("TCP", ()), ("UDP", ()), ("SCTP", ())]);
        }
        let name = port
            .name
            .as_ref()
            .and_then(|name| values::port_name(name, report));
        Some(ContainerPort {
            name,
            number: report.port(number)?,
            source: report.source(&port.at),
        })
    });
    let ports: Vec<_> = ports.collect();
    let probes = crate::check::probe::probes(written, &ports, report);
    Some(Container {
        name: values::label_name(name, "the name of a container", report)?,
        image: written.image.as_ref().map(|image| image.value.clone()),
        command: values_of(&written.command),
        args: values_of(&written.args),
        env_from: written
            .env_from
            .iter()
            .filter_map(|from| env_from(from, report))
            .collect(),
        env,
        working_dir: written.working_dir.as_ref().map(|dir| dir.value.clone()),
        ports,
        probes,
        security: security(&written.security, pod, report),
        source: report.source(&written.at),
    })
}

fn env(written: &written::EnvVar, report: &Report) -> Option<(Arc<str>, EnvValue)> {
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
    let help = "a name has no `=`, no NUL, and is not empty";
    let valid = |text: &str| (!text.is_empty() && !text.contains(['=', '\0'])).then(|| text.into());
    let name = report.parsed(name, "a variable", valid, help)?;
    let said = [
        written.value.is_some(),
        written.field.is_some(),
        written.config_map_key.is_some(),
        written.secret_key.is_some(),
    ];
    if said.into_iter().filter(|said| *said).count() > 1 {
        report.error(
            codes::CONTRADICTION,
            &written.at,
            "a variable has exactly one value",
            "keep `value` or one of `valueFrom`",
        );
    }
    let key = |reference: &written::KeyRef| {
        let name = report
            .required(reference.name.as_ref(), &reference.at, "name")?
            .value
            .clone();
        let key = report
            .required(reference.key.as_ref(), &reference.at, "key")?
            .value
            .clone();
        Some((name, key, reference.optional))
    };
    let value = if let Some(field) = &written.field {
        EnvValue::Field(pod_field(field, report)?)
    } else if let Some(reference) = &written.config_map_key {
        let (name, key, optional) = key(reference)?;
        EnvValue::ConfigMapKey {
            name,
            key,
            optional,
        }
    } else if let Some(reference) = &written.secret_key {
        let (name, key, optional) = key(reference)?;
        EnvValue::SecretKey {
            name,
            key,
            optional,
        }
    } else {
        EnvValue::Text(
            written
                .value
                .as_ref()
                .map_or_else(|| "".into(), |text| text.value.clone()),
        )
    };
    Some((name, value))
}

fn pod_field(field: &crate::written::Text, report: &Report) -> Option<Arc<str>> {
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
    if FIELDS.contains(&text) || keyed("metadata.labels") || keyed("metadata.annotations") {
        return Some(field.value.clone());
    }
    report.bad(
        field,
        " as a field of a Pod",
        crate::text::suggest(text, FIELDS),
    );
    None
}
