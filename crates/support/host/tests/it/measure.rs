//! Samplers, ports and readiness against real processes and sockets.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use voile_host::child::Spec;
use voile_host::machine::{CoreTime, Machine};
use voile_host::ports::free_port;
use voile_host::ready::{NotReady, Probe, ask, wait_ready};
use voile_host::sampler::{ProcessResources, Usage, cpu_ns};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_busy_child_is_charged_for_its_cpu_and_an_idle_one_is_not() {
    let busy = Spec::new("busy", "/bin/sh")
        .args(["-c", "while :; do :; done"])
        .start()
        .expect("sh exists");
    let idle = Spec::new("idle", "/bin/sleep")
        .arg("600")
        .start()
        .expect("sleep exists");
    let deadline = Instant::now() + LONG;
    while cpu_ns(busy.pid()).expect("runs") < 50_000_000 {
        assert!(Instant::now() < deadline, "50 ms of CPU never came");
        std::thread::yield_now();
    }
    let used = Usage::of(idle.pid()).expect("runs");
    assert!(used.cpu_ns < 50_000_000, "{used:?}");
    let both = Usage::of_all(&[busy.pid(), idle.pid()]);
    assert!(both.cpu_ns >= 50_000_000 && both.since(both).cpu_ns == 0);
}

#[test]
fn memory_threads_and_descriptors_of_ourselves_are_plausible() {
    let me = std::process::id();
    let held = ProcessResources::of(me).expect("we run");
    assert!(
        held.rss_bytes > 500_000
            && held.pss_bytes <= held.rss_bytes
            && held.anonymous_bytes <= held.rss_bytes
    );
    assert!(held.threads >= 1 && held.descriptors >= 3);
}

#[test]
fn a_process_that_has_ended_is_an_error_alone_and_nothing_in_a_sum() {
    let mut child = Spec::new("short", "/bin/true")
        .start()
        .expect("true exists");
    let pid = child.pid();
    child.wait(LONG).expect("ends");
    assert!(Usage::of(pid).is_err() && ProcessResources::of(pid).is_err());
    assert_eq!(Usage::of_all(&[pid]), Usage::default());
}

#[test]
fn the_machine_is_known() {
    let machine = Machine::here();
    assert!(
        machine.cores >= 1 && machine.memory_bytes > 1 << 20 && machine.kernel.starts_with("Linux")
    );
    let before = CoreTime::now().expect("/proc/stat");
    let cpu = cpu_ns(std::process::id()).expect("we run");
    while cpu_ns(std::process::id()).expect("we run") < cpu + 100_000_000 {
        std::hint::spin_loop();
    }
    // At least the time burnt here, less the grain of idle time and a core's share of uncertainty.
    let used = CoreTime::now().expect("/proc/stat").since(before);
    assert!(
        used.busy_ns() >= 50_000_000 && used.busy_share() <= 1.0,
        "{used:?}"
    );
}

#[test]
fn free_ports_differ_and_can_be_bound_on_any_loopback_address() {
    let address = IpAddr::V4(Ipv4Addr::new(127, 99, 3, 4));
    let first = free_port(address).expect("a port");
    let second = free_port(address).expect("another port");
    assert_ne!(first, second);
    TcpListener::bind(first).expect("free");
    assert!(
        free_port(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))).is_err(),
        "not our address"
    );
}

#[test]
fn waiting_ends_when_ready_when_dead_when_late_and_when_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let open = Probe::Tcp(listener.local_addr().expect("bound"));
    let closed = Probe::Tcp(free_port(Ipv4Addr::new(127, 99, 3, 5).into()).expect("a port"));
    assert!(ask(&open).is_ok() && ask(&closed).is_err());
    let mut alive = Spec::new("alive", "/bin/sleep")
        .arg("600")
        .start()
        .expect("sleep exists");
    let mut dead = Spec::new("dead", "/bin/false")
        .start()
        .expect("false exists");
    dead.wait(LONG).expect("ends");
    assert!(wait_ready(&mut alive, &open, LONG, &|| false).is_ok());
    assert!(matches!(
        wait_ready(&mut dead, &open, LONG, &|| false),
        Err(NotReady::Ended { .. })
    ));
    assert!(matches!(
        wait_ready(&mut alive, &closed, Duration::ZERO, &|| false),
        Err(NotReady::Late { .. })
    ));
    assert!(matches!(
        wait_ready(&mut alive, &closed, LONG, &|| true),
        Err(NotReady::Stopped { .. })
    ));
}
