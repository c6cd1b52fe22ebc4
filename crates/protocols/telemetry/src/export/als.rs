//! The stream to Envoy's access log service: opened with the first record, opened again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use voile_proto::access_log as wire;
use wire::stream_access_logs_message::LogEntries;

use super::{CollectorDialer, GATHER, MAX_BATCH, channel, pause};
use crate::access_log::als::AlsRecord;
use crate::generated::access_log_service::access_log_service_client::AccessLogServiceClient;
use crate::outbox::Inbox;

/// Time to wait for the end of the last stream.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Sender of the log, in the first message of each stream.
#[derive(Debug, Clone)]
pub struct Sender {
    /// `sidecar~…`.
    pub node_id: String,
    /// Canonical service and namespace.
    pub cluster: String,
    /// `log_name`.
    pub log_name: String,
}

struct OpenAlsStream {
    messages: mpsc::Sender<wire::StreamAccessLogsMessage>,
    call: JoinHandle<Result<(), tonic::Status>>,
    /// Records of the last message. Nothing confirms a message; of a stream that broke, this one is taken for lost.
    last: u64,
}

/// Sends records until no sender is left.
pub async fn run(mut inbox: Inbox<AlsRecord>, dial: Arc<dyn CollectorDialer>, sender: Sender) {
    let mut open: Option<OpenAlsStream> = None;
    let mut failures = 0;
    while let Some(records) = inbox.batch(GATHER, MAX_BATCH).await {
        let count = records.len() as u64;
        if let Some(over) = open.take_if(|open| open.call.is_finished())
            && !matches!(over.call.await, Ok(Ok(())))
        {
            inbox.lost(over.last);
        }
        let mut identifier = None;
        if open.is_none() {
            match begin(&dial).await {
                Ok(begun) => open = Some(begun),
                Err(error) => {
                    inbox.lost(count);
                    tracing::debug!(
                        collector = dial.authority(),
                        error,
                        "cannot connect to the access log service"
                    );
                    tokio::time::sleep(pause(failures)).await;
                    failures += 1;
                    continue;
                }
            }
            failures = 0;
            identifier = Some(wire::Identifier {
                node: Some(wire::Node {
                    id: sender.node_id.clone(),
                    cluster: sender.cluster.clone(),
                }),
                log_name: sender.log_name.clone(),
            });
        }
        for message in messages(records, identifier) {
            let Some(stream) = &mut open else { break };
            stream.last = count;
            let sent = stream.messages.send(message);
            if !matches!(
                tokio::time::timeout(super::CALL_TIMEOUT, sent).await,
                Ok(Ok(()))
            ) {
                inbox.lost(count);
                open = None;
            }
        }
        if open.is_some() {
            inbox.delivered(count);
        }
    }
    if let Some(open) = open {
        drop(open.messages);
        let _ = tokio::time::timeout(LAST_WORDS, open.call).await;
    }
}

async fn begin(dial: &Arc<dyn CollectorDialer>) -> Result<OpenAlsStream, String> {
    let channel = channel::open(dial).await?;
    let (messages, stream) = mpsc::channel(1);
    let call = tokio::spawn(async move {
        let mut client = AccessLogServiceClient::new(channel);
        let answer = client.stream_access_logs(ReceiverStream::new(stream)).await;
        if let Err(status) = &answer {
            tracing::debug!(%status, "access log stream ended");
        }
        answer.map(|_| ())
    });
    Ok(OpenAlsStream {
        messages,
        call,
        last: 0,
    })
}

/// Makes one message for requests, one for opaque connections; the first one names the sender.
fn messages(
    records: Vec<AlsRecord>,
    mut identifier: Option<wire::Identifier>,
) -> Vec<wire::StreamAccessLogsMessage> {
    let (mut http, mut tcp) = (Vec::new(), Vec::new());
    for record in records {
        match record {
            AlsRecord::Http(entry) => http.push(*entry),
            AlsRecord::Tcp(entry) => tcp.push(*entry),
        }
    }
    let http = (!http.is_empty()).then_some(LogEntries::HttpLogs(wire::HttpAccessLogEntries {
        log_entry: http,
    }));
    let tcp = (!tcp.is_empty()).then_some(LogEntries::TcpLogs(wire::TcpAccessLogEntries {
        log_entry: tcp,
    }));
    let message = |entries| wire::StreamAccessLogsMessage {
        identifier: identifier.take(),
        log_entries: Some(entries),
    };
    http.into_iter().chain(tcp).map(message).collect()
}
