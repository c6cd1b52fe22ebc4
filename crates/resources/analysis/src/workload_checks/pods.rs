//! Checks Pods and Deployments with a proxy: applications that run as the proxy's user, and proxies that are never
//! injected.

use voile_model::Diagnostic;
use voile_model::mesh::PodTemplate;

use crate::codes;
use crate::subject::Subject;

/// User of Istio's proxies. Its connections are not captured, so that the proxy's own connections leave.
const PROXY_USER: u32 = 1337;
/// The container that the injector makes the proxy of.
const PROXY_CONTAINER: &str = "istio-proxy";
/// The image that the injector replaces by the proxy's.
const INJECTED_IMAGE: &str = "auto";

/// Checks all Pods and Deployments.
pub(crate) fn check(subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for subject in subjects {
        if let Some(template) = subject.template {
            user(subject, template, found);
            image(subject, template, found);
        }
    }
}

fn user(subject: &Subject<'_>, template: &PodTemplate, found: &mut Vec<Diagnostic>) {
    let mut containers = template.containers.iter();
    let Some(container) = containers
        .find(|one| &*one.name != PROXY_CONTAINER && one.security.user == Some(PROXY_USER))
    else {
        return;
    };
    let said = format!(
        "container {} of {} runs as user {PROXY_USER}, which is the proxy's: in Istio its connections bypass the proxy",
        container.name, subject.name
    );
    let source = container.source.clone();
    found.push(
        Diagnostic::warning(codes::PROXY_USER, source, said)
            .field("securityContext.runAsUser")
            .help("run it as another user"),
    );
}

fn image(subject: &Subject<'_>, template: &PodTemplate, found: &mut Vec<Diagnostic>) {
    let mut containers = template.containers.iter();
    let waiting = containers
        .find(|one| &*one.name == PROXY_CONTAINER && one.image.as_deref() == Some(INJECTED_IMAGE));
    let Some(container) = waiting.filter(|_| !subject.has_sidecar) else {
        return;
    };
    let said = format!(
        "container {PROXY_CONTAINER} of {} has the image `{INJECTED_IMAGE}`, but the Pod has no sidecar injection",
        subject.name
    );
    let help = "label the Pods sidecar.istio.io/inject: \"true\", or their namespace istio-injection: enabled";
    let source = container.source.clone();
    let diagnostic = Diagnostic::warning(codes::PROXY_NOT_INJECTED, source, said);
    found.push(diagnostic.field("image").help(help));
}
