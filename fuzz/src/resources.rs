//! Resources: any text gives a mesh and complaints with their places; good resources beside it stay in force.

use voile_model::{Diagnostic, SourceFile, check, codes};

/// Stands behind every text and must never be hidden by it.
const GOOD: &str = "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: good}\n";
/// Largest size of complaints for each byte of text, and beside, in bytes.
const COMPLAINT_PER_BYTE: usize = 512;
const COMPLAINT_AT_LEAST: usize = 64 * 1024;

/// A file of resources.
pub(crate) fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let file = SourceFile::new("mesh.yaml", format!("{text}{GOOD}"));
    let sources = [file];
    let (mesh, diagnostics) = check(&sources, None);
    let good = mesh
        .namespaces
        .iter()
        .any(|(name, _)| name.as_str() == "good");
    assert!(good, "the good document is hidden: {diagnostics:?}");
    let lines: Vec<&str> = text.lines().chain(GOOD.lines()).collect();
    let mut weight = 0;
    for complaint in &diagnostics {
        well_said(complaint, &lines);
        weight += complaint.to_string().len();
    }
    let limit = COMPLAINT_AT_LEAST + COMPLAINT_PER_BYTE * text.len();
    assert!(weight <= limit, "{weight} bytes of complaints");
    // Resources in force stay in force, and complaints stay, but for the one about a first start.
    let (_, again) = check(&sources, Some(&mesh));
    let is_lasting = |one: &&Diagnostic| one.code != codes::NEVER_READ;
    let lasting = diagnostics.iter().filter(is_lasting).count();
    assert_eq!(again.len(), lasting, "{again:?}");
}

fn well_said(complaint: &Diagnostic, lines: &[&str]) {
    let place = &complaint.source;
    assert!(!complaint.message.is_empty());
    assert!(place.line >= 1 && place.column >= 1, "{complaint}");
    let line = usize::try_from(place.line).expect("fits");
    assert!(line <= lines.len() + 1, "{complaint}");
}
