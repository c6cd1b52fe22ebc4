//! Import circles: source files of a crate that use each other, directly or through others. Paths are read as text: `use`
//! declarations and paths that begin with `crate`, `super` or a module's name. A re-export leads to the file that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files of one circle; larger ones are listed.
const MAX_CIRCLE: usize = 5;

/// Circles that are larger, by their crate. A number may only fall; a circle that fits leaves the list.
const LARGE_CIRCLES: &[(&str, &[usize])] = &[("crates/resources/model", &[21])];

/// A module by its path inside its crate; the crate's root is empty.
type Module = Vec<String>;

/// An imported path, and the name by which the file knows it.
#[derive(Debug)]
struct Import {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

/// A source file without comments, texts, tests and imports, and its imports.
#[derive(Debug, Default)]
struct Source {
    code: String,
    imports: Vec<Import>,
}

/// Removes comments, the contents of texts, and tests at the end.
fn without_prose(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().map(|line| {
        let mut outside = true;
        let mut kept = String::new();
        for part in line.split("//").next().unwrap_or_default().split('"') {
            kept.push_str(if outside { part } else { "" });
            outside = !outside;
        }
        kept + "\n"
    });
    lines.collect()
}

/// Reads one tree of a `use` declaration.
fn read_tree(tree: &str, before: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let tree = tree.trim();
    let mut path = before.to_vec();
    if let Some((head, group)) = tree.split_once('{') {
        path.extend(segments(head));
        let group = group.strip_suffix('}').unwrap_or(group);
        let (mut depth, mut begin) = (0, 0);
        for (at, letter) in group.char_indices().chain([(group.len(), ',')]) {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    read_tree(&group[begin..at], &path, is_public, imports);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (named, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let is_first = path.is_empty();
    path.extend(segments(named).filter(|segment| segment != "self" || is_first));
    let last = path.last().cloned().unwrap_or_default();
    let name = if alias.is_empty() {
        last
    } else {
        alias.to_owned()
    };
    if !tree.is_empty() {
        imports.push(Import {
            path,
            name,
            is_public,
        });
    }
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    let all = path.split("::").map(str::trim);
    all.filter(|segment| !segment.is_empty()).map(str::to_owned)
}

impl Source {
    fn read(text: &str) -> Self {
        let mut source = Self::default();
        let text = without_prose(text);
        let mut rest = text.as_str();
        while let Some(at) = rest.find("use ") {
            let line = rest[..at].rfind('\n').map_or(0, |end| end + 1);
            let before = rest[line..at].trim();
            let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
            if before.is_empty() || before.starts_with("pub") {
                source.code.push_str(&rest[..line]);
                let tree = rest[at + 4..end].replace('\n', " ");
                read_tree(&tree, &[], !before.is_empty(), &mut source.imports);
                rest = &rest[end..];
            } else {
                source.code.push_str(&rest[..at + 4]);
                rest = &rest[at + 4..];
            }
        }
        source.code.push_str(rest);
        // A visibility (`pub(in crate::worker)`) names a module and uses nothing of it.
        let mut parts = source.code.split("pub(in ");
        let first = parts.next().unwrap_or_default().to_owned();
        let after = |part: &str| {
            part.split_once(')')
                .map_or(String::new(), |(_, rest)| rest.to_owned())
        };
        source.code = parts.fold(first, |code, part| code + "pub" + &after(part));
        source
    }

    /// Paths of the code itself.
    fn paths(&self) -> impl Iterator<Item = Vec<String>> {
        let is_path = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
        let words = self.code.split(move |letter| !is_path(letter));
        let paths = words.filter(|word| word.contains("::") && !word.starts_with(':'));
        paths.map(|path| segments(path).collect())
    }
}

/// The modules of one crate.
struct Crate(BTreeMap<Module, Source>);

impl Crate {
    fn read(folder: &Path) -> Self {
        let src = folder.join("src");
        let files = super::files_of("rs").into_iter();
        let own = files.filter_map(|path| Some((path.strip_prefix(&src).ok()?.to_owned(), path)));
        let module = |(inside, path): (PathBuf, PathBuf)| {
            let inside = inside.with_extension("");
            let mut module: Module = inside
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .collect();
            module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
            let is_test = module.iter().any(|part| part == "tests");
            let text = std::fs::read_to_string(path).expect("the source can be read");
            (!is_test).then(|| (module, Source::read(&text)))
        };
        Self(own.filter_map(module).collect())
    }

    /// The path from the crate's root.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let up = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.clone(), &path[1..]),
            "super" => (
                module[..module.len().checked_sub(up)?].to_vec(),
                &path[up..],
            ),
            first => {
                let child = [&module[..], &[first.to_owned()]].concat();
                if !self.0.contains_key(&child) {
                    let imports = &self.0[module].imports;
                    let import = imports.iter().find(|import| import.name == first)?;
                    // What a name of this crate leads to begins so.
                    let known = ["crate", "self", "super"].contains(&import.path[0].as_str());
                    let path = [&import.path[..], &path[1..]].concat();
                    return known.then(|| self.absolute(module, &path))?;
                }
                (module.clone(), path)
            }
        };
        Some([&base[..], rest].concat())
    }

    /// The module that defines what the path names.
    fn definer(&self, path: &[String], depth: usize) -> Option<&Module> {
        let ends = (0..=path.len()).rev();
        let (module, source) = ends
            .filter_map(|end| self.0.get_key_value(&path[..end]))
            .next()?;
        let Some(name) = path.get(module.len()).filter(|_| depth > 0) else {
            return Some(module);
        };
        let mut imports = source.imports.iter();
        let led = imports
            .find(|import| import.name == *name)
            .and_then(|import| {
                let path = [&import.path[..], &path[module.len() + 1..]].concat();
                let known = ["crate", "self", "super"].contains(&import.path[0].as_str())
                    || self
                        .0
                        .contains_key(&[&module[..], &import.path[..1]].concat());
                known.then(|| self.absolute(module, &path))?
            });
        led.map_or(Some(module), |path| self.definer(&path, depth - 1))
    }

    /// The modules that a module uses.
    fn used_by(&self, module: &Module) -> BTreeSet<&Module> {
        let source = &self.0[module];
        let words: BTreeSet<&str> = source
            .code
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .collect();
        let imports = source.imports.iter();
        // A name that is only passed on is no use of it.
        let imports = imports
            .filter(|import| !import.is_public || words.contains(import.name.as_str()))
            .map(|import| import.path.clone());
        let paths = imports.chain(source.paths());
        let absolute = paths.filter_map(|path| self.absolute(module, &path));
        let used = absolute.filter_map(|path| self.definer(&path, 8));
        used.filter(|used| *used != module).collect()
    }

    /// Sizes of the circles that are too large, the largest first.
    fn large_circles(&self) -> Vec<usize> {
        let used: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|one| (one, self.used_by(one))).collect();
        let reached = |from: &Module| {
            let mut seen: BTreeSet<&Module> = BTreeSet::new();
            let mut next: Vec<&Module> = used[from].iter().copied().collect();
            while let Some(one) = next.pop() {
                if seen.insert(one) {
                    next.extend(&used[one]);
                }
            }
            seen
        };
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|one| (one, reached(one))).collect();
        let circle = |one: &&Module| {
            let around = reached[*one].iter();
            let circle = around.filter(|other| reached[*other].contains(*one));
            circle.copied().collect::<BTreeSet<_>>()
        };
        let circles: BTreeSet<BTreeSet<&Module>> = reached.keys().map(circle).collect();
        let sizes = circles.iter().map(BTreeSet::len);
        let mut large: Vec<usize> = sizes.filter(|size| *size > MAX_CIRCLE).collect();
        large.sort_unstable_by(|one, other| other.cmp(one));
        large
    }
}

#[test]
fn no_import_circle_grows() {
    let root = super::root();
    let manifests = super::files_of("toml").into_iter();
    let crates =
        manifests.filter(|path| path.ends_with("Cargo.toml") && *path != root.join("Cargo.toml"));
    let mut complaints = Vec::new();
    for manifest in crates {
        let folder = manifest.parent().unwrap_or(&root);
        let name = folder.strip_prefix(&root).unwrap_or(folder);
        let found = Crate::read(folder).large_circles();
        let mut listed = LARGE_CIRCLES
            .iter()
            .filter(|(one, _)| Path::new(one) == name);
        let listed = listed.next().map_or(&[][..], |(_, sizes)| sizes);
        // Both are sorted: a circle that has grown, or one more, is beyond its listed number.
        let mut listed_or_none = listed.iter().copied().chain(std::iter::repeat(0));
        if found.iter().any(|size| Some(*size) > listed_or_none.next()) {
            complaints.push(format!("{}: {found:?}, listed {listed:?}", name.display()));
        }
    }
    assert!(
        complaints.is_empty(),
        "circles of more than {MAX_CIRCLE} files: move code so that they open, or lower LARGE_CIRCLES\n{}",
        complaints.join("\n")
    );
}
