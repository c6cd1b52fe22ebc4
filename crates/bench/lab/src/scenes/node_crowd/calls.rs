//! Calls from pods: connections that are opened, answered once and kept, and new ones on a schedule.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use voile_host::netns::Namespace;

/// Time for one connection to open and to be answered.
const BOUND: Duration = Duration::from_secs(10);
/// Threads that call: handshakes wait for each other's answers.
const CALLERS: usize = 8;
const WORDS: &[u8] = b"there?\n";

/// Opens a connection, from the calling thread's network, and has it answered once.
pub(super) fn call(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, BOUND)?;
    answered(&stream)?;
    Ok(stream)
}

fn answered(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(BOUND))?;
    stream.write_all(WORDS)?;
    let mut answer = [0; WORDS.len()];
    stream.read_exact(&mut answer)?;
    match answer == WORDS {
        true => Ok(()),
        false => Err(io::Error::other("unexpected bytes in the answer")),
    }
}

/// So many connections of each pod, opened by several threads, all of them open at the end.
pub(super) fn open(
    pods: &[Namespace],
    each: u32,
    to: SocketAddr,
) -> Result<Vec<TcpStream>, String> {
    let share = pods.len().div_ceil(CALLERS).max(1);
    std::thread::scope(|scope| {
        let callers: Vec<_> = pods
            .chunks(share)
            .map(|pods| {
                scope.spawn(move || {
                    let mut open = Vec::new();
                    for pod in pods {
                        pod.enter()
                            .map_err(|e| format!("cannot enter a pod's network namespace: {e}"))?;
                        for _ in 0..each {
                            let one = call(to).map_err(|e| {
                                format!("a connection to {to}, after {}: {e}", open.len())
                            })?;
                            open.push(one);
                        }
                    }
                    Ok::<_, String>(open)
                })
            })
            .collect();
        let mut all = Vec::new();
        for caller in callers {
            let open = caller.join();
            all.extend(open.map_err(|_| "opening connections failed".to_owned())??);
        }
        Ok(all)
    })
}

/// Result of new connections on a schedule.
#[derive(Debug, Default)]
pub(super) struct NewConnectionResults {
    /// From when each was due to its first answer, in milliseconds, sorted.
    pub(super) ms: Vec<f64>,
    pub(super) failed: u64,
    /// Connections that were due but not opened before the time was over.
    pub(super) undone: u64,
}

/// Opens so many connections a second for so long, from all pods in turn; each is answered once and closed. Latency counts from
/// the due time, so a proxy that falls behind shows it.
pub(super) fn schedule(
    pods: &[Namespace],
    rate: u32,
    time: Duration,
    to: SocketAddr,
) -> NewConnectionResults {
    let due = (f64::from(rate) * time.as_secs_f64()) as u64;
    let (next, began) = (AtomicU64::new(0), Instant::now());
    // Twice the time is enough for a proxy that can keep up at all.
    let ends = began + time * 2;
    let mut all = NewConnectionResults::default();
    std::thread::scope(|scope| {
        let caller = || {
            let mut own = NewConnectionResults::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= due || Instant::now() >= ends {
                    return own;
                }
                let at = began + Duration::from_secs_f64(number as f64 / f64::from(rate));
                pause_until(at);
                let pod = &pods[number as usize % pods.len()];
                match pod.enter().and_then(|()| call(to)) {
                    Ok(_closed_here) => own.ms.push(at.elapsed().as_secs_f64() * 1e3),
                    Err(_) => own.failed += 1,
                }
            }
        };
        let callers: Vec<_> = (0..CALLERS * 4).map(|_| scope.spawn(caller)).collect();
        for caller in callers {
            // A thread that panicked has printed its message. Its connections count as undone.
            let Ok(own) = caller.join() else { continue };
            all.ms.extend(own.ms);
            all.failed += own.failed;
        }
    });
    all.undone = due.saturating_sub(all.ms.len() as u64 + all.failed);
    all.ms.sort_by(f64::total_cmp);
    all
}

/// Percentile of sorted values; none if fewer than ten lie beyond it.
pub(super) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    const BEYOND: f64 = 10.0;
    let beyond = (1.0 - share) * sorted.len() as f64;
    // A hundredth of a thousand is not quite ten in binary.
    if beyond + 1e-6 < BEYOND {
        return None;
    }
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a schedule is kept: what is due later is waited for"
)]
fn pause_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use voile_testkit::prerequisites::{Prerequisite, require};

    use super::*;

    #[test]
    fn a_percentile_has_ten_values_beyond_it_or_is_none() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        for (count, share, wanted) in [
            (1000, 0.5, Some(500.0)),
            (1000, 0.99, Some(990.0)),
            (999, 0.99, None),
            (100, 0.9, Some(90.0)),
            (99, 0.9, None),
            (0, 0.5, None),
        ] {
            assert_eq!(
                percentile(&values[..count], share),
                wanted,
                "{count} {share}"
            );
        }
    }

    #[test]
    fn every_call_that_is_due_is_answered_failed_or_undone() {
        let here = [Namespace::current().expect("we are somewhere")];
        if require(Prerequisite::Netns, here[0].enter()).is_none() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            // Every third is answered otherwise.
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let mut words = [0; WORDS.len()];
                let _ = (&stream).read_exact(&mut words);
                words[0] = if number % 3 == 2 { b'x' } else { words[0] };
                let _ = (&stream).write_all(&words);
            }
        });
        let came = schedule(&here, 300, Duration::from_millis(100), to);
        assert_eq!((came.ms.len(), came.failed, came.undone), (20, 10, 0));
        assert!(came.ms.is_sorted(), "{:?}", came.ms);
    }
}
