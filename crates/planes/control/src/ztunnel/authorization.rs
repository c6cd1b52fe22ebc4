//! Parts of an AuthorizationPolicy that a node proxy (ztunnel) cannot evaluate, in words for the log.

use voile_policy::authorization::{Action, Policy};
use voile_policy::connections::UnseenTerm;

/// What a node proxy does not obey as written: the action, and the conditions of each rule that it does not know.
pub(super) fn problems(policy: &Policy, unseen: &[UnseenTerm]) -> Vec<String> {
    let mut problems = Vec::new();
    match &policy.action {
        Action::Allow | Action::Deny => {}
        Action::Audit => problems.push(
            "a node proxy (ztunnel) does not support AUDIT; no connection is audited".to_owned(),
        ),
        Action::Custom(provider) => {
            let word = if policy.dry_run { "would be" } else { "is" };
            problems.push(format!(
                "a node proxy (ztunnel) cannot call provider `{provider}`; connections that it {word} asked about {word} denied"
            ));
        }
    }
    let consequence = match policy.action {
        Action::Allow => "the rule allows nothing",
        _ => "the rule ignores that condition, so it denies more than written",
    };
    for of_rule in unseen.chunk_by(|one, other| one.rule == other.rule) {
        let names = of_rule.iter().map(|one| one.term.attribute.to_string());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        problems.push(format!(
            "rules[{}] matches on {}, which a node proxy (ztunnel) does not know: {consequence}",
            of_rule[0].rule,
            names.join(", ")
        ));
    }
    problems
}

#[cfg(test)]
mod tests;
