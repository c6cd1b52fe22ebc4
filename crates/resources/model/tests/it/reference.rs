//! The reference page of telemetry names every command and every attribute there is.

use voile_model::log_filter::Attribute;
use voile_model::log_format::Fact;

#[test]
fn the_reference_names_every_command_and_attribute() {
    let page = include_str!("../../../../../docs/reference/telemetry.md");
    let commands = Fact::NAMES
        .iter()
        .map(|(name, fact)| (format!("`%{name}%`"), fact.meaning()));
    let attributes = Attribute::NAMES.iter();
    let attributes = attributes.map(|(name, attribute)| (format!("`{name}`"), attribute.meaning()));
    let missing: Vec<_> = commands
        .chain(attributes)
        .filter(|(name, meaning)| !(page.contains(name) && page.contains(meaning)))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/reference/telemetry.md lacks {missing:#?}"
    );
}
