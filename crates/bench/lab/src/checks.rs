//! Checks of a proof: a claim, its verdict and the evidence; and the pace at which proofs look again.

use std::time::Duration;

use voile_report::record::{Check, CheckVerdict, PathProof};

/// Failed checks of a proof, in words.
pub(crate) fn failures(proof: &PathProof) -> Vec<String> {
    let failed = proof
        .checks
        .iter()
        .filter(|check| check.verdict == CheckVerdict::Failed);
    failed
        .map(|check| format!("proof of path failed: {}: {}", check.claim, check.evidence))
        .collect()
}

pub(crate) fn check(claim: impl Into<String>, shown: bool, evidence: impl Into<String>) -> Check {
    let verdict = if shown {
        CheckVerdict::Proven
    } else {
        CheckVerdict::Failed
    };
    Check {
        claim: claim.into(),
        verdict,
        evidence: evidence.into(),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "paces a loop with a deadline: a process cannot be waited for with one"
)]
pub(crate) fn pace() {
    std::thread::sleep(Duration::from_millis(5));
}
