//! Reading a folder: which files, in which order, and what cannot be read.

use std::fs;
use std::path::PathBuf;

use voile_model::files::{expect_outside, read_directory};

/// A folder of this test alone, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("voile-model-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn read(&self) -> Vec<(String, Result<String, String>)> {
        let prefix = format!("{}/", self.0.display());
        let files = read_directory(&self.0).unwrap();
        files
            .into_iter()
            .map(|file| (file.name.trim_start_matches(&prefix).to_owned(), file.text))
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn yaml_and_json_files_are_read_in_order_and_hidden_ones_skipped() {
    let folder = Folder::new("order");
    for name in [
        "b.yml",
        "a.yaml",
        "sub/c.json",
        ".hidden.yaml",
        ".git/x.yaml",
        "readme.md",
    ] {
        folder.write(name, name);
    }
    let names: Vec<_> = folder
        .read()
        .into_iter()
        .map(|(name, text)| (text.unwrap() == name, name))
        .collect();
    assert_eq!(
        names,
        [
            (true, "a.yaml".to_owned()),
            (true, "b.yml".to_owned()),
            (true, "sub/c.json".to_owned())
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_there_with_its_reason() {
    let folder = Folder::new("unreadable");
    folder.write("binary.yaml", [b'a', 0xff, 0xfe]);
    folder.write("huge.yaml", vec![b'#'; 16 * 1024 * 1024 + 1]);
    std::os::unix::fs::symlink("nowhere", folder.0.join("dangling.yaml")).unwrap();
    std::os::unix::fs::symlink(".", folder.0.join("loop")).unwrap();
    let found = folder.read();
    let reason = |name: &str| {
        found
            .iter()
            .find(|(n, _)| n == name)
            .unwrap()
            .1
            .clone()
            .unwrap_err()
    };
    assert!(reason("binary.yaml").contains("not UTF-8 at byte 1"));
    assert!(reason("huge.yaml").contains("larger than"));
    assert!(reason("dangling.yaml").contains("No such file"));
    assert!(
        found
            .iter()
            .any(|(name, text)| name.starts_with("loop/loop") && text.is_err())
    );
}

#[test]
fn a_missing_folder_is_an_error() {
    assert!(read_directory(&std::env::temp_dir().join("voile-model-missing")).is_err());
}

#[test]
fn a_folder_of_our_own_stands_outside_of_the_meshs_or_is_hidden_in_it() {
    let folder = Folder::new("outside");
    folder.write("mesh/web.yaml", "");
    std::os::unix::fs::symlink(folder.0.join("mesh"), folder.0.join("linked")).expect("linked");
    for (own, inside) in [
        ("mesh", true),
        ("mesh/state", true),
        ("mesh/not/yet/there", true),
        ("linked/state", true),
        ("mesh/.state", false),
        ("state", false),
        ("mesh-state", false),
    ] {
        let told = expect_outside(&folder.0.join("mesh"), &folder.0.join(own));
        assert_eq!(told.is_err(), inside, "{own}: {told:?}");
    }
}
