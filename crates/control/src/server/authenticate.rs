//! Who calls for discovery: required over TLS, optional on the plaintext port (where a caller that shows nothing gets
//! what is public, and one that shows something wrong gets nothing).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tonic::{Request, Status as Refusal};
use voile_identity::authenticator::peer_certificates;
use voile_identity::{Authenticator, MeshAuthenticator};

use crate::snapshot::Caller;
use crate::status::Status;

/// An interceptor that lets only proven callers pass.
pub(super) fn required(
    authenticator: Arc<MeshAuthenticator>,
    status: Arc<Status>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Refusal> + Clone + Send + Sync + 'static {
    move |mut request| {
        let peer = peer_certificates(&request);
        let caller = authenticator
            .authenticate(request.metadata(), &peer, SystemTime::now())
            .inspect_err(|refusal| {
                status.refused_callers.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(peer = ?request.remote_addr(), "caller refused: {}", refusal.message());
            })?;
        request.extensions_mut().insert(Caller::Known(caller));
        Ok(request)
    }
}

/// An interceptor that lets callers without any proof pass as anonymous.
pub(super) fn optional(
    authenticator: Arc<MeshAuthenticator>,
    status: Arc<Status>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Refusal> + Clone + Send + Sync + 'static {
    let required = required(authenticator, status);
    move |mut request| {
        if request.metadata().contains_key("authorization") {
            return required(request);
        }
        request.extensions_mut().insert(Caller::Anonymous);
        Ok(request)
    }
}
