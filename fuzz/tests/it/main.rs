//! Replays the corpora: everything a fuzzer found worth keeping, every finding it ever had, and all their beginnings.

use std::path::Path;

use voile_fuzz::PROPERTIES;

#[test]
fn every_input_of_the_corpora_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, property) in PROPERTIES {
        let folder = corpora.join(name);
        let inputs = std::fs::read_dir(&folder).expect("a corpus for each property");
        let mut count = 0;
        for input in inputs.flatten() {
            let bytes = std::fs::read(input.path()).expect("an input");
            property(&bytes);
            for end in 0..bytes.len().min(256) {
                property(&bytes[..end]);
            }
            count += 1;
        }
        assert!(count >= 10, "{name} has {count} inputs");
    }
}
