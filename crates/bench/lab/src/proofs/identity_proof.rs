//! Proof of identity: a server in the endpoint's place with a certificate of the right root and another identity must get
//! no byte of a request. The same server with the right identity must get it, or the probe would prove nothing. The servers
//! are openssl's, another TLS library than the proxies'.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use voile_report::record::{Check, CheckVerdict};

use crate::checks::pace;
use crate::contestants::certificates::Leaf;
use crate::contestants::contestant::{IdentityProbe, TUNNEL_OPENING};
use crate::machine::socket_owners::listener_owner;

/// Time for openssl to listen, and for a sidecar to answer or to close.
const BOUND: Duration = Duration::from_secs(3);
/// Time of one read before the lab checks the bytes that the server got.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for openssl to write the end of a handshake.
const LAST_WORDS_BOUND: Duration = Duration::from_millis(500);

/// Words in openssl's messages that say how a handshake ended.
const ENDS: [&str; 3] = ["alert", "eof", "errno"];

/// Observations of the lab's server and of its client.
struct ObservedTraffic {
    /// Bytes that the server got after the handshake.
    got: Vec<u8>,
    /// The client's answer's first line, or how its connection ended.
    client: String,
    /// Result of the handshake, as the server saw it.
    server: String,
}

/// Puts both servers into the endpoint's place, one after the other.
pub(crate) fn impostor(stage: &IdentityProbe, folder: &Path) -> Check {
    let claim = "a server of the right root with another identity gets no byte of a request";
    let marker = format!("stage{:016x}", fastrand::u64(..));
    let both = attempt(stage, &stage.right, folder, &marker)
        .and_then(|right| Ok((right, attempt(stage, &stage.wrong, folder, &marker)?)));
    let (verdict, evidence) = match both {
        Err(why) => (CheckVerdict::NotProven, why),
        Ok((right, wrong)) => judge(&right, &wrong, stage.opening.unwrap_or(&marker)),
    };
    Check {
        claim: claim.to_owned(),
        verdict,
        evidence,
    }
}

fn judge(right: &ObservedTraffic, wrong: &ObservedTraffic, wanted: &str) -> (CheckVerdict, String) {
    if !wrong.got.is_empty() {
        let bytes = wrong.got.len();
        return (
            CheckVerdict::Failed,
            format!("the impostor got {bytes} bytes"),
        );
    }
    let told = format!(
        "the impostor got nothing; its TLS: {}; the client: {}",
        wrong.server, wrong.client
    );
    let text = String::from_utf8_lossy(&right.got);
    if text.contains(wanted) {
        let what = if wanted == TUNNEL_OPENING {
            "the tunnel's opening"
        } else {
            "the request"
        };
        let evidence = format!("with the server's own identity it got {what}; {told}");
        return (CheckVerdict::Proven, evidence);
    }
    let evidence = format!(
        "{told}; but a server with the right identity did not get the request either (its TLS: {}; the client: {})",
        right.server, right.client
    );
    (CheckVerdict::NotProven, evidence)
}

fn attempt(
    stage: &IdentityProbe,
    leaf: &Leaf,
    folder: &Path,
    marker: &str,
) -> Result<ObservedTraffic, String> {
    let networks = stage.networks.as_ref();
    let failed = |e: io::Error| format!("cannot enter a pod's network namespace: {e}");
    let start = || OpensslServer::start(stage, leaf, folder);
    let mut server = match networks {
        Some((_, Some(inside))) => inside.run(start).map_err(failed)??,
        Some((_, None)) | None => start()?,
    };
    let wanted = stage.opening.unwrap_or(marker);
    let call = || {
        ask(stage, marker, &|| server.got().contains(wanted))
            .unwrap_or_else(|e| format!("connection ended: {e}"))
    };
    let client = match networks {
        Some((inside, _)) => inside.run(call).map_err(failed)?,
        None => call(),
    };
    let server_said = server.last_words();
    server.end();
    Ok(ObservedTraffic {
        got: std::fs::read(&server.output).unwrap_or_default(),
        client,
        server: server_said,
    })
}

/// OpenSSL's errors are fields between colons; the last ones are words.
fn last_words(line: &str) -> String {
    let words: Vec<&str> = line.split(':').filter(|word| !word.is_empty()).collect();
    let words = words
        .iter()
        .find(|word| ENDS.iter().any(|end| word.contains(end)));
    words.map_or(line, |word| word).trim().to_owned()
}

/// Sends one request through the sidecar, until it is answered or arrived.
fn ask(
    stage: &IdentityProbe,
    marker: &str,
    arrived: &(dyn Fn() -> bool + Sync),
) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&stage.entry, BOUND)?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    let host = stage.host.as_deref().unwrap_or("server");
    write!(
        stream,
        "GET /{marker} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let deadline = Instant::now() + BOUND;
    let mut answer = [0; 256];
    while Instant::now() < deadline {
        match stream.read(&mut answer) {
            Ok(0) => return Ok("connection closed".to_owned()),
            Ok(length) => {
                let text = String::from_utf8_lossy(&answer[..length]).into_owned();
                return Ok(text.lines().next().unwrap_or_default().to_owned());
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                if arrived() {
                    return Ok("no answer yet".to_owned());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(format!("no answer within {BOUND:?}"))
}

/// openssl as a TLS server that writes down what it gets.
struct OpensslServer {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl OpensslServer {
    fn start(stage: &IdentityProbe, leaf: &Leaf, folder: &Path) -> Result<Self, String> {
        let address = stage.server;
        let (output, errors) = (folder.join("stage.out"), folder.join("stage.err"));
        let file = |path: &Path| {
            std::fs::File::create(path).map_err(|e| format!("writing {}: {e}", path.display()))
        };
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-tls1_3", "-verify", "1"])
            .args(["-alpn", stage.speaks])
            .args(["-accept", &address.to_string()])
            .arg("-cert")
            .arg(&leaf.certificate)
            .arg("-key")
            .arg(&leaf.key)
            // Its end would be the server's.
            .stdin(Stdio::piped())
            .stdout(file(&output)?)
            .stderr(file(&errors)?)
            .spawn()
            .map_err(|e| format!("needs openssl: {e}"))?;
        let server = Self {
            child,
            output,
            errors,
        };
        let deadline = Instant::now() + BOUND;
        // The wait opens no connection: openssl's messages about it would look like the sidecar's.
        while !matches!(
            listener_owner(address, None, &[server.child.id()]),
            Ok(Some(_))
        ) {
            if Instant::now() >= deadline {
                let said = std::fs::read_to_string(&server.errors).unwrap_or_default();
                return Err(format!("openssl does not listen on {address}: {said}"));
            }
            pace();
        }
        Ok(server)
    }

    fn got(&self) -> String {
        let bytes = std::fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Result of the handshake in the server's log. The server may write it a little later than the client sees it.
    fn last_words(&self) -> String {
        let deadline = Instant::now() + LAST_WORDS_BOUND;
        loop {
            let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
            let end = said
                .lines()
                .find(|line| ENDS.iter().any(|word| line.contains(word)));
            match end {
                Some(line) => return last_words(line),
                None if self.got().is_empty() && Instant::now() < deadline => pace(),
                None => return "nothing".to_owned(),
            }
        }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(got: &str) -> ObservedTraffic {
        ObservedTraffic {
            got: got.as_bytes().to_vec(),
            client: "HTTP/1.1 503 Service Unavailable".to_owned(),
            server: "sslv3 alert certificate unknown".to_owned(),
        }
    }

    #[test]
    fn an_impostor_that_gets_nothing_proves_only_when_the_right_server_gets_something() {
        for (right, wrong, verdict) in [
            ("GET /m HTTP/1.1", "", CheckVerdict::Proven),
            ("", "", CheckVerdict::NotProven),
            ("something else", "", CheckVerdict::NotProven),
            ("GET /m HTTP/1.1", "G", CheckVerdict::Failed),
            ("", "GET /m", CheckVerdict::Failed),
        ] {
            let (seen, evidence) = judge(&told(right), &told(wrong), "/m");
            assert_eq!(seen, verdict, "{right:?} {wrong:?}: {evidence}");
        }
    }

    #[test]
    fn what_openssl_says_is_cut_to_its_words() {
        let line = "40B7:error:0A000416:SSL routines:ssl3_read_bytes:sslv3 alert certificate unknown:../ssl/record/rec_layer_s3.c:1586:SSL alert number 46";
        assert_eq!(last_words(line), "sslv3 alert certificate unknown");
    }
}
