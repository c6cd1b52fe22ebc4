//! Checks of a finished slice: events that were not done, a clock that was set, and proxies that did not count what the generator
//! measured. Pure; `running_setup` calls them.

use voile_report::record::{Record, SliceRun};

use crate::contestants::contestant::Counts;
use crate::slice::CLOCK_SET;

/// Events that could not be done are named once for each contestant.
pub(super) fn note_undone(record: &mut Record, run: &SliceRun) {
    for event in &run.events {
        let Some(why) = &event.failure else { continue };
        let note = format!("{}: {} was not done: {why}.", run.contestant, event.action);
        if !record.notes.contains(&note) {
            record.notes.push(note);
        }
    }
}

/// Adds a note that the clock was set during a slice, and what that did and did not spoil.
pub(super) fn note_clock(record: &mut Record, run: &SliceRun) {
    let set = run.invalid_reasons.iter();
    for why in set.filter(|why| why.starts_with(CLOCK_SET)) {
        record.notes.push(format!(
            "In round {} {why}. The slice of {} does not count; latencies use a monotonic clock, which cannot be set.",
            run.round, run.contestant
        ));
    }
}

/// Each proxy on the path must have counted at least what the generator measured.
pub(super) fn uncounted(
    expected: &[(&'static str, u64)],
    before: Counts,
    after: Counts,
    what: &str,
) -> Vec<String> {
    let (before, after) = match (before, after) {
        (Ok(Some(before)), Ok(Some(after))) => (before, after),
        (Ok(None), _) | (_, Ok(None)) => return Vec::new(),
        (Err(why), _) | (_, Err(why)) => return vec![why],
    };
    let otherwise = match what {
        "refusals" => "let in",
        _ => "refused",
    };
    expected
        .iter()
        .filter_map(|(role, carried)| {
            let grown = after
                .get(role)
                .unwrap_or(&0)
                .saturating_sub(*before.get(role).unwrap_or(&0));
            (grown < *carried).then(|| {
                format!(
                    "the {role} counted {grown} {what}, the generator {carried}: some took another path or were {otherwise}"
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::instance::{CLIENT, SERVER};

    #[test]
    fn a_proxy_that_was_bypassed_in_a_slice_is_named() {
        let both = |carried| [(CLIENT, carried), (SERVER, carried)];
        let counts =
            |client, server| Ok(Some(BTreeMap::from([(CLIENT, client), (SERVER, server)])));
        for (client, server, expected) in [
            (110, 150, None),
            (
                110,
                149,
                Some("the server-sidecar counted 99 good answers, the generator 100"),
            ),
            (
                10,
                150,
                Some("the client-sidecar counted 0 good answers, the generator 100"),
            ),
        ] {
            let (before, after) = (counts(10, 50), counts(client, server));
            let said = uncounted(&both(100), before, after, "good answers");
            match expected {
                None => assert_eq!(said, Vec::<String>::new()),
                Some(words) => assert!(said.len() == 1 && said[0].contains(words), "{said:?}"),
            }
        }
        // A proxy without counts is judged by the proof's capture alone. A proxy whose count cannot be read is named.
        assert!(uncounted(&both(100), Ok(None), Ok(None), "connections").is_empty());
        let gone = Err("its page is gone".to_owned());
        let said = uncounted(&both(100), counts(0, 0), gone, "connections");
        assert_eq!(said, ["its page is gone"]);
        // Each proxy is held to the unit that it counts: here one to connections, the other to requests.
        let each = [(CLIENT, 16), (SERVER, 100)];
        let said = uncounted(&each, counts(0, 0), counts(16, 99), "good answers");
        assert!(
            said.len() == 1 && said[0].contains("server-sidecar counted 99"),
            "{said:?}"
        );
    }
}
