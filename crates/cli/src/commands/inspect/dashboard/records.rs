//! The records of the laboratory: which there are, their reports, and two of them beside each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use voile_report::record::Record;
use voile_report::summarise::summarise;
use voile_telemetry::admin::{PageRequest, PageResponse};

/// Where `voile bench` writes if nothing else is said.
const DEFAULT_FOLDER: &str = "voile-results";
const REPORT: &str = "report.html";

/// See the module. Folders are read when the page asks.
#[derive(Debug)]
pub(super) struct LabRecords {
    folders: Vec<PathBuf>,
}

impl LabRecords {
    /// Those of some folders, or of the folder where the lab writes by default.
    pub(super) fn new(mut folders: Vec<PathBuf>) -> Self {
        if folders.is_empty() {
            folders.push(DEFAULT_FOLDER.into());
        }
        Self { folders }
    }

    /// The list as JSON, the report of one, or two compared.
    pub(super) fn page(&self, question: &PageRequest) -> PageResponse {
        let name = |parameter| {
            let name = question.parameter(parameter).unwrap_or_default();
            percent_decode_str(name).decode_utf8_lossy().into_owned()
        };
        let answer = match &*question.path {
            "/records.json" => return PageResponse::json(self.list().to_string()),
            "/report.html" => self.report(&name("of")),
            _ => self.comparison(&name("first"), &name("second")),
        };
        match answer {
            Ok(page) => PageResponse {
                content_type: "text/html; charset=utf-8",
                ..PageResponse::json(page)
            },
            Err(reason) => PageResponse::text(StatusCode::NOT_FOUND, reason),
        }
    }

    /// Folders of records by the name that the page has for them.
    fn found(&self) -> BTreeMap<String, PathBuf> {
        let mut found = BTreeMap::new();
        for folder in &self.folders {
            let within = folder.read_dir().into_iter().flatten().flatten();
            for path in within.map(|entry| entry.path()).chain([folder.clone()]) {
                if path.join(voile_lab::RECORD).is_file() {
                    found.insert(path.display().to_string(), path);
                }
            }
        }
        found
    }

    fn list(&self) -> Value {
        let found = self.found().into_iter();
        let list = found.map(|(name, path)| {
            let report = path.join(REPORT).is_file();
            json!({ "name": name, "report": report })
        });
        json!({ "folders": self.folders, "records": list.collect::<Vec<_>>() })
    }

    /// Only folders of the list: a name is no way to other files.
    fn path(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.found().remove(name);
        path.ok_or_else(|| format!("there is no record {name}"))
    }

    fn report(&self, name: &str) -> Result<String, String> {
        let path = self.path(name)?.join(REPORT);
        let text = std::fs::read_to_string(&path);
        text.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The page of `voile bench compare`.
    fn comparison(&self, first: &str, second: &str) -> Result<String, String> {
        let [first, second] = [read(&self.path(first)?)?, read(&self.path(second)?)?];
        voile_report::compare::page(&first, &second)
    }
}

fn read(folder: &Path) -> Result<Record, String> {
    let mut record = voile_lab::read(folder)?;
    summarise(&mut record);
    Ok(record)
}
