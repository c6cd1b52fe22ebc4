//! Redirects: the `Location` of the answer, by Istio's and by Gateway API's rules on schemes and ports.

use super::matching::RouteInput;
use super::rewrite::PathRewrite;

/// Statuses of a redirect.
pub const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// Which port a redirect names. One that the scheme implies is never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectPort {
    /// The one that the request named, unless it was its scheme's own and the scheme changes; none if the host is another
    /// one. Istio's and Envoy's default.
    #[default]
    Request,
    /// The listener's: Istio's `FROM_REQUEST_PORT`, and Gateway API's rule where no scheme is said.
    Listener,
    /// The one that the scheme implies: Gateway API's rule where a scheme is said.
    Scheme,
    /// This.
    Exact(u16),
}

/// Target of a redirect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redirect {
    /// `http` or `https`; the request's if none is said.
    pub scheme: Option<String>,
    /// A host, or with Istio an authority; the request's if none is said.
    pub host: Option<String>,
    /// The port.
    pub port: RedirectPort,
    /// The path; the request's if none is said.
    pub path: Option<PathRewrite>,
}

fn implied(scheme: &[u8]) -> Option<u16> {
    match scheme {
        b"http" => Some(80),
        b"https" => Some(443),
        _ => None,
    }
}

/// A host and, if one is said, its port; an IPv6 address stays in its brackets.
fn parted(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let end = authority
        .iter()
        .rposition(|byte| *byte == b']')
        .unwrap_or(0);
    match authority[end..].iter().position(|byte| *byte == b':') {
        Some(colon) => (
            &authority[..end + colon],
            Some(&authority[end + colon + 1..]),
        ),
        None => (authority, None),
    }
}

impl Redirect {
    /// Returns the location; `None` if the path rewrite gives no path. `listener` is the port that clients know.
    #[must_use]
    pub fn location(
        &self,
        request: &(impl RouteInput + ?Sized),
        matched: Option<usize>,
        listener: u16,
    ) -> Option<Vec<u8>> {
        let scheme = self
            .scheme
            .as_ref()
            .map_or(request.scheme(), |scheme| scheme.as_bytes());
        let mut out = Vec::with_capacity(64 + request.path().len() + request.query().len());
        out.extend_from_slice(scheme);
        out.extend_from_slice(b"://");
        self.write_authority(request, scheme, listener, &mut out);
        let begin = out.len();
        match &self.path {
            None => out.extend_from_slice(request.path()),
            Some(path) if path.apply(request.path(), matched, &mut out) => {}
            Some(_) => return None,
        }
        // A path that brings a query of its own replaces the request's.
        if !request.query().is_empty() && !out[begin..].contains(&b'?') {
            out.push(b'?');
            out.extend_from_slice(request.query());
        }
        Some(out)
    }

    fn write_authority(
        &self,
        request: &(impl RouteInput + ?Sized),
        scheme: &[u8],
        listener: u16,
        out: &mut Vec<u8>,
    ) {
        let (asked, asked_port) = parted(request.authority());
        let (host, named) = match &self.host {
            Some(host) => parted(host.as_bytes()),
            None => (asked, None),
        };
        out.extend_from_slice(host);
        let number = match self.port {
            RedirectPort::Exact(port) => Some(port),
            RedirectPort::Listener => Some(listener),
            RedirectPort::Scheme => None,
            RedirectPort::Request => {
                let kept = match &self.host {
                    Some(_) => named,
                    None => asked_port.filter(|port| {
                        let own = implied(request.scheme()).map(|port| port.to_string());
                        scheme == request.scheme() || own.is_none_or(|own| own.as_bytes() != *port)
                    }),
                };
                if let Some(port) = kept {
                    out.push(b':');
                    out.extend_from_slice(port);
                }
                return;
            }
        };
        if let Some(port) = number.filter(|port| implied(scheme) != Some(*port)) {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
    }
}
