//! Replays the corpora: everything a fuzzer found worth keeping, every finding it ever had, and all their beginnings.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use voile_fuzz::PROPERTIES;

#[test]
fn every_input_of_the_corpora_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut broken = Vec::new();
    for (name, property) in PROPERTIES {
        let folder = corpora.join(name);
        let inputs = std::fs::read_dir(&folder).expect("a corpus for each property");
        let mut count = 0;
        for input in inputs.flatten() {
            let bytes = std::fs::read(input.path()).expect("an input");
            let beginnings = (0..bytes.len().min(256)).chain([bytes.len()]);
            for end in beginnings {
                let held = catch_unwind(AssertUnwindSafe(|| property(&bytes[..end])));
                if held.is_err() {
                    broken.push(format!("{name}/{:?}, {end} bytes", input.file_name()));
                    break;
                }
            }
            count += 1;
        }
        assert!(count >= 10, "{name} has {count} inputs");
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
