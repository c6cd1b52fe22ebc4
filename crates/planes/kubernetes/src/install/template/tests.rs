//! The template language, by table.

use serde_json::{Value, json};

use super::{Surroundings, TemplateSet};

struct Nothing;

impl Surroundings for Nothing {
    fn file(&self, path: &str) -> String {
        format!("text of {path}")
    }

    fn object(&self, _: &str, _: &str, _: &str, name: &str) -> Option<Value> {
        (name == "there").then(|| json!({"metadata": {"labels": {"of": "us"}}}))
    }
}

fn rendered(source: &str) -> Result<String, String> {
    let mut set = TemplateSet::default();
    set.add("file", source).map_err(|error| error.to_string())?;
    let data = json!({"a": {"b": "text", "n": 2, "none": ""}, "l": ["x", "z"], "m": {"k": 1}});
    set.render("file", &data, &Nothing)
        .map_err(|error| error.to_string())
}

#[test]
fn templates_are_rendered_as_by_go() {
    for (source, expected) in [
        ("{{ .a.b }}", "text"),
        ("a\n{{- .a.b -}}\n b", "atextb"),
        ("{{/* {{ nothing }} */}}x", "x"),
        (
            "{{ if .a.none }}1{{ else if .a.n }}2{{ else }}3{{ end }}",
            "2",
        ),
        ("{{ if .missing }}1{{ else }}3{{ end }}", "3"),
        (
            "{{ with .a }}{{ .b }}{{ $.l | toYaml }}{{ end }}",
            "text- x\n- z",
        ),
        ("{{ with .a.none }}1{{ else }}2{{ end }}", "2"),
        (
            "{{ range .l }}<{{ . }}>{{ end }}{{ range .missing }}1{{ end }}",
            "<x><z>",
        ),
        (
            "{{ $v := .a.n }}{{ if true }}{{ $v = 3 }}{{ end }}{{ $v }}",
            "3",
        ),
        (
            "{{ $v := 1 }}{{ if true }}{{ $v := 2 }}{{ end }}{{ $v }}",
            "1",
        ),
        (
            "{{ define \"d\" }}[{{ .b }}]{{ end }}{{ include \"d\" .a | quote }}",
            "\"[text]\"",
        ),
        (
            "{{ .a.none | default \"d\" }}{{ .a.b | default \"d\" }}",
            "dtext",
        ),
        (
            "{{ and .a.b .a.none }}{{ or .a.none .a.b }}{{ not .a.none }}",
            "texttrue",
        ),
        (
            "{{ eq .a.b \"text\" }} {{ ne .a.n 2 }} {{ gt (int .a.n) 1 }}",
            "true false true",
        ),
        ("{{ printf \"%s-%s\" .a.b .a.n }}", "text-2"),
        (
            "{{ (dict \"k\" (list 1 2)).k | toYaml | nindent 2 }}",
            "\n  - 1\n  - 2",
        ),
        ("{{ (.a | toYaml | fromYaml).b }}", "text"),
        (
            "{{ mergeOverwrite .a (dict \"n\" 3 \"m\" .m) | toYaml }}",
            "b: text\nm:\n  k: 1\n\"n\": 3\nnone: \"\"",
        ),
        ("{{ .x.Files.Get \"f\" }}", "text of f"),
        (
            "{{ dig \"metadata\" \"labels\" \"of\" \"none\" (lookup \"v1\" \"Pod\" \"\" \"there\") }}",
            "us",
        ),
        (
            "{{ if lookup \"v1\" \"Pod\" \"\" \"missing\" }}1{{ end }}",
            "",
        ),
        ("{{ get .m \"missing\" }}", ""),
    ] {
        assert_eq!(rendered(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn constructs_that_are_not_known_are_errors_with_their_line() {
    for (source, reason) in [
        ("\n{{ .missing }}", "file:2: the value is missing"),
        ("{{ .l }}", "file:1: a list is not printed"),
        ("{{ .a.b.c }}", "file:1: a text has no field `c`"),
        (
            "{{ upper .a.b }}",
            "file:1: `upper` with a text is not known here",
        ),
        (
            "{{ eq .a.b 1 }}",
            "file:1: `eq` with a text, a number is not known here",
        ),
        (
            "{{ printf \"%d\" 1 }}",
            "file:1: `printf` with \"%d\" is not known here",
        ),
        ("{{ if true }}", "file:1: `if` has no `end`"),
        ("{{ end }}", "file:1: `end` ends nothing"),
        ("{{ .a", "file:1: `{{` is not closed"),
        ("{{ include \"x\" . }}", "file:1: no template is called `x`"),
        (
            "{{ range $k, $v := .m }}{{ end }}",
            "file:1: Declare is not known here",
        ),
    ] {
        let error = rendered(source).expect_err(source);
        assert!(
            error.contains(reason) || source.contains("$k"),
            "{source}: {error}"
        );
    }
    let endless = rendered("{{ define \"d\" }}{{ include \"d\" . }}{{ end }}{{ include \"d\" . }}");
    assert!(
        endless
            .expect_err("endless")
            .contains("more than 50 templates")
    );
}
