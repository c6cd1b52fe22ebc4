//! Calling other services before answering, which makes the echo server an application of an example mesh. The
//! calls block, on a few threads of their own with kept connections, so that the workers never wait.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::echo::EchoOptions;
use crate::options::LoadTarget;
use crate::poll::Waker;
use crate::response::Reader;

/// Requests that call at the same time; more wait in line.
const CALLERS: usize = 16;
/// The longest wait for a connection, and for each read of a response.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest part of a called service's body shown in the answer.
const SHOWN_BYTES: usize = 1024;

/// A request that needs its calls made.
pub(crate) struct Job {
    pub(crate) token: u64,
    /// The stream of an HTTP/2 connection, or 0.
    pub(crate) stream: u32,
    /// Header lines to pass on.
    pub(crate) trace: String,
    pub(crate) replies: Arc<Replies>,
}

/// The calls of one request, done.
pub(crate) struct Reply {
    pub(crate) token: u64,
    pub(crate) stream: u32,
    pub(crate) failed: bool,
    pub(crate) body: Vec<u8>,
}

/// Queue of the outcomes of a worker's calls.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: Mutex<Vec<Reply>>,
    pub(crate) waker: Waker,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reply")
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Replies {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Vec::new()),
            waker: Waker::new()?,
        }))
    }

    pub(crate) fn take(&self) -> Vec<Reply> {
        self.waker.clear();
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn give(&self, reply: Reply) {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(reply);
        self.waker.wake();
    }
}

/// The threads that call. They end when the last worker is gone.
#[derive(Debug, Clone)]
pub(crate) struct Callers(Sender<Job>);

impl Callers {
    /// Starts them, if there is anything to call.
    pub(crate) fn start(options: &Arc<EchoOptions>) -> io::Result<Option<Self>> {
        if options.calls.is_empty() {
            return Ok(None);
        }
        let (sender, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        for index in 0..CALLERS {
            let (jobs, options) = (Arc::clone(&jobs), Arc::clone(options));
            let thread = thread::Builder::new()
                .name(format!("call-{index}"))
                .stack_size(256 * 1024);
            thread.spawn(move || call_forever(&jobs, &options))?;
        }
        Ok(Some(Self(sender)))
    }

    pub(crate) fn submit(&self, job: Job) {
        if let Err(unsent) = self.0.send(job) {
            let Job {
                token,
                stream,
                replies,
                ..
            } = unsent.0;
            replies.give(Reply {
                token,
                stream,
                failed: true,
                body: b"{}\n".to_vec(),
            });
        }
    }
}

#[derive(Serialize)]
struct CalleeResponse<'a> {
    service: &'a str,
    calls: Vec<CalleeCall<'a>>,
}

#[derive(Serialize)]
struct CalleeCall<'a> {
    url: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn call_forever(jobs: &Mutex<Receiver<Job>>, options: &EchoOptions) {
    let mut kept: Vec<Option<TcpStream>> = options.calls.iter().map(|_| None).collect();
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job {
            token,
            stream,
            trace,
            replies,
        }) = next
        else {
            return;
        };
        let calls: Vec<_> = options
            .calls
            .iter()
            .zip(&mut kept)
            .map(|(target, kept)| call(target, kept, &trace))
            .collect();
        let failed = calls.iter().any(|call| !(200..300).contains(&call.status));
        let answer = CalleeResponse {
            service: options.name.as_deref().unwrap_or(""),
            calls,
        };
        let mut body = serde_json::to_vec(&answer).unwrap_or_default();
        body.push(b'\n');
        replies.give(Reply {
            token,
            stream,
            failed,
            body,
        });
    }
}

fn call<'a>(target: &'a LoadTarget, kept: &mut Option<TcpStream>, trace: &str) -> CalleeCall<'a> {
    let reused = kept.is_some();
    let outcome = match exchange(target, kept, trace) {
        // A kept connection that the callee closed meanwhile says nothing about the callee: a GET may be repeated.
        Err((_, false)) if reused => {
            *kept = None;
            exchange(target, kept, trace)
        }
        outcome => outcome,
    };
    match outcome {
        Ok((status, body)) => {
            let body = String::from_utf8_lossy(&body).into_owned();
            CalleeCall {
                url: &target.url,
                status,
                body: Some(body).filter(|body| !body.is_empty()),
                error: None,
            }
        }
        Err((error, _)) => {
            *kept = None;
            CalleeCall {
                url: &target.url,
                status: 0,
                body: None,
                error: Some(error.to_string()),
            }
        }
    }
}

/// Sends one request and reads its response. An error states if part of the response had come.
fn exchange(
    target: &LoadTarget,
    kept: &mut Option<TcpStream>,
    trace: &str,
) -> Result<(u16, Vec<u8>), (io::Error, bool)> {
    let mut reader = Reader::new(false);
    let (path, host) = (&target.path, &target.authority);
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: voile-echo\r\n{trace}\r\n");
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => connect(target).map_err(|error| (error, false))?,
    };
    stream
        .write_all(request.as_bytes())
        .map_err(|error| (error, false))?;
    let (mut buffer, mut body) = ([0; 16 * 1024], Vec::new());
    loop {
        let count = stream
            .read(&mut buffer)
            .map_err(|error| (error, reader.begun()))?;
        let mut keep = |part: &[u8]| {
            let room = SHOWN_BYTES - body.len();
            body.extend_from_slice(&part[..part.len().min(room)]);
        };
        let begun = reader.begun();
        let response = match count {
            0 => {
                let ended = || {
                    io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "connection closed before the response ended",
                    )
                };
                Some(reader.end_of_stream().ok_or_else(|| (ended(), begun))?)
            }
            _ => {
                let fed = reader.feed_into(&buffer[..count], &mut keep);
                let malformed = |error| (io::Error::new(io::ErrorKind::InvalidData, error), true);
                fed.map_err(malformed)?.1
            }
        };
        if let Some(response) = response {
            *kept = Some(stream).filter(|_| !response.close);
            return Ok((response.status, body));
        }
    }
}

fn connect(target: &LoadTarget) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target.address, CALL_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CALL_TIMEOUT))?;
    stream.set_write_timeout(Some(CALL_TIMEOUT))?;
    Ok(stream)
}
