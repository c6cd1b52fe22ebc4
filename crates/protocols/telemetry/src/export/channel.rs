//! tonic over connections that a [`CollectorDialer`] makes.

use std::sync::Arc;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use voile_model::with_causes;

use super::CollectorDialer;

/// Opens an HTTP/2 connection.
pub(super) async fn open(dial: &Arc<dyn CollectorDialer>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", dial.authority()))
        .map_err(|error| error.to_string())?
        .tcp_nodelay(true);
    let dial = Arc::clone(dial);
    let connecting = endpoint.connect_with_connector(tower::service_fn(move |_: Uri| {
        let dialing = dial.dial();
        async { dialing.await.map(TokioIo::new) }
    }));
    match tokio::time::timeout(super::CALL_TIMEOUT, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(with_causes(&error)),
        Err(_) => Err(format!("no answer in {:?}", super::CALL_TIMEOUT)),
    }
}
