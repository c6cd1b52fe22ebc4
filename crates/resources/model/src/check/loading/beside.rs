//! Checks one file that is not in force beside a mesh that is, as an admission webhook does. The mesh stays as it is.

use std::sync::Arc;

use crate::check::{ReadFiles, assemble, document, intents};
use crate::diagnostic::Diagnostic;
use crate::mesh::Mesh;
use crate::source::SourceFile;

/// Problems of the file's resources by themselves.
#[must_use]
pub fn diagnose(file: &SourceFile) -> Vec<Diagnostic> {
    let mut read = ReadFiles::default();
    document::read_file(file, &mut read);
    read.diagnostics
}

/// The mesh with this file instead of its earlier version, and the problems of putting them together. Resources of the
/// file that are invalid by themselves are left out. Nothing but the file is parsed.
#[must_use]
pub fn check_beside(file: &SourceFile, mesh: &Mesh) -> (Mesh, Vec<Diagnostic>) {
    let mut read = ReadFiles::default();
    document::read_file(file, &mut read);
    let mut resources = mesh.resources.clone();
    resources.retain(|_, stored| stored.source.file != file.name);
    resources.extend(read.good);
    let mut diagnostics = Vec::new();
    let mut together = assemble::assemble(resources, &mut diagnostics);
    let own = intents::collect(read.intents);
    let mut others = mesh.intents.clone();
    let name = &file.name;
    others
        .virtual_services
        .retain(|one| one.source.file != *name);
    others.gateways.retain(|one| one.source.file != *name);
    others.destinations.retain(|one| one.source.file != *name);
    others
        .virtual_services
        .extend(own.virtual_services.iter().map(Arc::clone));
    others.gateways.extend(own.gateways.iter().map(Arc::clone));
    others
        .destinations
        .extend(own.destinations.iter().map(Arc::clone));
    together.intents = others;
    (together, diagnostics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;

    #[test]
    fn a_file_is_checked_in_the_place_of_its_earlier_version() {
        let entry = |host: &str, name: &str| {
            let text = format!(
                "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
                 metadata: {{name: {name}, namespace: shop}}\n\
                 spec: {{hosts: [{host}], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: DNS}}\n"
            );
            SourceFile::new(name, text)
        };
        let (mesh, _) = check(&[entry("a.example", "a"), entry("b.example", "b")], None);
        let hosts = |mesh: &Mesh| -> Vec<String> {
            let keys = mesh.services.keys();
            keys.map(|key| key.hostname.to_string()).collect()
        };
        let (with, problems) = check_beside(&entry("c.example", "b"), &mesh);
        assert_eq!(hosts(&with), ["a.example", "c.example"]);
        assert_eq!(problems, []);
        assert_eq!(hosts(&mesh), ["a.example", "b.example"]);
        let broken = SourceFile::new(
            "b",
            entry("c.example", "b").text.unwrap().replace("80", "x"),
        );
        let alone = diagnose(&broken);
        assert!(alone.iter().any(Diagnostic::is_error), "{alone:?}");
        assert_eq!(hosts(&check_beside(&broken, &mesh).0), ["a.example"]);
    }
}
