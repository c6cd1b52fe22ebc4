//! tonic over connections that a [`CollectorDialer`] makes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

use super::{CollectorDialer, CollectorStream};

/// Hands tonic the connections of a [`CollectorDialer`].
#[derive(Clone)]
pub struct Connector(Arc<dyn CollectorDialer>);

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn CollectorStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialing = self.0.dial();
        Box::pin(async move { dialing.await.map(TokioIo::new) })
    }
}

/// Opens an HTTP/2 connection.
pub(super) async fn open(dial: &Arc<dyn CollectorDialer>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", dial.authority()))
        .map_err(|error| error.to_string())?
        .tcp_nodelay(true);
    let connecting = endpoint.connect_with_connector(Connector(Arc::clone(dial)));
    match tokio::time::timeout(super::CALL_TIMEOUT, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer in {:?}", super::CALL_TIMEOUT)),
    }
}

/// An error with its causes: tonic's own text ("transport error") says nothing.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
