//! Speed of this machine, measured by a short fixed piece of work: a small message through a bare relay over loopback and back,
//! memory copied, bytes sealed as TLS seals them. Records of two machines can then be compared as multiples of it. The work uses
//! nothing of the measured programs, so the result does not depend on them.

use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use voile_report::record::{Calibration, Estimate};
use voile_report::statistics::estimate;

/// Number of measurements of each piece of work, enough for an interval.
const ROUNDS: usize = 9;
/// Length of one round of one piece of work: three pieces, nine rounds, four seconds in all.
const ROUND: Duration = Duration::from_millis(150);
/// Bytes of a message through the relay: as small as a request's head.
const MESSAGE_BYTES: usize = 256;
/// More than the caches of the machines we know hold.
const COPY_BYTES: usize = 64 << 20;
/// A full TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// A message that does not come back in this time never will.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does all pieces of work, and leaves out those that fail.
pub(crate) fn calibrate() -> Calibration {
    let (round_trip, cpu) = match relay() {
        Ok((round_trip, cpu)) => (estimate(&round_trip), estimate(&cpu)),
        Err(_) => (None, None),
    };
    Calibration {
        relay_round_trip_us: round_trip,
        relay_cpu_us: cpu,
        memcpy_gigabytes_per_second: memcpy(),
        aes_gcm_gigabytes_per_second: seal(),
    }
}

/// Repeats the work for one round and returns how often it was done per second.
fn per_second(mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut times = 0u32;
    while began.elapsed() < ROUND {
        work();
        times += 1;
    }
    f64::from(times) / began.elapsed().as_secs_f64()
}

fn memcpy() -> Option<Estimate> {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let copies = per_second(|| {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            });
            copies * COPY_BYTES as f64 / 1e9
        })
        .collect();
    estimate(&rounds)
}

fn seal() -> Option<Estimate> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).ok()?);
    let mut record = vec![0u8; RECORD_BYTES];
    let mut number = 0u64;
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let seals = per_second(|| {
                number += 1;
                let mut nonce = [0; 12];
                nonce[4..].copy_from_slice(&number.to_be_bytes());
                let nonce = Nonce::assume_unique_for_key(nonce);
                let _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut record));
            });
            seals * RECORD_BYTES as f64 / 1e9
        })
        .collect();
    estimate(&rounds)
}

/// µs from a message's sending to its return, and µs of the relay's CPU for it, by round.
fn relay() -> io::Result<(Vec<f64>, Vec<f64>)> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (front, back) = (listen()?, listen()?);
    let to = back.local_addr()?;
    let echo = std::thread::spawn(move || -> io::Result<()> {
        let (stream, _) = back.accept()?;
        pass_on(&stream, &stream)
    });
    let mut client = open(front.local_addr()?)?;
    let (caller, _) = front.accept()?;
    let callee = open(to)?;
    for stream in [&caller, &callee] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    // One thread carries both directions, as the relay of the lab does. Its use is the cost of a message.
    let relay = std::thread::spawn(move || -> io::Result<Duration> {
        let mut bytes = [0; MESSAGE_BYTES];
        let (mut caller, mut callee) = (caller, callee);
        while caller.read_exact(&mut bytes).is_ok() {
            callee.write_all(&bytes)?;
            callee.read_exact(&mut bytes)?;
            caller.write_all(&bytes)?;
            // The client asks for the clock of this thread with a message of zeros.
            if bytes[0] == 0 {
                let used = cpu_of_this_thread().as_nanos() as u64;
                caller.write_all(&used.to_be_bytes())?;
            }
        }
        Ok(cpu_of_this_thread())
    });
    let mut rounds = (Vec::new(), Vec::new());
    let mut used = clock_of_relay(&mut client)?;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut messages = 0u32;
        while began.elapsed() < ROUND {
            exchange(&mut client, 1)?;
            messages += 1;
        }
        let took = began.elapsed();
        let now = clock_of_relay(&mut client)?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(messages.max(1));
        rounds.0.push(each(took));
        rounds.1.push(each(now.saturating_sub(used)));
        used = now;
    }
    drop(client);
    // The threads end with their connections; their results are not needed.
    let _ = (relay.join(), echo.join());
    Ok(rounds)
}

fn open(to: std::net::SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn exchange(client: &mut TcpStream, byte: u8) -> io::Result<()> {
    let mut bytes = [byte; MESSAGE_BYTES];
    client.write_all(&bytes)?;
    client.read_exact(&mut bytes)
}

fn clock_of_relay(client: &mut TcpStream) -> io::Result<Duration> {
    exchange(client, 0)?;
    let mut clock = [0; 8];
    client.read_exact(&mut clock)?;
    Ok(Duration::from_nanos(u64::from_be_bytes(clock)))
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    to.set_nodelay(true)?;
    let mut bytes = [0; MESSAGE_BYTES];
    while from.read_exact(&mut bytes).is_ok() {
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn cpu_of_this_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_work_has_a_figure_that_can_be_true() {
        let calibration = calibrate();
        let middle = |estimate: Option<Estimate>| estimate.expect("it was done").median;
        let round_trip = middle(calibration.relay_round_trip_us);
        let cpu = middle(calibration.relay_cpu_us);
        assert!(cpu > 0.5 && cpu < round_trip, "{cpu} of {round_trip} µs");
        assert!(middle(calibration.memcpy_gigabytes_per_second) > 0.05);
        assert!(middle(calibration.aes_gcm_gigabytes_per_second) > 0.001);
    }
}
