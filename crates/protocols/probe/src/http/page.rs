//! `GET` of a page whose body matters: metrics of an application.

use std::io::{self, Write};

use voile_pages::Answer;

use super::super::ProbeServer;
use super::wrong;

/// Asks for text in Prometheus' format by HTTP/1.1 in plaintext. Redirects are not followed. Returns the body of a 200.
pub(crate) fn read(server: &ProbeServer, path: &str, limit: usize) -> io::Result<String> {
    let mut stream = server.stream(server.address.port(), false)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: voile\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(request.as_bytes())?;
    let answer = Answer::read(&mut stream, limit)?;
    if answer.status() != 200 {
        let error = format!("the answer is {}", answer.status());
        return Err(io::Error::other(error));
    }
    let kind = answer.field("content-type").unwrap_or("text/plain");
    let kind = kind.to_ascii_lowercase();
    if !["text/plain", "application/openmetrics-text"]
        .iter()
        .any(|one| kind.starts_with(one))
    {
        return Err(io::Error::other(format!("the answer is `{kind}`")));
    }
    if answer.body().len() > limit {
        let error = format!("the body is larger than {limit} bytes");
        return Err(io::Error::other(error));
    }
    let text = answer.into_body();
    String::from_utf8(text).map_err(|_| wrong("the body is not text"))
}
