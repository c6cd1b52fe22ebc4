//! Telemetry of connections: ztunnel's metrics with Istio's labels, and one access log line at each connection's end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use voile_identity::Identity;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_telemetry::access_log::{AccessLogEntry, PolicyMarks, TlsFacts};
use voile_telemetry::tap::NodeEnd;
use voile_telemetry::{
    Labels, Locality, PeerLabels, Reporter, Security, SeriesId, ServiceLabels, TCP,
};

use crate::connections::close_reasons::CONNECT;
use crate::registry::{Resident, ServedService};
use crate::worker::NodeWorker;

/// One end, as far as it is known.
pub(crate) fn peer(resident: Option<&Resident>, identity: Option<&Identity>) -> PeerLabels {
    let principal = identity.map(ToString::to_string).unwrap_or_default();
    let Some(resident) = resident else {
        // The certificate's fields are known even for a peer outside the mesh.
        return PeerLabels {
            namespace: identity
                .map(|one| one.namespace.to_string())
                .unwrap_or_default(),
            principal,
            ..PeerLabels::default()
        };
    };
    let labels = &resident.workload.labels;
    let (app, version) = match &labels.app_and_version {
        Some((app, version)) => (app, version),
        None => (&labels.canonical_name, &labels.canonical_revision),
    };
    let mut place = resident.workload.locality.split('/').map(str::to_owned);
    PeerLabels {
        workload: labels.workload_name.to_string(),
        namespace: labels.namespace.to_string(),
        principal,
        app: app.to_string(),
        version: version.to_string(),
        canonical_service: labels.canonical_name.to_string(),
        canonical_revision: labels.canonical_revision.to_string(),
        cluster: labels.cluster.to_string(),
        locality: Some(Locality {
            region: place.next().unwrap_or_default(),
            zone: place.next().unwrap_or_default(),
        }),
    }
}

fn service(served: Option<&ServedService>) -> ServiceLabels {
    let Some(served) = served else {
        return ServiceLabels::default();
    };
    ServiceLabels {
        host: served.service.key.hostname.to_string(),
        name: served.service.name.to_string(),
        namespace: served.service.key.namespace.to_string(),
    }
}

/// Both ends of a connection.
pub(crate) struct ConnectionParties<'a> {
    pub(crate) reporter: Reporter,
    pub(crate) source: (Option<&'a Resident>, Option<&'a Identity>),
    pub(crate) destination: (Option<&'a Resident>, Option<&'a Identity>),
    pub(crate) service: Option<&'a ServedService>,
    pub(crate) security: Security,
    pub(crate) client: SocketAddr,
    /// Destination of the TCP connection, and the target at the tunnel's end if there is a tunnel.
    pub(crate) server: SocketAddr,
    pub(crate) tunnelled: Option<SocketAddr>,
}

/// A connection that is counted and will be told of at its end.
pub(crate) struct Record<'a> {
    worker: &'a NodeWorker,
    series: SeriesId,
    /// The series' own, which connections by the thousand share.
    labels: Arc<Labels>,
    client: SocketAddr,
    server: SocketAddr,
    tunnelled: Option<SocketAddr>,
    began: Instant,
    outcome: Option<ConnectionOutcome>,
}

struct ConnectionOutcome {
    flags: &'static str,
    received: u64,
    sent: u64,
    error: Option<String>,
}

impl<'a> Record<'a> {
    /// It begins.
    pub(crate) fn open(
        worker: &'a NodeWorker,
        parties: &ConnectionParties<'_>,
        began: Instant,
    ) -> Self {
        let labels = Labels {
            reporter: parties.reporter,
            source: peer(parties.source.0, parties.source.1),
            destination: peer(parties.destination.0, parties.destination.1),
            service: service(parties.service),
            protocol: TCP,
            security: parties.security,
            values: Vec::new(),
        };
        let mut shard = worker.shard.borrow_mut();
        let series = shard.series(&labels);
        shard.tcp_opened(series);
        let shared = shard.shared_labels(series);
        drop(shard);
        // The log shows the real labels even when the metrics have no room for another series.
        let labels = match *shared == labels {
            true => shared,
            false => Arc::new(labels),
        };
        Self {
            worker,
            series,
            labels,
            client: parties.client,
            server: parties.server,
            tunnelled: parties.tunnelled,
            began,
            outcome: None,
        }
    }

    /// Closes the record: `received` from the client, `sent` to it. `flags` is ztunnel's word for the failure.
    pub(crate) fn close(
        mut self,
        flags: &'static str,
        (received, sent): (u64, u64),
        error: Option<String>,
    ) {
        self.outcome = Some(ConnectionOutcome {
            flags,
            received,
            sent,
            error,
        });
    }
}

impl Record<'_> {
    /// Offers the end of the connection to people who watch.
    fn show(&self, outcome: &ConnectionOutcome) {
        let duration = self.began.elapsed();
        let target = self.tunnelled.unwrap_or(self.server);
        let (side, labels, own) = match self.labels.reporter {
            Reporter::Source => (TelemetrySide::Client, &self.labels.source, self.client.ip()),
            Reporter::Destination | Reporter::Waypoint => {
                (TelemetrySide::Server, &self.labels.destination, target.ip())
            }
        };
        // A pod that has just gone is known by its workload alone.
        let pod = self.worker.home(own);
        let name = pod.as_ref().map_or(&*labels.workload, |pod| &pod.name);
        let failure = outcome.error.as_deref().unwrap_or_default();
        let (upstream_failure, termination) = match outcome.flags {
            CONNECT => (failure, ""),
            _ => ("", failure),
        };
        let entry = AccessLogEntry {
            http: None,
            start: SystemTime::now() - duration,
            duration,
            flags: outcome.flags,
            details: "",
            termination,
            upstream_failure,
            downstream_failure: "",
            received: outcome.received,
            sent: outcome.sent,
            upstream: Some(self.server),
            upstream_local: None,
            cluster: "",
            local: target,
            remote: self.client,
            server_name: "",
            route: "",
            tls: Some(TlsFacts {
                version: match self.labels.security {
                    Security::MutualTls => "TLSv1.3",
                    Security::None | Security::Unknown => "",
                },
                peer: &self.labels.source.principal,
                ..TlsFacts::default()
            }),
            marks: PolicyMarks::default(),
        };
        let end = NodeEnd {
            pod: &format!("{}/{name}", labels.namespace),
            service: &self.labels.service.host,
        };
        self.worker.tap.offer(side, &entry, Some(&end));
    }
}

impl Drop for Record<'_> {
    /// Reports a connection that was dropped in the middle, too.
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| ConnectionOutcome {
            flags: "-",
            received: 0,
            sent: 0,
            error: Some("the node proxy shut down".to_owned()),
        });
        let mut shard = self.worker.shard.borrow_mut();
        shard.tcp_closed(self.series, outcome.flags, outcome.received, outcome.sent);
        drop(shard);
        if self.worker.tap.is_watched() {
            self.show(&outcome);
        }
        let (from, to) = (&self.labels.source, &self.labels.destination);
        let outbound = self.labels.reporter == Reporter::Source;
        tracing::info!(
            target: "access",
            direction = if outbound { "outbound" } else { "inbound" },
            src.addr = %self.client,
            src.workload = from.workload,
            src.namespace = from.namespace,
            src.identity = from.principal,
            src.cluster = from.cluster,
            dst.addr = %self.server,
            dst.hbone_addr = self.tunnelled.map(tracing::field::display),
            dst.service = self.labels.service.host,
            dst.workload = to.workload,
            dst.namespace = to.namespace,
            dst.identity = to.principal,
            dst.cluster = to.cluster,
            bytes_sent = outcome.sent,
            bytes_recv = outcome.received,
            duration_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            response_flags = outcome.flags,
            error = outcome.error,
            "connection complete"
        );
    }
}
