//! Shared by `voile status`, `config` and `events`: the addresses of control planes' monitoring pages, and
//! the requests for a page.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Beyond what a page may wait for by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest page that is read, in bytes: ten thousand proxies with all their types.
const MAX_PAGE_BYTES: u64 = 256 * 1024 * 1024;

/// Address of pages.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Monitoring {
    /// The control plane's `--monitoring` address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014")]
    monitoring: SocketAddr,
}

/// Addresses of the pages of one mesh's control planes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AllMonitoring {
    /// The control plane's `--monitoring` address; repeat the option for several control planes.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014")]
    monitoring: Vec<SocketAddr>,
}

impl AllMonitoring {
    /// Each of them, once.
    pub(crate) fn each(&self) -> Vec<(SocketAddr, Monitoring)> {
        let mut known = BTreeSet::new();
        let each = self.monitoring.iter().copied();
        each.filter(|address| known.insert(*address))
            .map(|monitoring| (monitoring, Monitoring { monitoring }))
            .collect()
    }
}

impl Monitoring {
    /// A page of JSON, that may take so long to begin.
    pub(crate) fn page(&self, path: &str, wait: Duration) -> Result<Value, String> {
        let address = self.monitoring;
        let failed = |error: std::io::Error| format!("http://{address}{path}: {error}");
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
        stream
            .set_read_timeout(Some(wait + PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(failed)?;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )
        .map_err(failed)?;
        let mut answer = Vec::new();
        let mut limited = stream.take(MAX_PAGE_BYTES);
        limited.read_to_end(&mut answer).map_err(failed)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let (Some(end), Some(line)) = (end, answer.split(|byte| *byte == b'\r').next()) else {
            return Err(format!("http://{address}{path}: not HTTP"));
        };
        let body = &answer[end + 4..];
        let line = String::from_utf8_lossy(line);
        if line.split(' ').nth(1) != Some("200") {
            let said = String::from_utf8_lossy(body);
            return Err(said.trim().to_owned());
        }
        serde_json::from_slice(body)
            .map_err(|error| format!("http://{address}{path}: not a control plane's page: {error}"))
    }
}

/// Columns under their heads, each as wide as it must be, the last one open.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let cells = cells.map(|cell| cell.chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths);
        let padded: Vec<String> = padded
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(heads.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// Text of a field, or a dash.
pub(crate) fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .filter(|text| !text.is_empty())
        .unwrap_or("-")
}

/// A type by its last word.
pub(crate) fn short(type_url: &str) -> &str {
    type_url.rsplit('.').next().unwrap_or(type_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "long cell", "x"], ["bcd", "", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["ONE", "TWO", "THREE"], &rows),
            "ONE  TWO        THREE\na    long cell  x\nbcd\n"
        );
        assert_eq!(
            short("type.googleapis.com/istio.workload.Address"),
            "Address"
        );
    }
}
