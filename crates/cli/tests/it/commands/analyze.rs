//! `voile analyze` as a program: what goes where, and the exit code.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const GOOD: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
const BAD: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {nam: shop}\n";

fn analyze(args: &[&str], folder: &Path) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_voile"))
        .arg("analyze")
        .args(args)
        .arg(folder)
        .output()
        .expect("voile starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn analyze_tells_good_from_bad_and_from_missing_by_its_exit_code() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("good.yaml"), GOOD).expect("written");
    let (code, stdout, stderr) = analyze(&[], folder.path());
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("0 errors, 0 warnings"), "{stderr}");

    fs::write(folder.path().join("bad.yaml"), BAD).expect("written");
    let (code, stdout, stderr) = analyze(&[], folder.path());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stdout.contains("bad.yaml:3:12: error[V0101]: unknown field `nam` (field metadata.nam)"),
        "{stdout}"
    );
    assert!(stdout.contains("did you mean `name`?"), "{stdout}");

    let (code, stdout, stderr) = analyze(&[], &folder.path().join("none"));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("cannot read"), "{stderr}");
}

#[test]
fn analyze_reads_single_files_whatever_they_are_called_and_says_where_nothing_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    // File, exit code, and parts of stdout and stderr.
    let latin = b"kind: Namespace # \xe9\n";
    let cases: [(_, &[u8], i32, &str, &str); 5] = [
        ("good.yaml", GOOD.as_bytes(), 0, "", "1 file, "),
        (
            "good.yaml.tmpl",
            GOOD.as_bytes(),
            0,
            "",
            "0 errors, 0 warnings",
        ),
        (
            "bad",
            BAD.as_bytes(),
            1,
            "bad:3:12: error[V0101]",
            "2 errors",
        ),
        (".hidden.yaml", BAD.as_bytes(), 1, "V0101", "2 errors"),
        ("latin.yaml", latin, 1, "V0001", "2 errors"),
    ];
    for (name, text, expected, on_stdout, on_stderr) in cases {
        let (code, stdout, stderr) = analyze(&[], &file(name, text));
        assert_eq!(code, Some(expected), "{name}: {stdout}{stderr}");
        assert!(stdout.contains(on_stdout), "{name}: {stdout}");
        assert!(stderr.contains(on_stderr), "{name}: {stderr}");
    }
    let empty = tempfile::tempdir().expect("a temporary folder");
    let (code, _, stderr) = analyze(&[], empty.path());
    assert_eq!(code, Some(0));
    assert!(stderr.contains("there is no .yaml"), "{stderr}");
}

#[test]
fn analyze_prints_one_json_array() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("bad.yaml"), BAD).expect("written");
    let (code, stdout, _) = analyze(&["--output", "json"], folder.path());
    assert_eq!(code, Some(1));
    let all: Vec<serde_json::Value> = serde_json::from_str(&stdout).expect("JSON");
    let unknown = all
        .iter()
        .find(|problem| problem["code"] == "V0101")
        .expect("the unknown field");
    assert_eq!(
        (&unknown["line"], &unknown["column"]),
        (&3.into(), &12.into())
    );
}

/// Two problems in two documents: one that is an error, and a note that the second document may hide.
const SPOKEN: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\n\
    apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop, labels: {app: a}}\nspec: {containers: [{name: a}]}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {selector: {app: a}, ports: [{port: 80}]}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {name: none, namespace: shop}\nspec: {selector: {app: none}, ports: [{port: 80, name: http}]}\n";

#[test]
fn consequences_are_folded_unless_all_are_wanted_and_json_names_their_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let routes = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec:\n  hosts: [web]\n  \
         http: [{route: [{destination: {host: web}}]}]\n";
    fs::write(folder.path().join("a.yaml"), routes).expect("written");
    let (_, folded, _) = analyze(&[], folder.path());
    assert!(
        folded.contains("and 1 more that follows (voile analyze --all)"),
        "{folded}"
    );
    let (_, all, summary) = analyze(&["--all"], folder.path());
    assert_eq!(all.matches("error[").count(), 2, "{all}");
    assert!(summary.contains("2 errors"), "{summary}");
    let (_, json, _) = analyze(&["--output", "json"], folder.path());
    let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(read[0]["follows"].is_null(), "{json}");
    let cause = read[1]["follows"].as_str().expect("a place");
    assert!(cause.ends_with("a.yaml:5:11"), "{json}");
}

#[test]
fn severity_says_what_is_printed_and_fail_on_what_fails() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("mesh.yaml"), SPOKEN).expect("written");
    // Arguments, exit code, codes that are printed.
    let cases: [(&[&str], i32, &[&str]); 5] = [
        (&[], 0, &["V0301", "V0313", "V0415"]),
        (&["--severity", "warning"], 0, &["V0301", "V0313"]),
        (&["--severity", "error"], 0, &[]),
        (&["--severity", "error", "--fail-on", "warning"], 1, &[]),
        (&["--fail-on", "note"], 1, &["V0301", "V0313", "V0415"]),
    ];
    for (args, expected, codes) in cases {
        let (code, stdout, stderr) = analyze(args, folder.path());
        assert_eq!(code, Some(expected), "{args:?}: {stderr}");
        for known in ["V0301", "V0313", "V0415"] {
            let printed = stdout.contains(&format!("[{known}]"));
            assert_eq!(printed, codes.contains(&known), "{args:?}: {stdout}");
        }
        assert!(stderr.contains("2 warnings, 1 note"), "{args:?}: {stderr}");
    }
}

#[test]
fn strict_makes_errors_of_documents_that_mean_nothing_to_the_mesh() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let foreign = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\n";
    fs::write(
        folder.path().join("mesh.yaml"),
        format!("{GOOD}---\n{foreign}"),
    )
    .expect("written");
    for (args, expected, said) in [
        (&[][..], 0, "mesh.yaml:5:1: note[V0107]"),
        (&["--strict"], 1, "mesh.yaml:5:1: error[V0107]"),
    ] {
        let (code, stdout, stderr) = analyze(args, folder.path());
        assert_eq!(code, Some(expected), "{args:?}: {stderr}");
        assert!(stdout.contains(said), "{args:?}: {stdout}");
    }
}

#[test]
fn a_resource_hides_by_annotation_what_is_found_in_its_document_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let hide = |name: &str, codes: &str| {
        SPOKEN.replace(
            &format!("{{name: {name}, namespace: shop}}"),
            &format!(
                "{{name: {name}, namespace: shop, annotations: {{voile.dev/ignore: \"{codes}\"}}}}"
            ),
        )
    };
    let cases = [
        (hide("none", "V0301"), false, "1 ignored"),
        (hide("none", "V0415, V0301"), false, "1 ignored"),
        (hide("a", "V0301"), true, "1 note\n"),
        (hide("none", "V9999"), true, "3 warnings, 1 note\n"),
    ];
    for (text, told, summary) in cases {
        fs::write(folder.path().join("mesh.yaml"), &text).expect("written");
        let (_, stdout, stderr) = analyze(&[], folder.path());
        assert_eq!(stdout.contains("V0301]"), told, "{stdout}");
        assert_eq!(
            stdout.contains("[V0117]"),
            text.contains("V9999"),
            "{stdout}"
        );
        assert!(stderr.contains(summary), "{stderr}");
    }
    // Each of a List for itself.
    let items: Vec<String> = hide("none", "V0301")
        .split("---\n")
        .map(|one| format!("- {}", one.trim_end().replace('\n', "\n  ")))
        .collect();
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{}\n", items.join("\n"));
    fs::write(folder.path().join("mesh.yaml"), list).expect("written");
    let (_, stdout, stderr) = analyze(&[], folder.path());
    assert!(
        !stdout.contains("V0301]") && stdout.contains("V0415]"),
        "{stdout}"
    );
    assert!(stderr.contains("1 ignored"), "{stderr}");
}

#[test]
fn sarif_has_what_its_schema_demands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = SPOKEN.replace(
        "{name: none, namespace: shop}",
        "{name: none, namespace: shop, annotations: {voile.dev/ignore: V0301}}",
    );
    fs::create_dir(folder.path().join("a b")).expect("made");
    fs::write(folder.path().join("a b/mesh.yaml"), text).expect("written");
    fs::write(folder.path().join("bad.yaml"), BAD).expect("written");
    let (code, stdout, _) = analyze(&["--output", "sarif"], folder.path());
    assert_eq!(code, Some(1));
    let log: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    assert!(run["tool"]["driver"]["name"].is_string());
    let results = run["results"].as_array().expect("results");
    assert!(results.len() >= 4, "{stdout}");
    for result in results {
        let index = result["ruleIndex"].as_u64().expect("an index");
        let rule = &rules[usize::try_from(index).expect("small")];
        assert_eq!(rule["id"], result["ruleId"]);
        assert!(!rule["help"]["text"].as_str().expect("help").is_empty());
        let level = result["level"].as_str().expect("a level");
        assert!(["error", "warning", "note"].contains(&level));
        assert!(!result["message"]["text"].as_str().expect("text").is_empty());
        let place = &result["locations"][0]["physicalLocation"];
        let uri = place["artifactLocation"]["uri"].as_str().expect("a URI");
        assert!(uri.starts_with("file:///") && !uri.contains(' '), "{uri}");
        assert!(place["region"]["startLine"].as_u64().expect("a line") >= 1);
        assert!(place["region"]["startColumn"].as_u64().expect("a column") >= 1);
        let hidden = result["suppressions"][0]["kind"] == "inSource";
        assert_eq!(hidden, result["ruleId"] == "V0301", "{result}");
    }
}

#[test]
fn every_example_of_a_page_does_in_a_folder_what_it_says() {
    for page in voile_analysis::explanations::all().filter(|page| page.before.is_none()) {
        for (example, wrong) in [(page.wrong, true), (page.right, false)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            match example.starts_with("ln ") {
                true => {
                    let mut shell = Command::new("sh");
                    let status = shell
                        .args(["-c", example])
                        .current_dir(folder.path())
                        .status();
                    assert!(status.expect("a shell").success());
                }
                false => fs::write(folder.path().join("mesh.yaml"), example).expect("written"),
            }
            let (code, stdout, stderr) = analyze(&[], folder.path());
            assert!(code.is_some_and(|code| code < 2), "{stderr}");
            let said = stdout.contains(&format!("[{}]", page.code));
            assert_eq!(said, wrong, "{}:\n{example}\n{stdout}", page.code);
        }
    }
}

#[test]
fn explain_code_prints_pages_and_lists_all() {
    let explain = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_voile"))
            .arg("explain-code")
            .args(args)
            .output()
            .expect("voile starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, stdout, _) = explain(&["v0412"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.starts_with("# V0412\n") && stdout.contains("Wrong:") && stdout.contains("Right:")
    );
    let (code, stdout, _) = explain(&["--list"]);
    assert_eq!(code, Some(0));
    let codes = voile_analysis::explanations::all().map(|page| page.code);
    for listed in codes.chain(["V0701"]) {
        assert!(
            stdout.lines().any(|line| line.starts_with(listed)),
            "{listed}"
        );
    }
    let (code, stdout, stderr) = explain(&["V0000"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("no code `V0000`"), "{stderr}");
}

#[test]
fn no_example_has_anything_that_is_wrong() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let folders = fs::read_dir(examples).expect("examples");
    let mut analyzed = 0;
    for folder in folders.map(|entry| entry.expect("an entry").path()) {
        // Graphs are no resources.
        if !["mesh.yaml", "00-mesh.yaml"]
            .iter()
            .any(|name| folder.join(name).exists())
        {
            assert!(folder.ends_with("graphs") || folder.is_file(), "{folder:?}");
            continue;
        }
        let (_, stdout, stderr) = analyze(&["--severity", "warning"], &folder);
        let codes = stdout.match_indices("[V");
        let codes: Vec<_> = codes.map(|(at, _)| &stdout[at + 1..at + 6]).collect();
        // The first step of this page makes the Secret.
        let expected: &[&str] = match folder.ends_with("http3") {
            true => &["V0411"],
            false => &[],
        };
        assert_eq!(codes, expected, "{folder:?}: {stdout}{stderr}");
        analyzed += 1;
    }
    assert!(analyzed > 10, "only {analyzed} examples were found");
}
