//! The echo server's descriptions of its gRPC methods equal those of `proto/`, compiled again.

use std::path::Path;

#[test]
fn committed_descriptions_are_fresh() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files = [
        "echo.proto",
        "health.proto",
        "ping.proto",
        "reflection_v1.proto",
        "reflection_v1alpha.proto",
    ];
    let mut compiler = protox::Compiler::new([&here]).unwrap();
    compiler.open_files(files).unwrap();
    // Without the positions of comments, which no client requests.
    let wanted = compiler.include_imports(true).encode_file_descriptor_set();
    let committed = here.join("served.binpb");
    if std::env::var_os("VOILE_BLESS").is_some() {
        std::fs::write(&committed, &wanted).unwrap();
    }
    assert!(
        std::fs::read(&committed).unwrap() == wanted,
        "run `VOILE_BLESS=1 cargo test -p voile-load --test it descriptions` and commit"
    );
}
