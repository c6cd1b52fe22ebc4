//! `voile events`: what happens at a control plane, or at several that serve one mesh, as it happens.
//!
//! ```text
//! control plane ─ asked by a thread of its own, again and again ─┐
//! control plane ─ … ─────────────────────────────────────────────┴▶ lines, as they come
//! ```

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::inspect::monitoring::{AllMonitoring, PageServer, ask_again, short, word};
use crate::commands::values::OutputArgs;

/// Follow events of control planes: changes published and when every proxy has them, proxies that connect, disconnect
/// or refuse configuration, certificates issued.
///
/// One line each; `-o json` prints each as an object. The control plane keeps the last 1,000 events. A slower reader gets the
/// number of events that it missed. Ends with Ctrl-C, with `--for`, or when the control plane is gone.
///
/// With `--monitoring` more than once these are several control planes of one mesh: each line names the control plane of its
/// event (`control_plane` with `-o json`). Remembered events come first, in order of time; then new ones as they happen. A control
/// plane that is gone is asked again every second, with a message, and its events from that time follow. With `--kubernetes` these
/// are the pods of a cluster's control plane at the start of the command.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when the time of --for is over, 2 if the control plane (of several, every one) cannot be reached (any more)."
)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    monitoring: AllMonitoring,
    /// Start with the events that the control plane still remembers.
    #[arg(long)]
    past: bool,
    /// Stop after this time, such as 30s.
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::commands::values::duration)]
    for_: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Longest time that one question waits for an event.
const WAIT_SECONDS: u64 = 20;
/// Pause before a control plane that is gone is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time that the others wait for the first answer of one control plane, so that remembered events can
/// be printed in order.
const FIRST_WORDS: Duration = Duration::from_secs(2);
/// Answers that wait to be printed. A slow reader gets the number of events that it missed.
const MAX_WAITING: usize = 16;

pub(crate) fn run(args: &EventsArgs) -> ExitCode {
    match follow(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile events: {reason}");
            ExitCode::from(2)
        }
    }
}

/// Events of one control plane since the last question.
#[derive(Debug, Default, PartialEq)]
struct ProxyEvents {
    events: Vec<Value>,
    missed: u64,
    /// The control plane was started again since.
    anew: bool,
}

/// The answer of one control plane, by the index of its address on the command line.
type Answer = (usize, Result<ProxyEvents, String>);

fn follow(args: &EventsArgs) -> Result<(), String> {
    let begin = Instant::now();
    let each = args.monitoring.each()?;
    let mut shown = EventPrinter {
        addresses: each.iter().map(ToString::to_string).collect(),
        gone: vec![false; each.len()],
        json: args.output.is_json(),
        past: args.past,
        out: std::io::stdout().lock(),
    };
    let (tell, told) = sync_channel(MAX_WAITING);
    for (of, at) in each.into_iter().enumerate() {
        // A thread that still waits for an answer at the end stops with the process.
        listen(of, at, args.past, tell.clone());
    }
    drop(tell);
    let mut answers = first_words(&told, shown.addresses.len());
    if shown.addresses.len() > 1
        && answers.len() == shown.addresses.len()
        && answers.iter().all(|(_, answer)| answer.is_err())
    {
        let reasons = answers.into_iter().filter_map(|(_, answer)| answer.err());
        return Err(reasons.collect::<Vec<_>>().join("; "));
    }
    loop {
        if !shown.say(answers)? {
            return Ok(());
        }
        let left = args.for_.map(|all| all.saturating_sub(begin.elapsed()));
        let next = match left {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => told.recv_timeout(left),
        };
        match next {
            Ok(answer) => answers = vec![answer],
            Err(_) => return Ok(()),
        }
    }
}

/// Collects the first answer of each control plane that answers in time.
fn first_words(told: &Receiver<Answer>, all: usize) -> Vec<Answer> {
    let until = Instant::now() + FIRST_WORDS;
    let mut heard = vec![false; all];
    let mut answers = Vec::new();
    while heard.contains(&false) {
        let left = match all {
            1 => Duration::MAX,
            _ => until.saturating_duration_since(Instant::now()),
        };
        let Ok((of, answer)) = told.recv_timeout(left) else {
            break;
        };
        heard[of] = true;
        answers.push((of, answer));
    }
    answers
}

/// Asks one control plane for ever, until the receiver is gone.
fn listen(of: usize, at: PageServer, past: bool, tell: SyncSender<Answer>) {
    let mut place = EventCursor {
        after: past.then_some(0),
        began: None,
    };
    let mut wait = 0;
    ask_again(tell, move || {
        let path = place.question(wait);
        let page = at.page(&path, Duration::from_secs(wait));
        let answer = page.and_then(|page| place.heard(&page));
        wait = match &answer {
            // A restarted control plane returns the events of its new life at once.
            Ok(ProxyEvents { anew: true, .. }) | Err(_) => 0,
            Ok(_) => WAIT_SECONDS,
        };
        let pause = if answer.is_err() {
            AGAIN
        } else {
            Duration::ZERO
        };
        Some(((of, answer), pause))
    });
}

/// Position in the events of one control plane.
struct EventCursor {
    /// None before the first answer, which gives the position.
    after: Option<u64>,
    /// Start time of the control plane's event numbers.
    began: Option<u64>,
}

impl EventCursor {
    fn question(&self, wait: u64) -> String {
        match self.after {
            None => "/debug/events".to_owned(),
            Some(after) => format!("/debug/events?after={after}&wait={wait}"),
        }
    }

    /// Takes a page. After a restart of the control plane the page has none of the requested events; then all of
    /// its events are still to come.
    fn heard(&mut self, page: &Value) -> Result<ProxyEvents, String> {
        let number = |key: &str| page[key].as_u64();
        let last = number("last")
            .ok_or_else(|| "the events page of the control plane has no number".to_owned())?;
        let began = number("began");
        let anew = self.began.is_some() && self.began != began;
        self.began = began;
        if anew {
            self.after = Some(0);
            return Ok(ProxyEvents {
                anew,
                ..ProxyEvents::default()
            });
        }
        self.after = Some(last);
        Ok(ProxyEvents {
            events: page["events"].as_array().cloned().unwrap_or_default(),
            missed: number("missed").unwrap_or(0),
            anew,
        })
    }
}

/// Output so far, and the control planes that it is about.
struct EventPrinter<W> {
    addresses: Vec<String>,
    /// True for each control plane that could not be asked the last time.
    gone: Vec<bool>,
    json: bool,
    past: bool,
    out: W,
}

impl<W: Write> EventPrinter<W> {
    /// Prints the events; returns false if the reader is gone.
    fn say(&mut self, answers: Vec<Answer>) -> Result<bool, String> {
        let several = self.addresses.len() > 1;
        let mut events = Vec::new();
        for (of, answer) in answers {
            let address = &self.addresses[of];
            let was_gone = std::mem::replace(&mut self.gone[of], answer.is_err());
            match answer {
                Err(reason) if !several => return Err(reason),
                Err(_) if was_gone => {}
                Err(reason) => {
                    eprintln!("voile events: {reason}; retrying until it answers");
                }
                Ok(heard) => {
                    if was_gone {
                        eprintln!("voile events: {address} answers again");
                    }
                    if heard.missed > 0 && !self.past {
                        eprintln!("voile events: {} missed at {address}", heard.missed);
                    }
                    events.extend(heard.events.into_iter().map(|event| (address, event)));
                }
            }
        }
        events.sort_by_key(|(_, event)| event["at"].as_u64());
        for (address, mut event) in events {
            let line = match (self.json, several) {
                (true, true) => {
                    event["control_plane"] = address.clone().into();
                    event.to_string()
                }
                (true, false) => event.to_string(),
                (false, true) => line(&event, Some(address)),
                (false, false) => line(&event, None),
            };
            // The reader may be gone.
            let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
            if written.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn line(event: &Value, from: Option<&str>) -> String {
    let at = event["at"].as_u64().unwrap_or(0);
    let (seconds, milliseconds) = (at / 1000, at % 1000);
    let time = format!(
        "{:02}:{:02}:{:02}.{milliseconds:03}Z",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    );
    let stream = || format!("{} (stream {})", word(event, "identity"), event["stream"]);
    let said = match word(event, "event") {
        "published" => {
            let changed = event["changed"].as_object().into_iter().flatten();
            let changed: Vec<String> = changed
                .map(|(kind, count)| format!("{count} {}", short(kind)))
                .collect();
            format!(
                "published {} ({})",
                word(event, "version"),
                changed.join(", ")
            )
        }
        "in-sync" => format!(
            "in sync   {} at all {} proxies",
            word(event, "version"),
            event["proxies"]
        ),
        "connected" => format!("connected {}", stream()),
        "disconnected" => format!("gone      {}: {}", stream(), word(event, "reason")),
        "refused" => format!(
            "REFUSED   {}: {}: {}",
            stream(),
            short(word(event, "type")),
            word(event, "reason")
        ),
        "state-lost" => format!("STATE LOST {}", word(event, "reason")),
        "state-back" => "state back".to_owned(),
        "certified" => format!(
            "certified {} for {}",
            word(event, "identity"),
            word(event, "asked_by")
        ),
        other => format!("{other} {event}"),
    };
    match from {
        Some(address) => format!("{time} {address} {said}"),
        None => format!("{time} {said}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        for (event, expected) in [
            (
                json!({"at": 3_661_005, "event": "published", "version": "v2",
                    "changed": {"type.googleapis.com/istio.workload.Address": 3}}),
                "01:01:01.005Z published v2 (3 Address)",
            ),
            (
                json!({"at": 0, "event": "in-sync", "version": "v2", "proxies": 2000}),
                "00:00:00.000Z in sync   v2 at all 2000 proxies",
            ),
            (
                json!({"at": 0, "event": "refused", "identity": "x", "stream": 4, "type": "a/b.C", "reason": "no"}),
                "00:00:00.000Z REFUSED   x (stream 4): C: no",
            ),
        ] {
            assert_eq!(line(&event, None), expected);
        }
    }

    fn heard(events: &[Value]) -> Result<ProxyEvents, String> {
        Ok(ProxyEvents {
            events: events.to_vec(),
            ..ProxyEvents::default()
        })
    }

    #[test]
    fn what_several_say_is_told_in_order_by_name_and_one_that_is_gone_ends_nothing() {
        let address = |port: u16| format!("127.0.0.1:{port}");
        let event = |at: u64| json!({"at": at, "event": "in-sync", "version": "v", "proxies": at});
        let mut shown = EventPrinter {
            addresses: vec![address(1), address(2)],
            gone: vec![false; 2],
            json: false,
            past: true,
            out: Vec::new(),
        };
        let first = vec![(0, heard(&[event(1), event(3)])), (1, heard(&[event(2)]))];
        assert_eq!(shown.say(first), Ok(true));
        assert_eq!(shown.say(vec![(0, Err("gone".to_owned()))]), Ok(true));
        assert_eq!(shown.say(vec![(1, heard(&[event(4)]))]), Ok(true));
        shown.json = true;
        assert_eq!(shown.say(vec![(0, heard(&[event(5)]))]), Ok(true));
        let text = String::from_utf8(std::mem::take(&mut shown.out)).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        let one = |at: u64, port: u16| {
            format!("00:00:00.00{at}Z 127.0.0.1:{port} in sync   v at all {at} proxies")
        };
        assert_eq!(lines[..4], [one(1, 1), one(2, 2), one(3, 1), one(4, 2)]);
        let last: Value = serde_json::from_str(lines[4]).expect("JSON");
        assert_eq!(last["control_plane"], "127.0.0.1:1");
        // One alone that is gone is the end.
        shown.addresses.truncate(1);
        assert_eq!(
            shown.say(vec![(0, Err("gone".to_owned()))]),
            Err("gone".to_owned())
        );
    }

    #[test]
    fn one_that_was_started_again_is_asked_for_all_that_it_remembers() {
        let mut place = EventCursor {
            after: Some(0),
            began: None,
        };
        let page = |began: u64, last: u64| json!({"began": began, "last": last, "missed": 0, "events": [last]});
        let seen = place.heard(&page(10, 7)).expect("a page");
        assert_eq!(
            (seen.events.len(), seen.anew, place.after),
            (1, false, Some(7))
        );
        // Its numbers may be higher by now: they are of another life.
        for (began, last) in [(20, 3), (30, 9)] {
            let seen = place.heard(&page(began, last)).expect("a page");
            assert_eq!(
                (seen.events.len(), seen.anew, place.after),
                (0, true, Some(0))
            );
            let seen = place.heard(&page(began, last)).expect("a page");
            assert_eq!(
                (seen.events.len(), seen.anew, place.after),
                (1, false, Some(last))
            );
        }
        assert!(place.heard(&json!({})).is_err());
    }
}
