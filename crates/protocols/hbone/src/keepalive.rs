//! Detection of a dead peer. If the peer does not answer the last message, a PING follows; without an answer to the
//! PING the connection is over. Pure. An idle connection has no timer: the kernel's keep-alive notices a peer that is
//! gone.

use std::time::{Duration, Instant};

/// Time for which a peer may leave a message unanswered before a PING: ztunnel pings every 10 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit of the answer to the PING.
const LAST_PATIENCE: Duration = Duration::from_secs(20);

/// Time limits of the two waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepaliveTimeouts {
    /// For a word after ours.
    pub(crate) first: Duration,
    /// For the answer to a PING.
    pub(crate) last: Duration,
}

impl Default for KeepaliveTimeouts {
    fn default() -> Self {
        Self {
            first: PATIENCE,
            last: LAST_PATIENCE,
        }
    }
}

/// Action when the timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepaliveAction {
    /// It is too early: look again then.
    Wait(Instant),
    /// Ask, and look again then.
    Ask(Instant),
    /// The peer is dead.
    GiveUp,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Keepalive {
    patience: KeepaliveTimeouts,
    /// When we first said something that nothing came after.
    waiting: Option<Instant>,
    /// When we asked.
    asked: Option<Instant>,
}

impl Keepalive {
    pub(crate) fn new(patience: KeepaliveTimeouts) -> Self {
        Self {
            patience,
            ..Self::default()
        }
    }

    /// Something came, or went.
    pub(crate) fn moved(&mut self, heard: bool, said: bool, now: impl FnOnce() -> Instant) {
        if heard {
            (self.waiting, self.asked) = (None, None);
        } else if said && self.waiting.is_none() {
            self.waiting = Some(now());
        }
    }

    /// When to look, if there is anything to look for.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.asked {
            Some(asked) => Some(asked + self.patience.last),
            None => self.waiting.map(|since| since + self.patience.first),
        }
    }

    /// The time may have come.
    pub(crate) fn ring(&mut self, now: Instant) -> KeepaliveAction {
        match self.due() {
            None => KeepaliveAction::Wait(now + self.patience.first),
            Some(due) if now < due => KeepaliveAction::Wait(due),
            Some(_) if self.asked.is_some() => KeepaliveAction::GiveUp,
            Some(_) => {
                self.asked = Some(now);
                KeepaliveAction::Ask(now + self.patience.last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_asked_only_after_what_it_did_not_answer_and_given_up_only_after_that() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Keepalive::default();
        pulse.moved(false, false, || at(0));
        assert_eq!(pulse.due(), None, "nobody spoke");
        pulse.moved(false, true, || at(1));
        pulse.moved(false, true, || at(5));
        assert_eq!(pulse.due(), Some(at(11)), "from the first word on");
        assert_eq!(pulse.ring(at(10)), KeepaliveAction::Wait(at(11)));
        pulse.moved(true, true, || at(10));
        assert_eq!(pulse.due(), None, "it answered");
        pulse.moved(false, true, || at(20));
        assert_eq!(pulse.ring(at(30)), KeepaliveAction::Ask(at(50)));
        // The question itself is no word that waits anew.
        pulse.moved(false, true, || at(30));
        assert_eq!(pulse.ring(at(49)), KeepaliveAction::Wait(at(50)));
        let mut answered = Keepalive { ..pulse };
        answered.moved(true, false, || at(49));
        assert_eq!(answered.due(), None, "the answer is a sign of life");
        assert_eq!(pulse.ring(at(50)), KeepaliveAction::GiveUp);
    }
}
