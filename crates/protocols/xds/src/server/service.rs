//! Opens streams of the discovery service: selects one of its two methods, and checks that the caller's messages can be read.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::metadata::MetadataValue;

use super::budget::Accounts;
use super::conversation::Conversation;
use super::driver::{
    BoundedLife, Observer, ServedStream, Snapshots, StreamSession, StreamStart, status_of,
};
use super::sotw::SotwStream;
use super::stream::DiscoveryStream;
use super::subscription_index::SubscriptionIndex;
use crate::server::subscription_index::StreamId;

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The only encoding of messages that is spoken.
const IDENTITY: &str = "identity";

/// The streams of the aggregated discovery service, for callers of type `C`.
pub struct Streams<C> {
    snapshots: Snapshots<C>,
    interest: Arc<SubscriptionIndex>,
    observer: Arc<dyn Observer<C>>,
    opened: Arc<AtomicU64>,
    accounts: Accounts,
}

impl<C> Clone for Streams<C> {
    fn clone(&self) -> Self {
        Self {
            snapshots: self.snapshots.clone(),
            interest: self.interest.clone(),
            observer: self.observer.clone(),
            opened: self.opened.clone(),
            accounts: self.accounts.clone(),
        }
    }
}

impl<C: Clone + Send + Sync + 'static> Streams<C> {
    /// Serves what comes through `snapshots`, and looks at it whenever `interest` says so.
    pub fn new(
        snapshots: Snapshots<C>,
        interest: Arc<SubscriptionIndex>,
        observer: Arc<dyn Observer<C>>,
    ) -> Self {
        Self {
            snapshots,
            interest,
            observer,
            opened: Arc::new(AtomicU64::new(0)),
            accounts: Accounts::default(),
        }
    }

    /// Begins the stream that is asked for by this path and these headers, from this address. Somebody has checked who calls.
    ///
    /// # Errors
    /// There is no such method, its messages cannot be read, the caller is no longer part of what there is, or its identity has as many
    /// streams as it may.
    pub fn open(
        &self,
        path: &str,
        headers: &HeaderMap,
        (caller, peer): (C, Option<IpAddr>),
        life: Option<BoundedLife>,
    ) -> Result<Box<dyn ServedStream>, Status> {
        may_be_read(headers)?;
        if ![DELTA, SOTW].contains(&path) {
            return Err(Status::unimplemented("discovery has no such method"));
        }
        let snapshot = self.snapshots.borrow().clone();
        let now = Instant::now();
        if snapshot.farewell(&caller).is_some_and(|at| at <= now) {
            return Err(snapshot.parting(&caller));
        }
        let (account, allowance) = (snapshot.account(&caller), snapshot.allowance(&caller));
        let share = self.accounts.open(&account, &allowance, now);
        let share = share.map_err(|ended| status_of(&ended))?;
        let begun = StreamStart { share, peer, life };
        Ok(match path {
            DELTA => self.begin(DiscoveryStream::new(caller), begun),
            _ => self.begin(SotwStream::new(caller), begun),
        })
    }

    /// Counts work for a caller's identity outside its streams, of the same budget.
    ///
    /// # Errors
    /// The identity has used up its budget for now.
    pub fn count_work(&self, caller: &C, work: usize) -> Result<(), Status> {
        let snapshot = self.snapshots.borrow().clone();
        let (account, allowance) = (snapshot.account(caller), snapshot.allowance(caller));
        let counted = self
            .accounts
            .work(&account, (work, &allowance), Instant::now());
        counted.map_err(|ended| status_of(&ended))
    }

    fn begin<S: Conversation<C>>(&self, stream: S, begun: StreamStart) -> Box<dyn ServedStream> {
        let id = StreamId(self.opened.fetch_add(1, Ordering::Relaxed));
        Box::new(StreamSession::new(
            id,
            self.interest.join(id.0),
            stream,
            self.snapshots.clone(),
            self.observer.clone(),
            begun,
        ))
    }
}

/// Compressed requests are nobody's here: the peer is told so before it sends one.
fn may_be_read(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != IDENTITY => {
            let shown = String::from_utf8_lossy(encoding.as_bytes());
            let reason = format!("grpc-encoding `{shown}` is not supported");
            let mut status = Status::unimplemented(reason);
            let spoken = MetadataValue::from_static(IDENTITY);
            status.metadata_mut().insert("grpc-accept-encoding", spoken);
            Err(status)
        }
        _ => Ok(()),
    }
}
