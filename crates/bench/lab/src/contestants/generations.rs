//! Authorization policies that an experiment's events change. Each generation refuses another path, by which the lab recognises
//! it.

use std::fmt::Write as _;
use std::path::Path;

use crate::contestants::effect_evidence::EffectEvidence;

/// The files of a mesh that hold them: policies that are changed at once, and one that is pushed by itself.
const CHANGED: &str = "changed.yaml";
const PUSHED: &str = "pushed.yaml";

/// Number of changes of each kind in a slice, and the target of the policies.
#[derive(Debug)]
pub(super) struct Generations {
    /// The field of a policy that selects its target.
    binding: &'static str,
    changed: u32,
    pushed: u32,
}

impl Generations {
    /// For policies with that `selector` or `targetRefs`.
    pub(super) fn bound(binding: &'static str) -> Self {
        Self {
            binding,
            changed: 0,
            pushed: 0,
        }
    }

    /// Changes all policies at once. The load is always allowed, but by another policy each time. A proxy with a mixture of old
    /// and new policies refuses it.
    pub(super) fn change(&mut self, config: &Path, count: u32) -> Result<EffectEvidence, String> {
        self.changed += 1;
        let text = policies(self.binding, count, self.changed);
        crate::record_folder::write(&config.join(CHANGED), &text)?;
        Ok(verdicts("generation", self.changed))
    }

    /// Adds or changes one policy that does not concern the load.
    pub(super) fn push(&mut self, config: &Path) -> Result<EffectEvidence, String> {
        self.pushed += 1;
        let denied = path("pushed", self.pushed + 1);
        let text = policy(self.binding, "pushed", "DENY", &to(&denied));
        crate::record_folder::write(&config.join(PUSHED), &text)?;
        Ok(verdicts("pushed", self.pushed))
    }

    /// Takes all of them away.
    pub(super) fn forget(&mut self, config: &Path) -> Result<(), String> {
        let kinds = [(CHANGED, &mut self.changed), (PUSHED, &mut self.pushed)];
        for (file, generation) in kinds {
            if std::mem::take(generation) > 0 {
                let file = config.join(file);
                std::fs::remove_file(&file)
                    .map_err(|e| format!("removing {}: {e}", file.display()))?;
            }
        }
        Ok(())
    }
}

/// By what a generation is seen: it refuses what the one before did not, and the other way round.
fn verdicts(what: &str, generation: u32) -> EffectEvidence {
    EffectEvidence::Verdicts {
        allowed: path(what, generation),
        denied: path(what, generation + 1),
    }
}

fn path(what: &str, generation: u32) -> String {
    format!("/{what}-{}", generation % 2)
}

fn to(path: &str) -> String {
    format!("to: [{{operation: {{paths: [{path}]}}}}]")
}

fn policy(binding: &str, name: &str, action: &str, rule: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: lab}}\n\
         spec: {{{binding}, action: {action}, rules: [{{{rule}}}]}}\n"
    )
}

/// So many policies, all different from the previous generation.
fn policies(binding: &str, count: u32, generation: u32) -> String {
    let mut text = String::new();
    let turn = generation % 2;
    for number in 0..count {
        let nobody = format!("/nobody/{generation}/{number}");
        let (action, rule) = match number {
            0 | 1 if number == turn => {
                let anybody = "from: [{source: {ipBlocks: [\"0.0.0.0/0\"]}}]";
                ("ALLOW", anybody.to_owned())
            }
            2 | 3 if number == turn + 2 => ("DENY", to(&path("generation", generation + 1))),
            2 | 3 => ("DENY", to(&nobody)),
            _ => ("ALLOW", to(&nobody)),
        };
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "{}",
            policy(binding, &format!("changed-{number}"), action, &rule)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_of_a_generation_is_as_in_the_one_before() {
        let of = |generation| policies("selector: {}", 6, generation);
        let (one, two) = (of(1), of(2));
        let (one, two): (Vec<&str>, Vec<&str>) =
            (one.split("---").collect(), two.split("---").collect());
        assert_eq!((one.len(), two.len()), (7, 7));
        for (before, after) in one.iter().zip(&two).skip(1) {
            assert_ne!(before, after);
        }
    }
}
