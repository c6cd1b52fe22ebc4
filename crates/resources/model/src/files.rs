//! The only place of this crate that touches the file system: reads the YAML files of a folder.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::source::SourceFile;

/// Largest file that is read, in bytes: far above any hand-written mesh, far below what would exhaust memory.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Most files of one folder: a mistaken `/` must not be read to its end.
pub const MAX_FILES: usize = 100_000;
/// Deepest folder: a symbolic link to a parent would go on for ever.
pub const MAX_FOLDER_DEPTH: usize = 32;

/// The contents of a folder.
#[derive(Debug)]
pub struct FolderListing {
    /// Every file that is read, sorted by path.
    pub files: Vec<(PathBuf, SourceFile)>,
    /// True if some of it is a link or is unreadable. Changes elsewhere may then change its contents.
    pub links: bool,
}

/// Reads every `.yaml`, `.yml` and `.json` file below `directory`, sorted by path; hidden files and folders are skipped.
/// A file or inner folder that cannot be read is in the answer with its reason. Fails only when the directory itself
/// cannot be read, or holds more files than `MAX_FILES`.
pub fn read_directory(directory: &Path) -> io::Result<Vec<SourceFile>> {
    let listing = list_directory(directory)?;
    Ok(listing.files.into_iter().map(|(_, file)| file).collect())
}

/// As `read_directory`, with the paths.
///
/// # Errors
/// The directory itself cannot be read, or holds more files than `MAX_FILES`.
pub fn list_directory(directory: &Path) -> io::Result<FolderListing> {
    let mut found = Vec::new();
    let mut links = false;
    collect(directory, 0, &mut found, &mut links)?;
    found.sort();
    links |= found.iter().any(|(_, problem)| problem.is_some());
    let files = found
        .into_iter()
        .map(|(path, problem)| {
            let file = made(&path, problem);
            (path, file)
        })
        .collect();
    Ok(FolderListing { files, links })
}

/// Returns true if a path inside a folder is skipped: a file or folder on the path is hidden.
#[must_use]
pub fn is_hidden(inner: &Path) -> bool {
    let mut parts = inner.components();
    parts.any(|part| part.as_os_str().to_string_lossy().starts_with('.'))
}

/// Says that files in `own`, a folder of this program's, would be read as resources of `directory`, and the cure. The folders may
/// not exist yet.
///
/// # Errors
/// `own` is below `directory` and not hidden.
pub fn expect_outside(directory: &Path, own: &Path) -> Result<(), String> {
    let real = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        path.ancestors().find_map(|known| {
            let rest = path.strip_prefix(known).ok()?;
            Some(known.canonicalize().ok()?.join(rest))
        })
    };
    let inner = real(own).zip(real(directory));
    let inner =
        inner.and_then(|(own, directory)| Some(own.strip_prefix(directory).ok()?.to_owned()));
    match inner.is_some_and(|inner| !is_hidden(&inner)) {
        true => Err(format!(
            "{} is inside the mesh's folder {}, where its files would be read as resources; use a folder outside, or one whose name begins with a dot",
            own.display(),
            directory.display()
        )),
        false => Ok(()),
    }
}

/// Returns true if a file of this name is read.
#[must_use]
pub fn is_configuration(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
}

/// Reads one file; one that cannot be read comes with its reason.
#[must_use]
pub fn read_file(path: &Path) -> SourceFile {
    made(path, None)
}

/// A path to read, and why it cannot be when that is already known.
type Found = (PathBuf, Option<String>);

fn collect(
    directory: &Path,
    depth: usize,
    found: &mut Vec<Found>,
    links: &mut bool,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'))
        {
            continue;
        }
        // Only files and folders report their own changes; everything else counts as a link.
        let kind = entry.file_type();
        *links |= !kind.is_ok_and(|kind| kind.is_file() || kind.is_dir());
        if path.is_dir() {
            let inner = if depth + 1 >= MAX_FOLDER_DEPTH {
                Err(io::Error::other(format!(
                    "folders are nested more than {MAX_FOLDER_DEPTH} deep"
                )))
            } else {
                collect(&path, depth + 1, found, links)
            };
            if let Err(error) = inner {
                if found.len() >= MAX_FILES {
                    return Err(error);
                }
                found.push((path, Some(error.to_string())));
            }
        } else if is_configuration(&path) {
            found.push((path, None));
        }
        if found.len() >= MAX_FILES {
            return Err(io::Error::other(format!("more than {MAX_FILES} files")));
        }
    }
    Ok(())
}

fn made(path: &Path, problem: Option<String>) -> SourceFile {
    let name = path.to_string_lossy().into_owned();
    match problem.map_or_else(|| read_text(path), Err) {
        Ok(text) => SourceFile::new(name, text),
        Err(reason) => SourceFile::unreadable(name, reason),
    }
}

/// Reads one file, with the same limits.
///
/// # Errors
/// Says why not: permission, not a regular file, not UTF-8, too large.
pub fn read_text(path: &Path) -> Result<String, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    // Opening a pipe would wait for a writer.
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that grew since.
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("larger than the {MAX_FILE_BYTES} bytes allowed"));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}
