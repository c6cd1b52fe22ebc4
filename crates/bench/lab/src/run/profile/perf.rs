//! perf as a process beside the load: system calls counted by the kernel's own tracepoints, CPU time sampled with its stacks.
//! Neither needs hardware counters, which virtual machines seldom have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_host::child::{Output, SupervisedChild};
use voile_report::profile::{Flame, Profile, Syscalls};

use super::ProfiledCell;
use crate::generator::{BrokenSlice, wait_until};
use crate::hooks::there;
use crate::machine::instance::Instance;
use crate::shared_processes::Lab;

/// Samples a second and core: no multiple of anything that ticks.
const FREQUENCY_HZ: u32 = 499;
/// Bytes of each sampled stack; frames are found by unwinding, since few programs keep frame pointers.
const STACK_BYTES: u32 = 16_384;
/// Time for perf to begin.
const BEGIN: Duration = Duration::from_millis(400);
/// Time for perf to end after its sampling, and to print its samples: it reads the programs' symbols.
const END_BOUND: Duration = Duration::from_secs(15);
const SCRIPT_BOUND: Duration = Duration::from_secs(120);
/// The least time worth looking.
const SHORTEST: Duration = Duration::from_millis(300);
/// All system calls, and those of servers and proxies by name where the kernel has the tracepoint.
const ALL: &str = "raw_syscalls:sys_enter";
const NAMED: [&str; 24] = [
    "accept4",
    "close",
    "connect",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fcntl",
    "futex",
    "io_uring_enter",
    "ioctl",
    "madvise",
    "read",
    "readv",
    "recvfrom",
    "recvmsg",
    "sched_yield",
    "sendmsg",
    "sendto",
    "setsockopt",
    "splice",
    "timerfd_settime",
    "write",
    "writev",
];
/// Names rarer than one in so many requests are left out.
const RARE: f64 = 0.005;
/// Folder in which the kernel lists its tracepoints.
const TRACEPOINTS: &str = "/sys/kernel/tracing/events/syscalls";

pub(crate) fn is_here() -> bool {
    there("perf")
}

/// Length of perf's sampling, so that perf ends before that moment.
fn seconds_until(until: Instant) -> Option<f64> {
    let left = until.saturating_duration_since(Instant::now());
    let left = left.checked_sub(BEGIN).filter(|left| *left >= SHORTEST)?;
    Some(left.as_secs_f64())
}

fn pids(instance: &Instance) -> String {
    let pids: Vec<String> = instance
        .pids_here()
        .iter()
        .map(ToString::to_string)
        .collect();
    pids.join(",")
}

/// A perf at work: it ends with its `sleep`.
fn start(
    lab: &Lab<'_>,
    name: &str,
    arguments: &[&str],
    seconds: f64,
) -> Result<SupervisedChild, String> {
    let spec = lab.free_process(name, "perf".as_ref()).args(arguments);
    let spec = spec.args(["--", "sleep", &format!("{seconds:.3}")]);
    spec.start().map_err(|e| e.to_string())
}

/// Waits for perf's end; an error is its output.
fn finish(
    lab: &Lab<'_>,
    child: &mut SupervisedChild,
    bound: Duration,
) -> Result<Result<(), String>, BrokenSlice> {
    let name = child.name().to_owned();
    if !wait_until(child, Instant::now() + bound, lab)? {
        return Ok(Err(format!("perf did not end within {bound:?}")));
    }
    Ok(match child.try_exit() {
        Some(exit) if exit.is_success() => Ok(()),
        Some(exit) => Err(format!("perf {exit}{}", lab.log_end(&name))),
        None => Err("the exit status of perf was lost".to_owned()),
    })
}

/// Counts the system calls of every process on the path.
pub(super) fn syscalls(scene: &ProfiledCell<'_>, profile: &mut Profile) -> Result<(), BrokenSlice> {
    let lab = scene.lab;
    let named = NAMED.iter().filter(|name| {
        let place = format!("{TRACEPOINTS}/sys_enter_{name}");
        Path::new(&place).is_dir()
    });
    let events = named.map(|name| format!("syscalls:sys_enter_{name}"));
    let events = [ALL.to_owned()]
        .into_iter()
        .chain(events)
        .collect::<Vec<_>>()
        .join(",");
    let mut counted: Vec<(&'static str, PathBuf)> = Vec::new();
    let mut failure = None;
    let mut looked = 0.0;
    let run = scene.under_load(&mut |load: &mut SupervisedChild, until: Instant| {
        let Some(seconds) = seconds_until(until) else {
            failure = Some("the slice is too short".to_owned());
            return Ok(());
        };
        looked = seconds;
        let mut children = Vec::new();
        let all = scene.all(load);
        let here = all.iter().filter(|one| !one.pids_here().is_empty());
        for (number, instance) in here.enumerate() {
            let out = lab.folder.join(format!("perf-stat-{number}.csv"));
            let (file, its) = (out.display().to_string(), pids(instance));
            let words = ["stat", "-x", ";", "-o", &file, "-e", &events, "-p", &its];
            match start(lab, &format!("perf-stat-{number}"), &words, seconds) {
                Ok(child) => children.push(child),
                Err(why) => failure = Some(why),
            }
            counted.push((instance.role, out));
        }
        for child in &mut children {
            if let Err(why) = finish(lab, child, Duration::from_secs_f64(seconds) + END_BOUND)? {
                failure = Some(why);
            }
        }
        Ok(())
    })?;
    if let Some(why) = failure {
        let words = format!(
            "system calls are not counted (perf needs root, or kernel.perf_event_paranoid of -1): {why}"
        );
        profile.missing.push(words);
        return Ok(());
    }
    let requests = (run.achieved_rps * looked).max(1.0);
    for (role, file) in counted {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let calls = parse_stat(&text, requests);
        if calls.per_request > 0.0 {
            profile.syscalls.insert(role.to_owned(), calls);
        }
    }
    Ok(())
}

/// `COUNT;;EVENT;…`, one event a line.
fn parse_stat(text: &str, requests: f64) -> Syscalls {
    let mut calls = Syscalls::default();
    for line in text.lines() {
        let mut fields = line.split(';');
        let (Some(count), Some(event)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let Ok(count) = count.trim().parse::<u64>() else {
            continue;
        };
        let each = count as f64 / requests;
        if event == ALL {
            calls.per_request = each;
        } else if let Some(name) = event.strip_prefix("syscalls:sys_enter_")
            && each >= RARE
        {
            calls.by_name.insert(name.to_owned(), each);
        }
    }
    calls
}

/// Samples the stacks of every process on the path; of those at an agent's the agent does.
pub(super) fn flames(scene: &ProfiledCell<'_>, profile: &mut Profile) -> Result<(), BrokenSlice> {
    let lab = scene.lab;
    let (mut here, mut there) = (None, None);
    scene.under_load(&mut |load: &mut SupervisedChild, until: Instant| {
        let Some(seconds) = seconds_until(until) else {
            here = Some(Err("the slice is too short".to_owned()));
            return Ok(());
        };
        let all = scene.all(load);
        there = lab.far.map(|far| far.sample(&all, seconds));
        let roles = all.iter().flat_map(|instance| {
            let pids = instance.pids_here().iter();
            pids.map(|pid| (*pid, instance.role.to_owned()))
        });
        here = Some(match Sampling::begin(lab, roles.collect(), seconds) {
            Ok(mut sampling) => sampling.wait(lab)?.map(|()| sampling),
            Err(why) => Err(why),
        });
        Ok(())
    })?;
    let mut told = Vec::new();
    match here {
        Some(Ok(sampling)) => told.push(("", sampling.tell(lab)?)),
        Some(Err(why)) => told.push(("", Err(why))),
        None => {}
    }
    if let (Some(begun), Some(far)) = (there, lab.far) {
        told.push((
            " of the processes at the agent",
            begun.and_then(|()| far.sampled()),
        ));
    }
    for (whose, told) in told {
        match told {
            Ok(flames) => profile.flames.extend(flames),
            Err(why) => profile.missing.push(format!(
                "no flame graphs{whose} (perf needs root, or kernel.perf_event_paranoid of -1): {why}"
            )),
        }
    }
    Ok(())
}

/// A perf that samples processes of this machine.
pub(crate) struct Sampling {
    child: SupervisedChild,
    data: PathBuf,
    roles: BTreeMap<u32, String>,
    bound: Duration,
}

impl Sampling {
    /// Begins to sample these processes for so long.
    pub(crate) fn begin(
        lab: &Lab<'_>,
        roles: BTreeMap<u32, String>,
        seconds: f64,
    ) -> Result<Self, String> {
        let data = lab.folder.join("perf.data");
        let (frequency, file) = (FREQUENCY_HZ.to_string(), data.display().to_string());
        let graph = format!("dwarf,{STACK_BYTES}");
        let its: Vec<String> = roles.keys().map(ToString::to_string).collect();
        let its = its.join(",");
        let words = [
            "record",
            "-q",
            "-F",
            &frequency,
            "-e",
            "cpu-clock",
            "--call-graph",
            &graph,
            "-o",
            &file,
            "-p",
            &its,
        ];
        Ok(Self {
            child: start(lab, "perf-record", &words, seconds)?,
            data,
            roles,
            bound: Duration::from_secs_f64(seconds) + END_BOUND,
        })
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, lab: &Lab<'_>) -> Result<Result<(), String>, BrokenSlice> {
        finish(lab, &mut self.child, self.bound)
    }

    /// Lets perf tell what it sampled, and sorts it by role; says why where it cannot.
    pub(crate) fn tell(&self, lab: &Lab<'_>) -> Result<Result<Vec<Flame>, String>, BrokenSlice> {
        let out = lab.folder.join("perf.txt");
        let spec = lab
            .free_process("perf-script", "perf".as_ref())
            .args(["script", "--no-inline", "-F", "pid,ip,sym,dso", "-i"])
            .arg(&self.data)
            .stdout(Output::File(out.clone()));
        let mut child = match spec.start() {
            Ok(child) => child,
            Err(why) => return Ok(Err(why.to_string())),
        };
        if let Err(why) = finish(lab, &mut child, SCRIPT_BOUND)? {
            return Ok(Err(why));
        }
        let text = std::fs::read(&out).unwrap_or_default();
        let _ = std::fs::remove_file(&out);
        let mut stacks: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
        for (pid, stack) in parse_script(&String::from_utf8_lossy(&text)) {
            if let Some(role) = self.roles.get(&pid) {
                stacks.entry(role).or_default().push(stack);
            }
        }
        if stacks.is_empty() {
            return Ok(Err("perf recorded no samples".to_owned()));
        }
        let flames = stacks
            .into_iter()
            .map(|(role, stacks)| Flame::of(role, stacks));
        Ok(Ok(flames.collect()))
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.data);
    }
}

/// Samples as perf writes them: a line with the process, then the stack from its inner end, a line each, then an empty one.
fn parse_script(text: &str) -> Vec<(u32, Vec<String>)> {
    let mut samples = Vec::new();
    let mut current: Option<(u32, Vec<String>)> = None;
    for line in text.lines() {
        if line.trim().is_empty() {
            samples.extend(current.take());
        } else if let (true, Some((_, stack))) = (line.starts_with('\t'), &mut current) {
            stack.extend(frame(line));
        } else {
            samples.extend(current.take());
            current = line.trim().parse().ok().map(|pid| (pid, Vec::new()));
        }
    }
    samples.extend(current);
    samples.retain(|(_, stack)| !stack.is_empty());
    for (_, stack) in &mut samples {
        stack.reverse();
    }
    samples
}

/// `55e0c0de some::function (/usr/bin/program)`: the function, or the program if the function has no name.
fn frame(line: &str) -> Option<String> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (name, object) = match rest.rfind(" (") {
        Some(at) => (&rest[..at], rest[at + 2..].trim_end_matches(')')),
        None => (rest, ""),
    };
    let object = object.rsplit('/').next().unwrap_or(object);
    let kernel = object.starts_with("[kernel") || object.ends_with(".ko");
    Some(match (name, kernel) {
        ("[unknown]", _) => format!("[{object}]"),
        (name, true) => format!("{name}_[k]"),
        (name, false) => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_divided_by_requests_and_rare_ones_left_out() {
        let text = "# started on a day\n\n400;;raw_syscalls:sys_enter;1;100.00;;\n200;;syscalls:sys_enter_sendto;1;100.00;;\n\
                    1;;syscalls:sys_enter_close;1;100.00;;\n<not counted>;;syscalls:sys_enter_read;0;0.00;;\n";
        let calls = parse_stat(text, 400.0);
        assert_eq!(calls.per_request, 1.0);
        assert_eq!(calls.by_name, BTreeMap::from([("sendto".to_owned(), 0.5)]));
        assert_eq!(parse_stat("nonsense", 1.0), Syscalls::default());
    }

    #[test]
    fn stacks_are_turned_outermost_first_and_named_by_what_is_known() {
        let text = "  42 \n\t ffffffff81 tcp_sendmsg ([kernel.kallsyms])\n\t   55e0 <a::B as c::D>::send (/usr/bin/voile)\n\t  1 [unknown] (/opt/envoy)\n\n\
                    43\n\t 1 main (/usr/bin/x)\n\nnobody\n\t 2 lost (/x)\n";
        let samples = parse_script(text);
        let stack = ["[envoy]", "<a::B as c::D>::send", "tcp_sendmsg_[k]"].map(str::to_owned);
        assert_eq!(
            samples,
            [(42, stack.to_vec()), (43, vec!["main".to_owned()])]
        );
    }
}
