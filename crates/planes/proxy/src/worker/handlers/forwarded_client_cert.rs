//! `x-forwarded-client-cert`: facts about a client's certificate for the server. The worker decides the field's value when a
//! connection opens. The engines remove the received field, so that a server only sees a value that is written here again.

mod field;

use rustls::pki_types::CertificateDer;
use voile_identity::forwarded_certificate;
use voile_transport::TransportStream;
use voile_xds::wire::ForwardClientCertificate::{
    AlwaysForwardOnly, AppendForward, ForwardOnly, Sanitize, SanitizeSet,
};

use crate::http::HttpHead;
use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::policy::admission::ConnectionArrival;
use crate::worker::policy::request_changes::PlanChanges;
pub(in crate::worker) use field::FORWARDED_CERTIFICATE;
pub(crate) use field::Forwarded;

/// Notes the certificate facts of a new connection that its requests may forward; nothing if the mode
/// forwards none.
pub(in crate::worker) fn note(
    worker: &Worker,
    stream: &TransportStream,
    caller: &mut InboundCaller,
) {
    note_shown(worker, || stream.peer_certificates(), caller);
}

/// The same for certificates that were shown in another way.
pub(in crate::worker) fn note_shown<'c>(
    worker: &Worker,
    shown: impl FnOnce() -> &'c [CertificateDer<'static>],
    caller: &mut InboundCaller,
) {
    let (mode, details) = {
        let settings = worker.settings.borrow();
        (settings.forwards, settings.details)
    };
    if mode == Sanitize || !(can_show(caller) || mode == AlwaysForwardOnly) {
        return;
    }
    let chain = shown();
    let tells = !chain.is_empty() && matches!(mode, AppendForward | SanitizeSet);
    let own = tells.then(|| {
        let principal = worker.principal.borrow();
        let by = match caller.arrival.peer() {
            Some(_) => principal.as_str(),
            // The client showed another certificate than the mesh's.
            None => "",
        };
        forwarded_certificate(chain, by, details).into()
    });
    let noted = Forwarded {
        shown: !chain.is_empty(),
        own,
        details,
    };
    caller.tell(|told| told.forwarded = Some(noted));
}

/// Returns true if the connection uses TLS in which a client may show a certificate that is verified. A client behind a tunnel
/// showed it to the tunnel's end instead.
fn can_show(caller: &InboundCaller) -> bool {
    let verified = caller.told.as_ref().is_none_or(|told| !told.unverified);
    caller.suite.is_some() && verified && !matches!(caller.arrival, ConnectionArrival::Tunnel(_))
}

/// Returns true if the connection noted less than the present mode forwards. It closes when it is idle; the next connection
/// notes all.
pub(in crate::worker) fn is_stale(worker: &Worker, caller: &InboundCaller) -> bool {
    let settings = worker.settings.borrow();
    let noted = caller.forwarded();
    match settings.forwards {
        Sanitize => false,
        AlwaysForwardOnly => {
            noted.is_none() && !matches!(caller.arrival, ConnectionArrival::Tunnel(_))
        }
        ForwardOnly => noted.is_none() && can_show(caller),
        AppendForward | SanitizeSet => {
            let lacks = |noted: &Forwarded| noted.shown && noted.own_as(settings.details).is_none();
            noted.is_none_or(lacks) && can_show(caller)
        }
    }
}

impl Forwarded {
    /// Adds the field's present value to a request's changes. Values that are no longer wanted are not sent, and facts that the
    /// connection did not note are never guessed.
    pub(in crate::worker) fn write(
        &self,
        worker: &Worker,
        head: &HttpHead<'_>,
        changes: &mut PlanChanges,
    ) {
        let (came, own) = {
            let settings = worker.settings.borrow();
            self.goes_on(settings.forwards, settings.details)
        };
        let lines = head.headers().filter(|(name, _)| {
            let is_it = name.eq_ignore_ascii_case(FORWARDED_CERTIFICATE);
            came && is_it
        });
        let mut value: Vec<u8> = Vec::new();
        for part in lines.map(|(_, value)| value).chain(own) {
            if !value.is_empty() {
                value.push(b',');
            }
            value.extend_from_slice(part);
        }
        changes.leave_out(FORWARDED_CERTIFICATE);
        if !value.is_empty() {
            changes.add(FORWARDED_CERTIFICATE, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use voile_xds::wire::ClientCertificateDetails;

    use super::*;

    #[test]
    fn what_holds_now_decides_for_connections_that_were_noted_before() {
        let note = |shown, own: Option<&str>| Forwarded {
            shown,
            own: own.map(Into::into),
            details: ClientCertificateDetails::OF_SIDECARS,
        };
        // Notes of a client without certificate, of one whose facts were not wanted then, and of one with
        // facts.
        let notes = [note(false, None), note(true, None), note(true, Some("a"))];
        let a = Some(&b"a"[..]);
        let nothing = (false, None);
        for (mode, expected) in [
            (Sanitize, [nothing; 3]),
            (ForwardOnly, [nothing, (true, None), (true, None)]),
            (AppendForward, [nothing, nothing, (true, a)]),
            (SanitizeSet, [nothing, nothing, (false, a)]),
            (AlwaysForwardOnly, [(true, None); 3]),
        ] {
            let told = |details| [0, 1, 2].map(|index: usize| notes[index].goes_on(mode, details));
            let same = told(ClientCertificateDetails::OF_SIDECARS);
            assert_eq!(same, expected, "{mode:?}");
            // A value that was noted with other parts than the present ones is not sent.
            let others = told(ClientCertificateDetails::OF_GATEWAYS);
            assert!(others.iter().all(|(_, own)| own.is_none()), "{mode:?}");
        }
    }
}
