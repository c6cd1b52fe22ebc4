//! Targets and variants of a definition: figures to be reached, and Voile with a change.

use voile_report::record::FigureTarget;

use super::written::{ComplaintLocation, WrittenTarget, WrittenVariant};
use super::{CONTESTANTS, Variant};
use crate::definition::error::DefinitionError;

pub(super) fn variants(
    place: &ComplaintLocation<'_>,
    written: Vec<WrittenVariant>,
) -> Result<Vec<Variant>, DefinitionError> {
    let mut variants: Vec<Variant> = Vec::new();
    for variant in written {
        place.word("variant of", &variant.of, &["voile"])?;
        let name = variant.name.get_ref().clone();
        let taken = CONTESTANTS.contains(&name.as_str()) || variants.iter().any(|v| v.name == name);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if taken || name.is_empty() || !name.chars().all(plain) {
            let why =
                format!("variant \"{name}\" needs a name of its own of letters, digits and '-'");
            return Err(place.error(variant.name.span(), why));
        }
        variants.push(Variant {
            name,
            title: variant.title,
            arguments: variant.arguments,
            replace: variant
                .replace
                .into_iter()
                .map(|replace| (replace.from, replace.to))
                .collect(),
            append: variant.append,
            counts: variant.counts,
            watched: variant.watched,
            program: None,
        });
    }
    Ok(variants)
}

pub(super) fn targets(
    place: &ComplaintLocation<'_>,
    written: Vec<WrittenTarget>,
) -> Result<Vec<FigureTarget>, DefinitionError> {
    written
        .into_iter()
        .map(|target| {
            let bounds = [
                target.at_most.is_some(),
                target.at_least.is_some(),
                target.within_noise,
            ];
            if bounds.iter().filter(|bound| **bound).count() != 1 {
                let why = "a target has exactly one of at_most, at_least and within_noise";
                return Err(place.error(target.row.span(), why));
            }
            if target.within_noise && target.of.is_empty() && target.ratio_to.is_none() {
                let why =
                    "within_noise needs `of` or `ratio_to`, the figure to compare with";
                return Err(place.error(target.row.span(), why));
            }
            let beside = [
                !target.of.is_empty(),
                target.minus.is_some(),
                target.ratio_to.is_some(),
                target.more_than.is_some(),
            ];
            if beside.iter().filter(|one| **one).count() > 1 {
                let why = "a target is a ratio (`of` contestants, `ratio_to` another cell) or a difference (`minus`, `more_than`), not both";
                return Err(place.error(target.row.span(), why));
            }
            Ok(FigureTarget {
                row: target.row.into_inner(),
                figures: target.figures,
                contestant: target.contestant.unwrap_or_else(|| "voile".to_owned()),
                mode: target.mode,
                tls: target.tls,
                kind: target.kind,
                protocol: target.protocol,
                arrival: target.arrival,
                rate: target.rate,
                connections: target.connections,
                at_most: target.at_most,
                at_least: target.at_least,
                of: target.of,
                minus: target.minus,
                generated: target.generated,
                verdict: target.verdict,
                hit: target.hit,
                token: target.token,
                ratio_to: target.ratio_to.map(Into::into),
                more_than: target.more_than.map(Into::into),
                within_noise: target.within_noise,
                beside: target.beside,
            })
        })
        .collect()
}
