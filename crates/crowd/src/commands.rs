//! The line protocol of whoever changes the configuration: `changed MARK NANOSECONDS NAME` (no answer), `report`, `clear`,
//! `synced NANOSECONDS` (a line of JSON each). Times are `CLOCK_MONOTONIC`'s. The crowd ends with the connection.

use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::{Shared, lock};

/// Serves the socket until the other end is gone.
pub(crate) async fn serve(socket: &Path, ledger: &Shared) -> Result<(), String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|e| format!("{}: {e}", socket.display()))?;
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(answer) = obey(&line, ledger) else {
            continue;
        };
        if write.write_all((answer + "\n").as_bytes()).await.is_err() {
            break;
        }
    }
    Ok(())
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
        word => Ok(format!("{{\"error\": {:?}}}", format!("no command {word}"))),
    };
    Some(answer.unwrap_or_default())
}
