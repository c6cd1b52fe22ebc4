//! Line protocol for a program that changes the configuration: `changed MARK NANOSECONDS NAME` (no answer), `report`, `clear`,
//! `synced NANOSECONDS`, `hold NUMBER`, `certify CONNECTIONS MILLISECONDS`, `rotate MILLISECONDS` (a line of JSON each). Times
//! are `CLOCK_MONOTONIC`'s. The crowd ends with the connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::certificates::{CertificateRequesters, certify, hold, rotate};
use crate::{Shared, lock};

/// Serves the socket until the other end is gone.
pub(crate) async fn serve(
    socket: &Path,
    ledger: &Shared,
    askers: &Arc<CertificateRequesters>,
) -> Result<(), String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|e| format!("{}: {e}", socket.display()))?;
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match ask(&line, askers).await {
            Some(answer) => Some(answer),
            None => obey(&line, ledger),
        };
        let Some(answer) = answer else {
            continue;
        };
        if write.write_all((answer + "\n").as_bytes()).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Commands that ask for certificates; none for the others.
async fn ask(line: &str, askers: &Arc<CertificateRequesters>) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let time = |text: &str| text.parse().map(Duration::from_millis).ok();
    let done = match words[..] {
        ["hold", number] => hold(askers, number.parse().ok()?).await,
        ["certify", connections, of] => certify(askers, connections.parse().ok()?, time(of)?).await,
        ["rotate", of] => rotate(askers, time(of)?).await,
        _ => return None,
    };
    Some(serde_json::to_string(&done).unwrap_or_default())
}

fn error(why: &str) -> String {
    serde_json::json!({ "error": why }).to_string()
}

fn obey(line: &str, ledger: &Shared) -> Option<String> {
    let mut words = line.splitn(4, ' ');
    let mut ledger = lock(ledger);
    let answer = match words.next()? {
        "changed" => {
            let mark = words.next()?.parse().ok()?;
            let at = words.next()?.parse().ok()?;
            ledger.changed(words.next()?, mark, at);
            return None;
        }
        "report" => serde_json::to_string(&ledger.report()),
        "clear" => {
            ledger.clear();
            Ok("{}".to_owned())
        }
        "synced" => serde_json::to_string(&ledger.synced(words.next()?.parse().ok()?)),
        word => Ok(error(&format!("unknown command {word}"))),
    };
    Some(answer.unwrap_or_default())
}
