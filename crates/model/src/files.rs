//! The only place of this crate that touches the file system: reads the YAML files of a folder.

use std::io;
use std::path::Path;

use crate::source::SourceFile;

/// Largest file that is read, in bytes: far above any hand-written mesh, far below what would exhaust memory.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Reads every `.yaml`, `.yml` and `.json` file below `directory`, sorted by path; hidden files and folders are skipped.
/// A file that cannot be read is in the answer with its reason. Fails only when the directory itself cannot be read.
pub fn read_directory(directory: &Path) -> io::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn collect(directory: &Path, files: &mut Vec<SourceFile>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
        {
            files.push(read_file(&path));
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> SourceFile {
    let name = path.to_string_lossy().into_owned();
    match std::fs::read_to_string(path) {
        Ok(text) => SourceFile::new(name, text),
        Err(error) => SourceFile::unreadable(name, error.to_string()),
    }
}
